"""A file of an entry: opened, held against its manifest, and loaded as it was read."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["data_problem", "file_problem", "loadable", "make_owners", "open_unfollowed", "processor_problem"]
__all__ += ["write_owned"]

_OPENED = Path("/proc/self/fd")
_SERIAL = itertools.count(1)
_ELF = b"\x7fELF"
_MACHINE = slice(18, 20)  # e_machine of an ELF header
_MACHINES = {"x86_64": 62, "aarch64": 183}  # uname's name of a processor -> e_machine


def open_unfollowed(path: Path) -> BinaryIO:
    """The file itself. Raises OSError where it is missing or a symbolic link; does not wait for who writes a pipe."""
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123


def make_owners(path: Path) -> None:
    """Let nobody but the owner write a file or a folder, whatever the umask was: in a pack it would not be used."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:  # not every file system knows chmod
        path.chmod(mode & ~0o022)


def write_owned(path: Path, data: bytes) -> None:
    """Replace a file in one step, by one that only its owner may ever write, whatever the umask. Raises OSError."""
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:  # noqa: PTH123
            file.write(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def file_problem(path: Path, expected: Mapping[str, Any]) -> str | None:
    """Say how a file differs from the expected size and SHA-256; None if it does not. Needs 1 MB for any file."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_unfollowed(path) as file:
            while size <= expected["size"] and (chunk := file.read(2**20)):
                digest.update(chunk)
                size += len(chunk)
    except OSError as problem:
        return f"{path.name}: {problem.strerror}"
    return _difference(path.name, size, digest.hexdigest(), expected)


def data_problem(name: str, data: bytes, expected: Mapping[str, Any]) -> str | None:
    """Say how the bytes of a file differ from the expected size and SHA-256; None if they do not."""
    return _difference(name, len(data), hashlib.sha256(data).hexdigest(), expected)


def _difference(name: str, size: int, digest: str, expected: Mapping[str, Any]) -> str | None:
    if size != expected["size"]:
        return f"{name}: {size} bytes instead of {expected['size']}"
    return None if digest == expected["sha256"] else f"{name}: SHA-256 differs"


def processor_problem(library: bytes) -> str | None:
    """Why this processor cannot run a library, None when it can or is not known here."""
    if library[:4] != _ELF:
        return "kernel.so: no ELF file"
    expected = _MACHINES.get(os.uname().machine)
    found = int.from_bytes(library[_MACHINE], sys.byteorder)
    if expected is None or found == expected:
        return None
    built = next((name for name, number in _MACHINES.items() if number == found), f"ELF machine {found}")
    return f"kernel.so: built for {built}, this is {os.uname().machine}"


def loadable(handle: int, path: Path) -> str:
    """A name for dlopen that leads to the file opened as ``handle`` and to no other; ``path`` where there is no /proc.

    Whoever replaces the file at ``path`` after it was read changes nothing.
    """
    if not _OPENED.is_dir():
        return str(path)
    # The loader knows a library by the name it was opened with, and handles are used again: each name is spelled in
    # another way, a binary number whose digits are "/" and "./", which the path does not notice.
    digits = "".join("./" if digit == "1" else "/" for digit in f"{next(_SERIAL):b}")
    return f"{_OPENED}/{digits}{handle}"
