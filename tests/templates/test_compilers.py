"""Level 5: the compilers accept every golden without a word, and it stays in its registers. No GPU is needed."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from scanops.builders.toolchain import CudaToolkit, find_nvcc
from scanops.codegen import generate
from scanops.errors import BuildFailure
from tests.templates.nvrtc import Nvrtc
from tests.templates.test_determinism import body_below_banner
from tools.golden import GOLDEN, Golden

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
OLD = "sm_70"  # which CUDA 13 no longer knows, and NVRTC 12 does
STRICT = ("-std=c++17", "-O3", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror", "-Xptxas=-v,-warn-spills")

# One report of ptxas: the target, the stack frame and the spills of one kernel.
REPORT = re.compile(
    r"Compiling entry function '\w+' for '(sm_\d+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
    re.DOTALL,
)

KERNELS = pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)


@pytest.fixture(scope="module")
def nvcc() -> CudaToolkit:
    try:
        return find_nvcc()
    except BuildFailure as missing:
        pytest.skip(f"no nvcc: {missing.value}")


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    found = Nvrtc.find()
    if found is None:
        pytest.skip("no NVRTC 12; pip install nvidia-cuda-nvrtc-cu12")
    return found


def in_registers(log: str, targets: Sequence[str]) -> None:
    """Hold ptxas's report to a kernel for each of the targets, none of which has a stack frame or spills."""
    reports = REPORT.findall(log)
    assert sorted(target for target, *_ in reports) == sorted(targets), log
    assert {numbers for _, *numbers in map(tuple, reports) for numbers in numbers} == {"0"}, log


# Reading CUDA's headers takes nvcc longer than a kernel does, so that several kernels are one text for it.
TOGETHER = 13
# What generated kernels and exported ones define.
HOST_FUNCTIONS = ("scanops_abi", "scanops_error_string", "scanops_workspace_bytes", "scanops_launch", "scan_launch")


def together(texts: list[str]) -> str:
    """One text of several, each in a namespace of its own; the C functions of each get names of their own."""
    parts = ["#include <cuda_runtime.h>"]
    for number, text in enumerate(texts):
        names = [f"#undef {name}\n#define {name} {name}_{number}" for name in HOST_FUNCTIONS]
        parts += [*names, f"namespace golden_{number} {{", text, "}"]
    return "\n".join(parts)


@pytest.mark.parametrize(
    "rows", [GOLDEN[at : at + TOGETHER] for at in range(0, len(GOLDEN), TOGETHER)], ids=lambda rows: rows[0].slug
)
def test_nvcc(rows: Sequence[Golden], nvcc: CudaToolkit, tmp_path: Path) -> None:
    """Device and host code, warnings as errors. Targets with the same bodies are one call of nvcc."""
    unknown = set(TARGETS) - set(nvcc.targets)
    if unknown:
        pytest.skip(f"nvcc {nvcc.version} does not know {', '.join(sorted(unknown))}")
    texts: dict[str, list[str]] = defaultdict(list)
    for target in TARGETS:
        texts[together([body_below_banner(generate(row.spec, target)) for row in rows])].append(target)
    source = tmp_path / "kernels.cu"
    for text, targets in texts.items():
        source.write_text(text)
        numbers = [target.removeprefix("sm_") for target in targets]
        gencodes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
        command = [str(nvcc.nvcc), "-c", *STRICT, *gencodes, str(source), "-o", str(tmp_path / "kernels.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        assert done.returncode == 0, log
        assert "warning" not in log.lower(), log
        in_registers(log, targets * len(rows))


@KERNELS
def test_nvrtc(row: Golden, nvrtc: Nvrtc) -> None:
    """The oldest target, through the compiler that has no host side."""
    log = nvrtc.compile(generate(row.spec, OLD), f"{row.slug}.cu", OLD)
    assert "warning" not in log.lower(), log
    in_registers(log, [OLD])


def test_nvrtc_refuses_nonsense(nvrtc: Nvrtc) -> None:
    """The test above would pass if the log were never read."""
    with pytest.raises(AssertionError, match="undefined"):
        nvrtc.compile("__global__ void scan_kernel() { undefined(); }", "nonsense.cu", OLD)
    assert "warning" in nvrtc.compile("__global__ void scan_kernel() { int unused; }", "warned.cu", OLD)
