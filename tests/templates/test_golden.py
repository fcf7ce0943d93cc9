"""The text of kernels: whole, the same in every process; ``generated/``, and the command that writes it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instructions import listing
from scanops import ScanSpec, generate, make_plan
from scanops.builders import nvrtc, unavailable
from scanops.builders.toolchain import CudaToolkit, find_cxx, find_nvcc
from scanops.codegen.fragments import fragments
from scanops.codegen.headers import inline_headers
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.operators import OPERATORS
from scanops.codegen.planner import STRATEGIES, plan_kernel
from scanops.codegen.source import render
from scanops.codegen.targets import DEFAULT_TARGET, TARGETS
from scanops.emulator import HEADER_DIRECTORY
from scanops.errors import BuildFailure
from tests.codegen.strategies import specs
from tests.scripts import ROOT, ran
from tools.golden import GOLDEN, INCLUDING, Golden, golden_files, main


def test_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is as rendered now, and there are no others."""
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {path.name for path in (ROOT / "generated").iterdir()} == golden_files().keys()


def test_the_list_shows_each_strategy_and_each_class() -> None:
    """Some twenty kernels, so that a reader can look at all of them; slugs are canonical and differ."""
    specs = [row.spec for row in GOLDEN]
    assert [spec.slug for spec in specs] == [row.slug for row in GOLDEN]
    assert len({row.slug for row in GOLDEN}) == len({row.shows for row in GOLDEN}) == len(GOLDEN) <= 21
    assert {row.plan.strategy for row in (*GOLDEN, *INCLUDING)} == set(STRATEGIES)
    assert {spec.accumulator.kind for spec in specs} == {"int", "float", "complex"}
    assert {spec.operator.name for spec in specs} >= {"sum", "prod", "linear", "logcumsumexp", "cummax"}
    assert {(spec.reverse, spec.exclusive) for spec in specs} >= {(False, False), (True, False), (True, True)}


RENDER = """
import hashlib, sys
from scanops import ScanSpec, generate
from tests.scripts import ROOT, ran
from tools.golden import golden_files
for name, text in golden_files().items():
    print(name, hashlib.sha256(text.encode()).hexdigest())
for target in sys.argv[1].split(","):
    for slug in sys.argv[2].split(","):
        print(target, slug, hashlib.sha256(generate(ScanSpec.parse(slug), target).encode()).hexdigest())
assert "torch" not in sys.modules, "codegen imported torch"
"""
FEW = ("sum-bf16-n100", "prod-f32-n32768-mask_f32-reverse", "sum-f64-n9-inner9-strided", "sum-f32-n99999999")


def body_below_banner(source: str) -> str:
    """The text that the banner's digest covers: all below the comment lines and the blank line after them."""
    return source.split("\n\n", 1)[1]


