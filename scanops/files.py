"""Files: their sizes and digests, and safe access.

Files that users name are written whole or not at all; files that are trusted are checked as they open. A file is
trusted when nobody but this user or root can have changed it. The check is made on the open descriptor, so that nobody
can replace the file between the check and the read, and reads are bounded and never wait: a symbolic link, a FIFO or a
device in place of a file is an OSError.

setup.py imports this module to build the wheel, so it imports nothing but ``scanops.errors``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import reprlib
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from scanops.errors import UnsupportedRequest, UnusableFile

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def exposure(facts: os.stat_result) -> str | None:
    """Return why somebody other than this user or root could have changed a file; None when nobody could."""
    if facts.st_uid not in (os.geteuid(), 0):
        return f"owned by uid {facts.st_uid}"
    if facts.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(facts.st_mode):
        return f"others may write it (mode {stat.S_IMODE(facts.st_mode):04o})"
    return None


@contextmanager
def opened_folder(path: Path | str, folder: int | None = None, *, follow: bool = False) -> Iterator[int]:
    """Open a trusted folder for the length of a ``with`` block: its descriptor, for ``open_trusted`` and the like.

    ``folder`` is the descriptor that a relative ``path`` starts from. Raises OSError where it is missing, no folder, a
    symbolic link (unless ``follow``), or where others could have changed what it lists.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags, dir_fd=folder)
    try:
        _require_trusted(os.fstat(handle))
        yield handle
    finally:
        os.close(handle)


def open_unfollowed(path: Path | str, folder: int | None = None) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for a symbolic link, a FIFO, a device; never waits."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return open(handle, "rb", buffering=0)  # noqa: PTH123
    except BaseException:
        os.close(handle)
        raise


def open_trusted(path: Path | str, folder: int | None = None) -> BinaryIO:
    """Open a regular file that only this user or root can have changed. Raises OSError for any other."""
    file = open_unfollowed(path, folder)
    try:
        _require_trusted(os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def read_trusted(path: Path | str, limit: int, folder: int | None = None) -> bytes:
    """Return the bytes of a trusted file of at most ``limit`` bytes. Raises OSError otherwise."""
    with open_trusted(path, folder) as file:
        return read_bounded(file, limit)


def read_bounded(file: BinaryIO, limit: int) -> bytes:
    """Return the bytes of an open, unbuffered file. Raises OSError where there are more than ``limit``."""
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise OSError(errno.EFBIG, f"{size} bytes, at most {limit} are read")
    data = file.read(size + 1)
    while len(data) < size and (more := file.read(size + 1 - len(data))):
        data += more
    return data


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that JSON text holds. Raises ValueError for anything else, however deeply it is nested."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} instead of an object")
    return value


def write_owned(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file in one step, by one that only its owner may write, whatever the umask.

    Raises OSError where it cannot be written; then nothing is left behind.
    """
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(handle, "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def make_owners(path: Path) -> None:
    """Take the permission to write from everybody but the owner: a store does not use what others may write."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS_WRITE:  # not every file system knows chmod
        path.chmod(mode & ~_OTHERS_WRITE)


def synced(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reading(what: str) -> AbstractContextManager[None]:
    """Raise UnusableFile, asked to read ``what``, for every OSError of the ``with`` block."""
    return _asked(
        f"read {what}", "a file that this user may read", "name another file, or let its owner make it readable"
    )


def writing(what: str) -> AbstractContextManager[None]:
    """Raise UnusableFile, asked to write ``what``, for every OSError of the ``with`` block."""
    allowed = "a file in a folder that exists and that this user may write, with room left"
    return _asked(f"write {what}", allowed, "name another file")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the name of a draft, which becomes ``path`` in one step at the end of the block. Raises OSError.

    A symbolic link is kept, and the file it leads to is replaced. What is no regular file, /dev/stdout for example, is
    written directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield draft
        with contextlib.suppress(FileNotFoundError):  # there is none yet
            shutil.copymode(place, draft)
        draft.replace(place)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, what: str) -> None:
    """Write ``text`` to a file in one step. Raises UnusableFile, asked to write ``what``."""
    with writing(what), replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def _asked(asked: str, allowed: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UnusableFile(asked, allowed=allowed, value=problem.strerror or str(problem), hint=hint) from problem


def _require_trusted(facts: os.stat_result) -> None:
    why = exposure(facts)
    if why:
        raise PermissionError(errno.EPERM, why)


_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("", 1000), ("IB", 1024))
}


def parse_size(text: str, *, asked: str) -> int | None:
    """Return the bytes that ``"5GB"``, ``"512 MiB"`` or ``"1000"`` mean, None for ``"none"``.

    Raises UnsupportedRequest for any other text; ``asked`` begins the message.
    """
    if text.strip().lower() == "none":
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    number = float(found[1]) if found else 0.0
    if found is None or unit is None or not math.isfinite(number * unit):
        raise UnsupportedRequest(
            f"{asked}: {reprlib.repr(text)}",
            allowed="a number of bytes, with KB, MB, GB, TB or KiB, MiB, GiB, TiB behind it, or none",
            value=reprlib.repr(text),
            hint="write 5GB, for example",
        )
    return int(number * unit)


def format_size(size: int) -> str:
    """Return bytes as people read them: ``"1.2 MB"``."""
    power = next((power for power in range(4) if size < 1000 ** (power + 1)), 4)
    return f"{size / 1000**power:.{min(power, 1)}f} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder``. Files that vanish meanwhile count as nothing."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                for item in listing:
                    if item.is_dir(follow_symlinks=False):
                        folders.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


TREES = ("codegen", "templates", "emulator")  # folders of the installed package
_SUFFIXES = (".py", ".j2", ".json", ".h", ".cpp")


def digest(folder: str | Path) -> str:
    """Return the SHA-256 over names and bytes of the sources in a folder and below, wherever that folder is."""
    total, root = hashlib.sha256(), Path(folder)
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in _SUFFIXES):
        data = (root / name).read_bytes()
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()
