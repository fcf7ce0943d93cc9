"""What compute-sanitizer watches: ``python -m tests.gpu.sanitized [memcheck|racecheck|initcheck|synccheck]``.

Without a word, every strategy in each direction and variant, held to the sequential scan, and a kernel without a fault.
With one, that kernel with the fault that this tool looks for, to see that it does.
"""

from __future__ import annotations

import ctypes
import itertools
import sys

import torch

from benchmarks.common import build_kernels
from scanops.artifact import ABI, BuildRequest
from scanops.runtime.kernels import default_target
from scanops.store.library import load
from scanops.store.store import Store
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
            route=route, op=op, dtype="float32", reverse=("forward", "reverse")[number % 2], exclusive=exclusive,
            mask=mask, carry=carry, segments=segments, layout="dense",
        )
        for number, (route, (op, exclusive, mask, carry, segments)) in enumerate(pairs)
    ]  # fmt: skip


def strategies() -> int:
    """Run all cells, and return how many results are wrong."""
    equal, wanted = 0, cells()
    with matrix.small_gpu():
        operands = [matrix.operands(cell) for cell in wanted]
        kernels = [matrix.wanted(cell, given) for cell, given in zip(wanted, operands, strict=True)]
        failed = build_kernels(kernels, default_target())  # on all cores, where calls would build one after the other
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
extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }
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
    code: int = load(entry).scanops_launch(ctypes.byref(arguments), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return code


if __name__ == "__main__":
    sys.exit(bool(planted(1 + TOOLS.index(sys.argv[1])) if sys.argv[1:] else strategies() + planted(0)))
