"""Hand-written kernels in the shape of the generated ones, and compilers that count or misbehave."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scanops.artifact import ABI

needs_cxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("g++") is None, reason="needs nvcc")

ABI_SOURCE = f'extern "C" int scanops_abi() {{ return {ABI}; }}\n'

CPU_SOURCE = (
    ABI_SOURCE
    + """
extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }
extern "C" const char* scanops_error_string(int) { return "no error"; }
extern "C" int scanops_launch(const void*, void*) { return 0; }
"""
)

CUDA_SOURCE = """
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
struct Geometry { long long lines; };
__global__ void __launch_bounds__(512) scan_kernel(const float* x, float* out, const __grid_constant__ Geometry g) {
    __shared__ float warp_total[16];
    const float value = x[blockIdx.x * 512ll + threadIdx.x];
    if (threadIdx.x % 32 == 0) warp_total[threadIdx.x / 32] = value;
    __syncthreads();
    out[blockIdx.x * 512ll + threadIdx.x] = warp_total[0] + __shfl_up_sync(0xffffffffu, value, 1, 32) + g.lines;
}
#ifndef __CUDACC_RTC__
ABI_HERE
struct ScanArguments { const void* x; const void* mask; void* out; void* workspace; long long lines; };
extern "C" long long scanops_workspace_bytes(long long, long long) { return 0; }
extern "C" const char* scanops_error_string(int code) { return cudaGetErrorString((cudaError_t)code); }
extern "C" int scanops_launch(const ScanArguments* a, void* stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)a->lines);
    config.blockDim = dim3(512);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, scan_kernel, (const float*)a->x, (float*)a->out, Geometry{a->lines});
}
#endif
""".replace("ABI_HERE", ABI_SOURCE)


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def counting_cxx(folder: Path) -> tuple[Path, Path]:
    """A g++ that adds a line to a file for every source it compiles: (compiler, file)."""
    count = folder / "compiled"
    count.touch()
    body = f'for word; do [ "$word" = -c ] && echo x >> "{count}"; done\nexec g++ "$@"'
    return script(folder / "counting-g++", body), count


def needed(library: Path) -> list[str]:
    """The sonames a library asks the loader for."""
    done = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True)
    return [line.split("[")[1].rstrip("]") for line in done.stdout.splitlines() if "(NEEDED)" in line]


def python(code: str, *arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    """A new Python that runs ``code``, in a process group of its own; ``prefix``: the command that starts it."""
    import os

    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
