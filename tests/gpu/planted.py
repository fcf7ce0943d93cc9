"""A kernel with one fault of each kind that compute-sanitizer's tools look for, to see that they do.

python -m tests.gpu.planted {memcheck,racecheck,initcheck,synccheck,none}
"""

from __future__ import annotations

import ctypes
import sys

import torch

from scanops.artifact import ABI, BuildRequest
from scanops.runtime.kernels import default_target
from scanops.store.library import load
from scanops.store.store import Store

FAULTS = ("none", "memcheck", "racecheck", "initcheck", "synccheck")
THREADS = 64  # two warps: within one, a race would be hidden by running in step

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
extern "C" int scanops_launch(const Arguments* a, void* stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(64);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, planted, a->x, a->y, a->fault);
}
""".replace("ABI", str(ABI))


class Arguments(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("fault", ctypes.c_int))


def main(fault: str) -> int:
    """Exit status: 0; 1 when the launch is refused. What a fault does without the tool is not defined."""
    entry = Store().get_or_build(BuildRequest(name="planted", source=SOURCE, target=default_target()))
    x, y = (torch.empty(THREADS, dtype=torch.int32, device="cuda") for _ in range(2))
    arguments = Arguments(x.data_ptr(), y.data_ptr(), FAULTS.index(fault))
    code: int = load(entry).scanops_launch(ctypes.byref(arguments), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
