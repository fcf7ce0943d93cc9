"""The compilers accept every golden without a warning, and it stays in its registers. No GPU is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.instructions import listing
from scanops import ScanSpec, generate, make_plan
from scanops.builders import nvrtc
from scanops.builders.build import unavailable
from scanops.builders.toolchain import CudaToolkit, find_cxx, find_nvcc
from scanops.codegen.fragments import fragments
from scanops.codegen.operators import OPERATORS
from scanops.codegen.source import render
from scanops.codegen.targets import DEFAULT_TARGET
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import BuildFailure
from tools.golden import GOLDEN, Golden

# Each golden is compiled by nvcc for the default target, and by NVRTC for one of the others in turn.
TURNS = ("sm_70", "sm_75", "sm_80", "sm_100", "sm_120")
DEPRECATED = "Architectures prior to"  # NVRTC 12.9 on what CUDA 13 no longer knows: the reason it is asked at all
STRICT = ("-std=c++17", "-O3", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror", "-Xptxas=-v,-warn-spills")

# One report of ptxas: the target, the stack frame and the spills of one kernel.
REPORT = re.compile(
    r"Compiling entry function '\w+' for '(sm_\d+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
    re.DOTALL,
)


@pytest.fixture(scope="module")
def nvcc() -> CudaToolkit:
    try:
        return find_nvcc()
    except BuildFailure as missing:
        pytest.skip(f"no nvcc: {missing.value}")


def words_of_nvrtc(text: str, target: str) -> str:
    """What NVRTC and ptxas print about a text that NVRTC accepts."""
    if missing := unavailable("nvrtc", target):
        pytest.skip(str(missing))
    options = [f"-arch={target}", "-std=c++17", "--ptxas-options=-v"]
    status, log, _ = nvrtc.compiled(nvrtc.require(target), text, Path("kernel.cu"), options)
    words = "\n".join(line for line in log.splitlines() if DEPRECATED not in line)
    assert status == 0, words
    return words


def in_registers(log: str, target: str, kernels: int = 1) -> None:
    """Raise unless ptxas reports so many kernels for the target, without a warning, a stack frame or a spill."""
    assert "warning" not in log.lower(), log
    assert REPORT.findall(log) == [(target, "0", "0", "0")] * kernels, log


def together(texts: list[str]) -> str:
    """One text of several, generated or exported, in namespaces: nvcc reads CUDA's headers once for all."""
    parts = ["#include <cuda_runtime.h>"]
    for number, text in enumerate(texts):
        names = ("scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch", "scan_launch")
        names = (*names, "scan_kernel")
        parts += [f"#undef {name}\n#define {name} {name}_{number}" for name in names]
        parts += [f"namespace golden_{number} {{", text, "}"]
    return "\n".join(parts)


