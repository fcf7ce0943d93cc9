"""From a store entry to functions that can be called: verify, load, declare."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.builders.request import ABI, HOST
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.storage.files import data_problem, loadable, open_unfollowed, processor_problem

if TYPE_CHECKING:
    from scanops.storage.entry import Entry

__all__ = ["ensure_runtime", "load"]

_MISSING_RUNTIME = "libcudart.so"
# Where the wheels that torch depends on put the runtime: CUDA 13 and later, then 12.
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_runtime/lib")


def load(entry: Entry) -> ctypes.CDLL:
    """The library of ``entry``, its functions declared.

    Checks ABI, size, SHA-256 and processor before the library's first instruction runs, and loads the very file it
    has read. Raises BadStoreEntry for any mismatch and for a CUDA runtime that cannot be found, BadSignature for a
    kernel that nobody signed where SCANOPS_REQUIRE_SIGNED is set: whatever found it, here it would begin to run.
    """
    if entry.signer is None and environment.require_signed() is not None:
        from scanops.packs.trust import local

        raise local(entry.directory.parent)
    recorded = entry.manifest["abi"]
    if recorded != ABI:
        raise _bad(entry, f"ABI {ABI}", f"ABI {recorded} in its manifest")
    try:
        file = open_unfollowed(entry.library_path)
    except OSError as problem:
        raise _bad(entry, "a file that is no symbolic link", f"kernel.so: {problem.strerror}") from problem
    with file:
        data = file.read()
        wrong = data_problem("kernel.so", data, entry.manifest["files"]["kernel.so"]) or processor_problem(data)
        if wrong:
            raise _bad(entry, "the size, SHA-256 and processor in its manifest", wrong)
        library = _open(entry, loadable(file.fileno(), entry.library_path))
    try:
        library.scanops_abi.restype = ctypes.c_int
        library.scanops_abi.argtypes = []
        if entry.manifest["target"] != HOST:
            _declare(library)
    except AttributeError as missing:
        raise _bad(
            entry, "scanops_abi, scanops_launch, scanops_workspace_bytes and scanops_error_string", str(missing)
        ) from missing
    answered = library.scanops_abi()
    if answered != ABI:
        raise _bad(entry, f"scanops_abi() = {ABI}", f"scanops_abi() = {answered}")
    return library


def _declare(library: ctypes.CDLL) -> None:
    """What a kernel's library exports besides."""
    library.scanops_launch.restype = ctypes.c_int
    library.scanops_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.scanops_workspace_bytes.restype = ctypes.c_longlong
    library.scanops_workspace_bytes.argtypes = [ctypes.c_longlong, ctypes.c_longlong]
    library.scanops_error_string.restype = ctypes.c_char_p
    library.scanops_error_string.argtypes = [ctypes.c_int]


def ensure_runtime(soname: str, path: Path) -> None:
    """Have the CUDA runtime ``soname`` in the process: as it is, as the system finds it, or from ``path``."""
    # A library that needs this soname is then satisfied whatever the search path is; a local scope is enough.
    try:
        ctypes.CDLL(soname)
    except OSError:
        ctypes.CDLL(str(path))


def _open(entry: Entry, path: str) -> ctypes.CDLL:
    # Bound at load: a missing symbol shows here and not in the middle of a launch.
    mode = os.RTLD_NOW | os.RTLD_LOCAL
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as problem:
        words = str(problem)
    soname = next((word.rstrip(":") for word in words.split() if word.startswith(_MISSING_RUNTIME)), None)
    if soname is None:
        raise _bad(entry, "a library this system can load", words)
    for runtime in _runtimes(soname):
        try:
            ensure_runtime(soname, runtime)
            return ctypes.CDLL(path, mode=mode)
        except OSError as problem:
            words = f"{words}; {runtime}: {problem}"
    major = soname.removeprefix("libcudart.so.").partition(".")[0]
    raise BadStoreEntry(
        f"load {entry.directory.name}",
        allowed=f"a machine with the CUDA {major} runtime: {soname} loaded by torch, in a wheel or in a toolkit",
        value=words,
        hint=f"install a torch built for CUDA {major}, or pip install nvidia-cuda-runtime"
        f"{'-cu' + major if major in ('11', '12') else ''}, or set CUDA_HOME to a CUDA {major} toolkit",
    )


def _runtimes(soname: str) -> list[Path]:
    """Files called ``soname`` in the wheels on sys.path and in the toolkit, in this order."""
    places = [Path(base) for base in sys.path if base]
    found = [match for base in places for folder in _WHEEL_FOLDERS for match in base.glob(f"{folder}/{soname}")]
    from scanops import toolchain

    try:
        toolkit = toolchain.find_nvcc()
    except BuildFailure:
        return found
    if toolkit.libraries and (toolkit.libraries / soname).is_file():
        found.append(toolkit.libraries / soname)
    return found


def _bad(entry: Entry, allowed: str, value: str) -> BadStoreEntry:
    return BadStoreEntry(
        f"load {entry.directory.name}",
        allowed=allowed,
        value=value,
        hint=f"delete {entry.directory}; the next use builds the kernel again",
    )
