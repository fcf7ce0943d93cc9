"""The CUDA runtime that a kernel's library needs: finding it and loading it into the process."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from scanops.errors import BuildFailure

__all__ = ["ensure_runtime", "runtimes"]

# Folders of the runtime in the wheels that torch depends on: CUDA 13 and later, then 12.
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_runtime/lib")


def ensure_runtime(soname: str, path: Path) -> None:
    """Load the CUDA runtime ``soname`` unless it is loaded: where the system finds it, or from ``path``."""
    # A library that needs this soname is then satisfied whatever the search path is; a local scope is enough.
    try:
        ctypes.CDLL(soname)
    except OSError:
        ctypes.CDLL(str(path))


def runtimes(soname: str) -> list[Path]:
    """Return the files called ``soname`` in the wheels on sys.path and in the toolkit, in this order."""
    places = [Path(base) for base in sys.path if base]
    found = [match for base in places for folder in _WHEEL_FOLDERS for match in base.glob(f"{folder}/{soname}")]
    from scanops.builders import toolchain

    try:
        toolkit = toolchain.find_nvcc()
    except BuildFailure:
        return found
    if toolkit.runtime and toolkit.runtime.with_name(soname).is_file():
        found.append(toolkit.runtime.with_name(soname))
    return found