def test_two_processes_render_the_same_bytes(tmp_path: Path) -> None:
    """With other hash seeds, directories, users and time zones; and torch is not imported on the way."""
    outputs = []
    for number in ("1", "2"):
        directory = tmp_path / number
        directory.mkdir()
        names = {"PYTHONHASHSEED": number, "HOME": str(directory), "USER": f"user{number}", "TZ": f"UTC+{number}"}
        words = (sys.executable, "-c", RENDER, ",".join(TARGETS), ",".join(FEW))
        outputs.append(ran(*words, folder=directory, LC_ALL="C", PYTHONPATH=str(ROOT), **names).stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(golden_files()) + len(TARGETS) * len(FEW)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_the_banner_tells_the_truth(row: Golden) -> None:
    """The digest is that of the body, and the command names this kernel; the text is ASCII."""
    lines = row.spec.inner if row.variant == FEW else None
    text = generate(row.spec, "sm_75", lines=lines)
    banner = text.split("\n\n", 1)[0]
    assert text.isascii() and all(line.startswith("//") for line in banner.splitlines())
    digest = re.search(r"^// content  sha256 ([0-9a-f]{16,64}) ", banner, re.MULTILINE)
    assert digest and hashlib.sha256(body_below_banner(text).encode()).hexdigest().startswith(digest[1])
    again = re.search(r"^// again    (.+)$", banner, re.MULTILINE)
    assert again and shlex.split(again[1]) == [
        *("scanops", "generate", row.slug, "--target", "sm_75"),
        *(("--lines", str(lines)) if lines else ()),
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_targets_differ_in_banner_and_intrinsics_alone(target: str) -> None:
    """One body serves all targets, except for the constants of the target."""
    spec, early = ScanSpec.parse("sum-f32-n4096-mask_f32"), str(TARGETS[target].launches_early).lower()
    body = body_below_banner(generate(spec, target))
    assert f"constexpr bool kBeginsEarly = {early};" in body and "if constexpr (kBeginsEarly)" in body
    assert body.replace(f"kBeginsEarly = {early}", "kBeginsEarly = true") == body_below_banner(generate(spec))
    bfloat = generate(ScanSpec.parse("sum-bf16-n100"), target)
    converts = str(TARGETS[target].bfloat_convert).lower()
    assert f"constexpr bool kConvertsBfloat = {converts};" in bfloat and "if constexpr (kConvertsBfloat)" in bfloat


FUNCTION = re.compile(r"^__device__ .*?(\w+)\(", re.MULTILINE)
CONSTANT = re.compile(r"^inline constexpr (?:\w+ )+(\w+) = ", re.MULTILINE)
TYPE = re.compile(r"^(?:typedef .*?(\w+);|struct (?:alignas\(.*\) )?(\w+) \{)", re.MULTILINE)
EXPORTED = ["scanops_abi", "scanops_error_string", "scanops_launch"]


def faults(source: str) -> set[str]:
    """What is wrong with the text of a kernel, in words."""
    declared = {name for pattern in (FUNCTION, CONSTANT, TYPE) for name in re.findall(r"\w+", listed(pattern, source))}
    counts = Counter(re.findall(r"\w+", inline_headers(source)))
    found = {f"{name} is not used" for name in declared if counts[name] == 1}
    body = source.split("\n\n", 1)[1]
    found |= {f"{word} is of Python" for word in ("None", "True", "False") if re.search(rf"\b{word}\b", body)}
    if re.findall(r'extern "C" (?!__global__).*?(\w+)\(', source) != EXPORTED or source.count("__global__") != 1:
        found.add("another interface")
    if re.search(r"[ \t]+$|\t|\n\n\n|\n\n\Z", source, re.MULTILINE) or not source.endswith("\n"):
        found.add("blanks")
    return found


def listed(pattern: re.Pattern[str], source: str) -> str:
    """The names that a pattern declares, as words."""
    return " ".join("".join(groups) for groups in (match.groups(default="") for match in pattern.finditer(source)))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.slug)
def test_committed_kernels_are_whole(golden: Golden) -> None:
    """Each strategy and class of states: every function, constant and type is used."""
    assert faults(render(golden.plan)) == set()


@settings(max_examples=100)
@given(specs, st.booleans())
def test_the_kernel_of_any_spec_is_whole(spec: ScanSpec, few: bool) -> None:
    """The same for specs drawn from all that ScanSpec accepts."""
    assert faults(render(make_plan(spec, few=few))) == set()


# ---- the compilers accept every golden without a warning, and it stays in its registers; no GPU is needed

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
    options = [f"-arch={target}", "-std=c++17", "-default-device", "--ptxas-options=-v"]
    status, log, _ = nvrtc.compile_cubin(nvrtc.require(target), text, Path("kernel.cu"), options)
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
        parts += [f"#undef {name}\n#define {name} {name}_{number}" for name in names]
        parts += [f"namespace golden_{number} {{", text, "}"]
    return "\n".join(parts)


def test_nvcc(nvcc: CudaToolkit, tmp_path: Path) -> None:
    """Device and host code, warnings as errors."""
    source = tmp_path / "kernels.cu"
    source.write_text(together([inline_headers(render(row.plan)) for row in GOLDEN]))
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
    text = render(plan_kernel(KernelKey(row.spec, target, row.variant))) + size
    in_registers(words_of_nvrtc(text, target), target)


@pytest.mark.parametrize("row", INCLUDING, ids=lambda row: row.name)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_kernels_that_include_headers(row: Golden, target: str) -> None:
    """NVRTC reads headers from memory. The digest of a banner is that of the text with its headers in place."""
    text = render(plan_kernel(KernelKey(row.spec, target)))
    assert REPORT.findall(words_of_nvrtc(text, target)) == [(target, "0", "0", "0")]
    whole = generate(row.spec, target)
    digest = re.search(r"^// content  sha256 ([0-9a-f]{16}) ", text, re.MULTILINE)
    assert digest and hashlib.sha256(body_below_banner(whole).encode()).hexdigest().startswith(digest[1])
    assert REPORT.findall(words_of_nvrtc(whole, target)) == [(target, "0", "0", "0")]


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


@pytest.mark.parametrize(
    ("length", "inner", "layout"),
    [
        (7, 1, ""),
        (4096, 1, ""),
        (33000, 1, ""),
        (33000, 1, "few"),
        (4096, 64, ""),
        (65536, 6, ""),
        (300, 40, "transposed"),
    ],
)
def test_nothing_is_read_before_it_is_set(length: int, inner: int, layout: str, tmp_path: Path) -> None:
    """Lanes of a warp that branch on it part, where ptxas takes an operand of a whole line to be the same for all."""
    spec = ScanSpec(
        op="linear",
        dtype="float32",
        length=length,
        inner=inner,
        mask="bool",
        gate="float32",
        segments="flags",
        reverse=True,
        final=True,
        mask_layout="line",
        gate_layout="line",
        input_layout="transposed" if layout == "transposed" else "dense",
    )
    source = tmp_path / "kernel.cpp"
    source.write_text(inline_headers(render(make_plan(spec, few=layout == "few"))))
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


CARRIES = "offsets_i32-reverse-exclusive-initial-final-per_segment"


@pytest.mark.parametrize("size", ["n60", "n1000", "n4097", "n40000", "n131072", "any-le1073741824", "n1000-inner24"])
def test_no_state_is_indexed_in_memory(size: str, nvcc: CudaToolkit, tmp_path: Path) -> None:
    """Every loop over a thread's states is unrolled.

    Otherwise they lie in local memory, and behind a loop that stores them NVVM of CUDA 13.0 reads some from before it.
    """
    source, ptx = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    spec = ScanSpec.parse(f"logcumsumexp-bf16-{size}-mask_b8-{CARRIES}")
    for text in {render(plan_kernel(KernelKey(spec, DEFAULT_TARGET, variant))) for variant in ("few", "many")}:
        source.write_text(inline_headers(text))
        command = [str(nvcc.path), "-ptx", "-std=c++17", "-O3", f"-arch={DEFAULT_TARGET}", str(source), "-o", str(ptx)]
        subprocess.run(command, check=True, capture_output=True)
        assert "local_depot" not in ptx.read_text(), text


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
