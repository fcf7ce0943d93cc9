"""From a store entry to machine code: verify, load with dlopen, declare the functions of a library."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scanops import environment
from scanops.build_request import CPU, CUBIN, HOST
from scanops.codegen.abi import ABI
from scanops.codegen.launch import Launch
from scanops.errors import BadSignature, BadStoreEntry
from scanops.files import open_file, opened_folder
from scanops.forks import import_late
from scanops.store.entry import Entry, difference, launch_of

if TYPE_CHECKING:
    from typing import BinaryIO

Functions = Mapping[str, tuple[Any, list[Any] | None]]  # name -> result type, argument types

_MISSING_RUNTIME = "libcudart.so"
_NO_MAPPING = ("cannot allocate memory", "cannot map zero-fill", "failed to map segment", "cannot create")
_OPENED = Path("/proc/self/fd")
_BOUND = os.RTLD_NOW | os.RTLD_LOCAL
_SERIAL = itertools.count(1)
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_HEADER_BYTES = 64
_CUDA = 190  # e_machine of a cubin
_TABLES, _TABLE_SIZES = 32, 52  # offsets in an ELF header of both tables' offsets, and of the sizes of headers
# Type, offset and size of a segment or section, as its header of 56 or 64 bytes has them
_PROGRAM, _SECTION = struct.Struct("<I4xQ16xQ16x"), struct.Struct("<4xI16xQQ24x")
_NO_BITS = 8  # sections that the file has no bytes of
_VERSION, _MACHINE, _FLAGS = 8, 18, 48  # offsets in an ELF header
_TARGET_BITS = {7: 0, 8: 8}  # EI_ABIVERSION -> the bit of e_flags where the number of the target begins
_MACHINES = {"x86_64": 62, "aarch64": 183}  # name of a processor, as uname has it -> e_machine
CONFIGURE = "scanops_emulator_configure"
_ABI: Functions = {"scanops_abi": (ctypes.c_int, [])}
_KERNEL: Functions = {
    "scanops_launch": (ctypes.c_int, None),
    "scanops_error_string": (ctypes.c_char_p, [ctypes.c_int]),
    **_ABI,
}
_FUNCTIONS: Mapping[str, Functions] = {  # of libraries that are no kernels of a GPU, by their target
    CPU: {**_KERNEL, CONFIGURE: (None, [ctypes.c_ulonglong, ctypes.c_int])},
    HOST: {**_ABI, "PyInit_scanops_native": (None, [])},
}


class Library(ctypes.CDLL):
    """The loaded library of a kernel. It is never closed."""

    launch: Launch  # of a library that has a kernel


class Cubin(NamedTuple):
    """A verified cubin, for the driver to load."""

    entry: Entry
    launch: Launch
    data: bytes


def load(entry: Entry) -> Library | Cubin:
    """Return the machine code of ``entry``, verified: a library that is opened, or a cubin, which needs no GPU yet.

    A library is verified before its first instruction runs. Raises BadStoreEntry for any mismatch and for a CUDA
    runtime that cannot be found, BadSignature for a kernel that nobody signed where SCANOPS_REQUIRE_SIGNED is set.
    """
    manifest = entry.manifest
    if entry.form != CUBIN and manifest.get("abi") != ABI:
        raise _bad(entry, f"ABI {ABI}", f"ABI {manifest.get('abi')} in its manifest")
    try:
        launch = launch_of(manifest)
    except (KeyError, TypeError, ValueError) as problem:
        raise _bad(entry, "a launch that this version knows", repr(problem)) from problem
    if entry.form == CUBIN:
        assert launch is not None
        return Cubin(entry, launch, read_cubin(entry))
    with _verified(entry, "kernel.so") as file:
        if wrong := machine_problem(os.pread(file.fileno(), entry.manifest["files"]["kernel.so"]["size"], 0), entry):
            raise _bad(entry, "a whole library for this processor", wrong)
        path = loadable(file.fileno(), entry.directory / "kernel.so")
        try:
            # Bound at load: a missing symbol shows here and not in the middle of a launch.
            library = Library(path, mode=_BOUND)
        except OSError as problem:
            library = _open_with_runtime(entry, path, str(problem))
    functions = _FUNCTIONS.get(manifest["target"], _KERNEL)
    try:
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as missing:
        raise _bad(entry, f"a library with {', '.join(functions)}", str(missing)) from None
    answered = library.scanops_abi()
    if answered != ABI:
        raise _bad(entry, f"scanops_abi() = {ABI}", f"scanops_abi() = {answered}")
    if launch is not None:
        library.launch = launch
    return library


def read_cubin(entry: Entry) -> bytes:
    """Return the cubin of ``entry``, verified. Raises what ``load`` raises."""
    with _verified(entry, "kernel.cubin") as file:
        file.seek(0)
        data = file.read()
    if wrong := machine_problem(data, entry):
        raise _bad(entry, f"a cubin for {entry.target}", wrong)
    return data


@contextlib.contextmanager
def _verified(entry: Entry, name: str) -> Iterator[BinaryIO]:
    """Open a file of machine code for a ``with`` block, after its size and SHA-256 were checked.

    Nobody but this user or root could have written the file, its folder or the root. What is loaded is what was
    checked: both go through this descriptor.
    """
    if entry.signer is None and environment.require_signed() is not None:
        raise make_unsigned_error(entry.directory.parent)
    try:
        folder = entry.directory
        with opened_folder(folder.parent, folder.name) as handle, open_file(name, handle) as file:
            if wrong := difference(name, file, entry.manifest["files"][name]):
                raise ValueError(wrong)
            yield file
    except OSError as problem:
        allowed = "a regular file that only this user or root can write"
        raise _bad(entry, allowed, f"{name}: {problem.strerror}") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise _bad(entry, "the size and SHA-256 in its manifest", str(problem)) from problem


def make_unsigned_error(root: Path) -> BadSignature:
    """Return the error for kernels of a store, which no key signs."""
    return BadSignature(
        f"use the store {root}",
        allowed="signed packs alone (SCANOPS_REQUIRE_SIGNED)",
        value="a store, whose kernels nobody signed",
        hint="name packs in SCANOPS_PACKS, or unset SCANOPS_REQUIRE_SIGNED",
    )


def machine_problem(data: bytes, entry: Entry) -> str | None:
    """Return why this processor, or the target of a cubin, cannot run the machine code ``data``; None when it can.

    Neither the loader nor the driver, which is not told a size, reads beyond the end of what passes. A cubin states its
    target in the layout of CUDA 12 for targets up to sm_90, or of CUDA 13 and of later targets.
    """
    name, machine = entry.library_path.name, os.uname().machine
    if data[:6] != _ELF or len(data) < _HEADER_BYTES:
        return f"{name}: no ELF file of 64 bits"
    (found,), (flags,) = struct.unpack_from("<H", data, _MACHINE), struct.unpack_from("<I", data, _FLAGS)
    expected = _CUDA if entry.form == CUBIN else _MACHINES.get(machine, found)
    if found != expected:
        return (
            f"{name}: built for ELF machine {found}, {'not for a GPU' if entry.form == CUBIN else f'this is {machine}'}"
        )
    if wrong := _find_truncation(data):
        return f"{name}: {wrong}"
    if entry.form != CUBIN:
        return None
    if data[_VERSION] not in _TARGET_BITS:
        return f"{name}: ELF ABI version {data[_VERSION]}, which this scanops does not know"
    built = f"sm_{flags >> _TARGET_BITS[data[_VERSION]] & 0xFF}"
    return None if built == entry.target.rstrip("af") else f"{name}: built for {built}, not for {entry.target}"


def _find_truncation(data: bytes) -> str | None:
    """Return which header of an ELF file leads beyond its end, or None. Both tables of headers have to be there."""
    tables = struct.unpack_from("<QQ", data, _TABLES)
    _, *sizes = struct.unpack_from("<HHHHH", data, _TABLE_SIZES)
    # (name, first byte, bytes of a header and how many there are, their layout, the type that takes no bytes)
    for what, begin, size, count, layout, empty in (
        ("program", tables[0], sizes[0], sizes[1], _PROGRAM, None),
        ("section", tables[1], sizes[2], sizes[3], _SECTION, _NO_BITS),
    ):
        if size != layout.size or count == 0 or begin + size * count > len(data):
            return f"its {what} headers lie beyond its end: {len(data)} bytes"
        for number in range(count):
            kind, offset, length = layout.unpack_from(data, begin + size * number)
            if kind != empty and offset + length > len(data):
                return f"{what} {number} lies beyond its end: {len(data)} bytes"
    return None


def loadable(handle: int, path: Path) -> str:
    """Return a name for dlopen that leads to the open file ``handle``, or ``path`` where there is no /proc.

    Replacing the file at ``path`` after it was read changes nothing.
    """
    if not _OPENED.is_dir():
        return str(path)
    # The loader recognises a library by the name it was opened with, and descriptor numbers are used again. So each
    # name is spelled in another way: a binary number whose digits are "/" and "./", which the path ignores.
    digits = "".join("./" if digit == "1" else "/" for digit in f"{next(_SERIAL):b}")
    return f"{_OPENED}/{digits}{handle}"


def _open_with_runtime(entry: Entry, path: str, words: str) -> Library:
    """Open a library after the CUDA runtime that it lacks, if the loader's ``words`` report that it lacks one."""
    soname = next((word.rstrip(":") for word in words.split() if word.startswith(_MISSING_RUNTIME)), None)
    if soname is None:
        if not any(phrase in words.lower() for phrase in _NO_MAPPING):
            raise _bad(entry, "a library this system can load", words)
        hint = "the kernel is sound: use fewer kernels in one process, or raise the limit "
        hint += "(sysctl vm.max_map_count, ulimit -v)"
        raise _bad(entry, "memory, and memory mappings, for another library", words, hint)
    toolchain = import_late("scanops.builders.toolchain")  # who has the runtime needs no compiler
    for runtime in toolchain.runtimes(soname):
        try:
            toolchain.ensure_runtime(soname, runtime)
            return Library(path, mode=_BOUND)
        except OSError as problem:
            words = f"{words}; {runtime}: {problem}"
    major = soname.removeprefix("libcudart.so.").partition(".")[0]
    allowed = f"a machine with the CUDA {major} runtime: {soname} loaded by torch, in a wheel or in a toolkit"
    wheel = f"nvidia-cuda-runtime{'-cu' + major if major in ('11', '12') else ''}"
    hint = f"install a torch built for CUDA {major}, or pip install {wheel}, or set CUDA_HOME to a CUDA {major} toolkit"
    raise _bad(entry, allowed, words, hint)


def _bad(entry: Entry, allowed: str, value: str, hint: str = "") -> BadStoreEntry:
    hint = hint or f"delete {entry.directory}; the next use builds the kernel again"
    return BadStoreEntry(f"load {entry.directory.name}", allowed=allowed, value=value, hint=hint)
