"""From a store entry to functions that can be called: verify, load, declare."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from scanops import environment
from scanops.artifact import ABI, HOST
from scanops.builders.runtime import ensure_runtime, runtimes
from scanops.errors import BadStoreEntry
from scanops.store.files import data_problem, loadable, open_unfollowed, processor_problem

if TYPE_CHECKING:
    from scanops.store.entry import Entry

__all__ = ["load"]

_MISSING_RUNTIME = "libcudart.so"


def load(entry: Entry) -> ctypes.CDLL:
    """The library of ``entry``, its functions declared.

    Checks ABI, size, SHA-256 and processor before the library's first instruction runs, and loads the very file it
    has read. Raises BadStoreEntry for any mismatch and for a CUDA runtime that cannot be found, BadSignature for a
    kernel that nobody signed where SCANOPS_REQUIRE_SIGNED is set: whatever found it, here it would begin to run.
    """
    if entry.signer is None and environment.require_signed() is not None:
        from scanops.store.trust import local

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
    for runtime in runtimes(soname):
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


def _bad(entry: Entry, allowed: str, value: str) -> BadStoreEntry:
    return BadStoreEntry(
        f"load {entry.directory.name}",
        allowed=allowed,
        value=value,
        hint=f"delete {entry.directory}; the next use builds the kernel again",
    )