def test_nvcc(nvcc: CudaToolkit, tmp_path: Path) -> None:
    """Device and host code, warnings as errors."""
    source = tmp_path / "kernels.cu"
    source.write_text(together([render(row.plan) for row in GOLDEN]))
    command = [str(nvcc.path), "-c", *STRICT, f"-arch={DEFAULT_TARGET}", str(source), "-o", str(tmp_path / "kernels.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    in_registers(done.stdout + done.stderr, DEFAULT_TARGET, len(GOLDEN))


@pytest.mark.parametrize(
    ("row", "target"), [(row, TURNS[number % len(TURNS)]) for number, row in enumerate(GOLDEN)], ids=str
)
def test_nvrtc(row: Golden, target: str) -> None:
    """For targets older and newer than the default; a state is as large as the planner takes it to be."""
    size = f'static_assert(sizeof(State) == {fragments(row.spec).state_bytes}, "");\n'
    text = render(make_plan(row.spec, target, row.few)) + size
    in_registers(words_of_nvrtc(text, target), target)


@pytest.mark.parametrize("operand", ["c128", "f64"])
@pytest.mark.parametrize(
    "shape", ["n33-inner36", "n1030-inner1024-strided", "n1030-inner36-transposed", "n9000-inner7-few"]
)
def test_the_widest_states_fit(shape: str, operand: str) -> None:
    """ptxas refuses more than 48 KB of declared arrays, as of totals in the largest blocks of columns."""
    length, inner, *words = shape.split("-")
    layout = "".join(f"-{word}" for word in words if word != "few")
    spec = ScanSpec.parse(f"linear-{operand}-{length}-{inner}-gate_{operand}-segments-reverse{layout}")
    words_of_nvrtc(render(make_plan(spec, few="few" in words)), DEFAULT_TARGET)


@pytest.mark.parametrize(("length", "inner", "layout"), [
    (7, 1, ""), (4096, 1, ""), (33000, 1, ""), (33000, 1, "few"), (4096, 64, ""), (65536, 6, ""),
    (300, 40, "transposed"),
])  # fmt: skip
def test_nothing_is_read_before_it_is_set(length: int, inner: int, layout: str, tmp_path: Path) -> None:
    """Lanes of a warp that branch on it part, where ptxas takes an operand of a whole line to be the same for all."""
    spec = ScanSpec(
        op="linear", dtype="float32", length=length, inner=inner, mask="bool", gate="float32", segments="flags",
        reverse=True, final=True, mask_layout="line", gate_layout="line",
        input_layout="transposed" if layout == "transposed" else "dense",
    )  # fmt: skip
    source = tmp_path / "kernel.cpp"
    source.write_text(render(make_plan(spec, few=layout == "few")))
    flags = ["-std=c++20", "-O2", "-fwrapv", "-fno-strict-aliasing", "-Werror=maybe-uninitialized", "-Wuninitialized"]
    command = [find_cxx().path, *flags, f"-I{HEADER_DIRECTORY}", "-S", source, "-o", tmp_path / "kernel.s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "uninitialized" not in done.stderr, done.stderr


def test_nvrtc_takes_names_that_only_headers_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """In operators' expressions, as nvcc does; a kernel declares those that it uses."""
    text = "(float)(int64_t)(x < INFINITY && x != NAN ? x * (float)M_PI : (uint32_t)INT_MAX)"
    row = replace(OPERATORS["sum"], name="headers", formula="y", lift=(text,), forms={}, join=None, gradient=None)
    monkeypatch.setitem(OPERATORS, row.name, row)
    source = generate(ScanSpec(op="headers", dtype="float32", length=64), "sm_80")
    in_registers(words_of_nvrtc(source, "sm_80"), "sm_80")
    assert source.count("#ifdef __CUDACC_RTC__") == 1 and "INT_MAX" not in generate(ScanSpec.parse("sum-f32-n64"))


def test_nvrtc_refuses_nonsense() -> None:
    """The tests above would pass if the log were never read."""
    with pytest.raises(AssertionError, match="undefined"):
        words_of_nvrtc("__global__ void scan_kernel() { undefined(); }", "sm_90")
    assert "warning" in words_of_nvrtc("__global__ void scan_kernel() { int unused; }", "sm_90")


@pytest.mark.parametrize(("slug", "loops"), [("prod-f32-n4096", False), ("prod-f32-n131072", True)])
def test_a_kernel_of_one_tile_is_unrolled(slug: str, loops: bool, nvcc: CudaToolkit, tmp_path: Path) -> None:
    """Its machine code has no backward branch; that of a kernel which takes tile after tile has."""
    found = os.environ.get("NVDISASM") or shutil.which("nvdisasm", path=f"{nvcc.root / 'bin'}:{os.environ['PATH']}")
    if not found:
        pytest.skip("no nvdisasm on PATH or beside nvcc")
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text(generate(ScanSpec.parse(slug)))
    command = [str(nvcc.path), "-cubin", "-std=c++17", "-O3", f"-arch={DEFAULT_TARGET}", str(source), "-o", str(cubin)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVDISASM", found)
        rows = listing(cubin)
    assert len(rows) > 50
    assert any(row.target is not None and row.target < row.address for row in rows) is loops
