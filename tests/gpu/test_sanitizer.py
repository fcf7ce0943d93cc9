"""compute-sanitizer over every strategy: memory, shared memory between barriers, initialisation, barriers.

``python -m tests.gpu.test_sanitizer [memcheck|racecheck|initcheck|synccheck]`` is what it watches. Without a word,
every strategy in each direction and variant, held to the sequential scan, and a kernel without a fault. With one, that
kernel with the fault that this tool looks for, to see that it does.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.common import build_kernels
from scanops.build_request import BuildRequest
from scanops.codegen.abi import ABI
from scanops.runtime.kernels import default_target
from scanops.store import Store
from scanops.store.library import load
from tests.numbers import matrix
from tests.numbers.matrix import ROUTES, Cell

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# (operator, inclusive or exclusive, mask, carry, segments): a state of several fields travels through shared memory as
# a struct; masks and gates take turns in being broadcast; carries are read and written by lines.
VARIANTS = (
    ("linear", "inclusive", "number", "none", "none"),
    ("sum", "exclusive", "number", "none", "none"),
    ("linear", "inclusive", "none", "both", "flags"),
    ("linear", "exclusive", "bool", "none", "none"),
    ("cummax", "exclusive", "none", "initial_of_lines", "int32"),
    ("linear", "inclusive", "none", "final", "int64"),
)


def cells() -> list[Cell]:
    """Return each route with each variant, which begin with another one each time, so that directions alternate."""
    fixed = [name for name, route in ROUTES.items() if not route.generic]
    pairs = [
        (route, variant)
        for place, route in enumerate(fixed)
        for variant in itertools.islice(itertools.cycle(VARIANTS), place % 2, place % 2 + len(VARIANTS))
    ]
    return [
        Cell(
            route=route,
            op=op,
            dtype="float32",
            reverse=("forward", "reverse")[number % 2],
            exclusive=exclusive,
            mask=mask,
            carry=carry,
            segments=segments,
            layout="dense",
        )
        for number, (route, (op, exclusive, mask, carry, segments)) in enumerate(pairs)
    ]


def strategies() -> int:
    """Run all cells, and return how many results are wrong."""
    equal, wanted = 0, cells()
    with matrix.small_gpu():
        operands = [matrix.operands(cell) for cell in wanted]
        on_gpu = [matrix.on_device(given, "cuda") for given in operands]
        # On all cores, where calls would build one after the other.
        failed = build_kernels(map(matrix.key_of, wanted, on_gpu))
        assert not failed, failed
        for cell, given in zip(wanted, operands, strict=True):
            found = matrix.run(cell, matrix.on_device(given, "cuda"))
            right = all(torch.equal(y.cpu(), z) for y, z in zip(found, matrix.expected(cell, given), strict=True))
            equal += right
            print(f"{matrix.strategy_in(cell):10} {cell} {'equal' if right else 'WRONG'}", flush=True)
    print(f"{equal} of {len(wanted)} scans are equal")
    return len(wanted) - equal


SOURCE = """
#include <cuda_runtime.h>
struct Arguments { const int* x; int* y; int fault; };

__global__ void planted(const int* x, int* y, int fault) {
    __shared__ int passed[64];
    const int thread = threadIdx.x;
    passed[thread] = thread;
    if (fault != 2) __syncthreads();  // racecheck: the other warp's item is read without waiting for it
    int value = passed[thread ^ 32];
    if (fault == 3) value += x[thread];  // initcheck: nobody has written x
    if (fault == 4 && thread % 32 < 16) __syncthreads();  // synccheck: half of each warp does not come
    y[fault == 1 ? thread + 64 : thread] = value;  // memcheck: y has 64 items
}

extern "C" int scanops_abi() { return ABI; }
extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }
extern "C" int scanops_launch(Arguments* a, void* stream) {
    void* parameters[] = {&a->x, &a->y, &a->fault};
    // two warps: within one, a race would be hidden by running in step
    return cudaLaunchKernel(planted, 1, 64, parameters, 0, (cudaStream_t)stream);
}
""".replace("ABI", str(ABI))


class Arguments(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("fault", ctypes.c_int))


def planted(fault: int) -> int:
    """Launch the kernel with one fault, or 0 for none, and return the status."""
    entry = Store().get_or_build(BuildRequest(name="planted", source=SOURCE, target=default_target()))
    x, y = (torch.empty(64, dtype=torch.int32, device="cuda") for _ in range(2))
    arguments = Arguments(x.data_ptr(), y.data_ptr(), fault)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code: int = load(entry).scanops_launch(ctypes.byref(arguments), stream)
    torch.cuda.synchronize()
    return code


# ---- the tests, which run this file under each tool

FOUND_EXIT = 9

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH"),
]


def sanitized(*words: str, tool: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program from the root of the checkout, under a tool or plain."""
    command = [sys.executable, "-m", "tests.gpu.test_sanitizer", *words]
    changes = {}
    if tool is not None:
        # A driver call that torch makes in order to see it fail is not a finding; a kernel's fault always is.
        options = ["--tool", tool, "--error-exitcode", str(FOUND_EXIT), "--report-api-errors", "no"]
        command = ["compute-sanitizer", *options, *command]
        # One cudaMalloc a tensor, so that its end is an end; and nothing is built here: it was, in a plain run.
        changes = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "SCANOPS_NVCC": "/nowhere/nvcc"}
    return subprocess.run(
        command,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=900,
        check=False,
    )


def counted(output: str) -> int:
    """Return what the tool counted. One that did not get as far as its summary has found nothing out."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
    assert len(found) == 1, output[-4000:]
    return int(found[0])


@pytest.fixture(scope="module")
def built() -> None:
    """Build all kernels into the store, and see that they are right without a tool."""
    done = sanitized()
    assert done.returncode == 0, done.stdout[-4000:]


# A tool's two runs follow one another, since one takes minutes and the other seconds.
@pytest.mark.parametrize(("tool", "fault"), [(tool, fault) for tool in TOOLS for fault in (False, True)])
def test_strategies_are_clean_and_faults_are_found(tool: str, fault: bool, built: None) -> None:
    done = sanitized(*[tool] * fault, tool=tool)
    found = counted(done.stdout)
    if fault:
        assert "planted" in done.stdout  # the kernel's name, in the report
        assert found > 0 and done.returncode == FOUND_EXIT, done.stdout[-4000:]
    else:
        assert f"{len(cells())} of {len(cells())} scans are equal" in done.stdout, done.stdout[-4000:]
        assert found == 0 and done.returncode == 0, done.stdout[-4000:]


if __name__ == "__main__":
    sys.exit(bool(planted(1 + TOOLS.index(sys.argv[1])) if sys.argv[1:] else strategies() + planted(0)))
