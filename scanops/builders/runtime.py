"""The CUDA runtime that a kernel's library needs: where it lies, and having it in the process."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from scanops.errors import BuildFailure

__all__ = ["ensure_runtime", "runtimes"]

# Where the wheels that torch depends on put the runtime: CUDA 13 and later, then 12.
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_runtime/lib")


def ensure_runtime(soname: str, path: Path) -> None:
    """Have the CUDA runtime ``soname`` in the process: as it is, as the system finds it, or from ``path``."""
    # A library that needs this soname is then satisfied whatever the search path is; a local scope is enough.
    try:
        ctypes.CDLL(soname)
    except OSError:
        ctypes.CDLL(str(path))


def runtimes(soname: str) -> list[Path]:
    """Files called ``soname`` in the wheels on sys.path and in the toolkit, in this order."""
    places = [Path(base) for base in sys.path if base]
    found = [match for base in places for folder in _WHEEL_FOLDERS for match in base.glob(f"{folder}/{soname}")]
    from scanops.builders import toolchain

    try:
        toolkit = toolchain.find_nvcc()
    except BuildFailure:
        return found
    if toolkit.libraries and (toolkit.libraries / soname).is_file():
        found.append(toolkit.libraries / soname)
    return found
