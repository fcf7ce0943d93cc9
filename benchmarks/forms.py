"""Calls by one form of kernel, a library or a cubin; without a GPU, a driver that does nothing takes the cubins."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from scanops.runtime import call_cache, driver, kernels, launcher

BUILDERS = {"library": "load_inline", "cubin": "nvrtc"}
DRIVER = """
int cuDriverGetVersion(int* version) { return *version = 12000, 0; }
int cuLibraryGetKernel(void** kernel) { return *kernel = "a kernel", 0; }
""" + "".join(
    f"int {name}() {{ return 0; }}\n"
    for name in (
        *("cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain"),
        *("cuGetErrorName", "cuGetErrorString", "cuKernelGetFunction", "cuKernelSetAttribute"),
        *("cuLibraryLoadData", "cuLaunchKernel"),
    )
)
PRETENDED = launcher.Device(target="sm_90", multiprocessors=132)  # the GPU of cubins where there is none


@contextmanager
def forms(form: str, store: str | None = None, device: launcher.Device = PRETENDED) -> Iterator[dict[str, str]]:
    """Let calls in the block use one form of kernel, looked up and built again; yield the environment for it.

    ``device``: the GPU of cubins where there is none.
    """
    chosen = {"SCANOPS_BUILDER": BUILDERS[form], **({"SCANOPS_STORE": store} if store else {})}
    with ExitStack() as block:
        block.callback(_forget)
        block.enter_context(patch.dict(os.environ, chosen))
        if form == "cubin" and not torch.cuda.is_available():
            block.enter_context(patch.object(driver, "PATH", no_driver()))
            block.enter_context(patch.object(call_cache, "device_of", lambda tensor: device))
        _forget()
        yield chosen


def _forget() -> None:
    kernels._KERNELS.clear()
    call_cache.forget()


@functools.cache
def no_driver() -> str:
    """Return the path of a CUDA driver whose functions return 0 and do nothing else."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="scanops-driver-"))
    library = Path(_FOLDERS[0].name, "libcuda.so.1")
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-w", "-O2", "-", "-o", str(library)]
    subprocess.run(command, input=DRIVER, text=True, check=True)
    return str(library)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
