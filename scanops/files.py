"""Files: reading what is trusted, writing in one step, sizes and digests.

A file is trusted when nobody but this user or root can have changed it. The check is made on the open descriptor, so
that nobody can replace the file between the check and the read, and reads are bounded and never wait: a symbolic link,
a FIFO or a device in place of a file is an OSError. A file is written whole or not at all.

setup.py imports this module to build the wheel, so it imports nothing but ``scanops.errors``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
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

from scanops.errors import UnusableFile

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNFOLLOWED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened_folder(root: Path, *names: str) -> Iterator[int]:
    """Open ``root``/``names[0]``/``names[1]``/... for a ``with`` block: its descriptor, for ``open_file``.

    Raises OSError where one of the folders is missing, no folder, or one whose contents others could have changed. The
    root may be reached by a symbolic link, the folders below it may not.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_trusted(handle)
        for name in names:
            above, handle = handle, os.open(name, _UNFOLLOWED | os.O_DIRECTORY, dir_fd=handle)
            os.close(above)
            _require_trusted(handle)
        yield handle
    finally:
        os.close(handle)


def open_file(path: Path | str, folder: int | None = None, *, trusted: bool = True, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading, unbuffered; ``folder`` is the descriptor that a relative path starts from.

    Raises OSError for a FIFO or a device, for a symbolic link unless ``follow``, and, if ``trusted``, for a file that
    others could have changed.
    """
    handle = os.open(path, _UNFOLLOWED & ~(os.O_NOFOLLOW if follow else 0), dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if trusted:
            _require_trusted(handle)
        return open(handle, "rb", buffering=0)  # noqa: PTH123
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path | str, limit: int, folder: int | None = None, *, trusted: bool = True) -> bytes:
    """Return the bytes of a file that ``open_file`` opens. Raises OSError where there are more than ``limit``."""
    with open_file(path, folder, trusted=trusted) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size} bytes, at most {limit} are read")
        data = file.read(size + 1)
        while len(data) < size and (more := file.read(size + 1 - len(data))):
            data += more
        return data


def _require_trusted(handle: int) -> None:
    facts = os.fstat(handle)
    if facts.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"owned by uid {facts.st_uid}")
    if facts.st_mode & OTHERS_WRITE:
        raise PermissionError(errno.EPERM, f"others may write it (mode {stat.S_IMODE(facts.st_mode):04o})")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that JSON text holds. Raises ValueError for anything else, however deeply it is nested."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} instead of an object")
    return value


def require_form(value: object, form: Any, where: str) -> None:
    """Raise ValueError that names the field unless a JSON value has a form.

    A form is a type; a pattern or a range that holds the value; a tuple of forms, one of which it has; None; a list of
    one form, that of every item; or an object: name -> form of a field that must be there, or pattern -> form of every
    field, whose names must match.
    """
    if isinstance(form, tuple):
        if any(_has_form(value, each) for each in form):
            return
        raise ValueError(f"{where} is {_brief(value)}")
    if isinstance(form, type):
        sound = type(value) is form
    elif isinstance(form, re.Pattern):
        sound = isinstance(value, str) and form.fullmatch(value) is not None
    elif isinstance(form, range):
        sound = type(value) is int and value in form
    else:
        sound = type(value) is type(form)
    if not sound:
        raise ValueError(f"{where} is {_brief(value)}")
    if isinstance(value, list) and isinstance(form, list):
        for number, item in enumerate(value):
            require_form(item, form[0], f"{where}[{number}]")
    elif isinstance(value, dict) and isinstance(form, dict):
        for name, each in form.items():
            if isinstance(name, str) and name not in value:
                raise ValueError(f"{name!r} of {where} is missing")
            for key in [name] if isinstance(name, str) else value:
                if not isinstance(name, str):
                    require_form(key, name, f"a name in {where}")
                require_form(value[key], each, f"{key!r} of {where}")


def _has_form(value: object, form: Any) -> bool:
    try:
        require_form(value, form, "")
    except ValueError:
        return False
    return True


def _brief(value: object) -> str:
    """Return a value for a message. Prints a beginning alone: the whole of a nested list may take gigabytes."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    return short.repr(value)[:80]


def write_owned(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file in one step, by one that only its owner may write, whatever the umask.

    Raises OSError where it cannot be written; then nothing is left behind.
    """
    with _draft(path, ".") as draft:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(handle, "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def secure(path: Path, *, sync: bool = True, follow: bool = False) -> None:
    """Take the permission to write from everybody but the owner, and wait until a file or folder is on disk.

    Raises OSError for a symbolic link, unless ``follow``: then for what it leads to.
    """
    handle = os.open(path, _UNFOLLOWED & ~os.O_NOFOLLOW if follow else _UNFOLLOWED)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & OTHERS_WRITE:  # not every file system knows chmod
            os.fchmod(handle, mode & ~OTHERS_WRITE)
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


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
    with _draft(place, f".{place.name}.") as draft:
        yield draft
        with contextlib.suppress(FileNotFoundError):  # there is none yet
            shutil.copymode(place, draft)


@contextmanager
def _draft(path: Path, prefix: str) -> Iterator[Path]:
    draft = path.with_name(f"{prefix}{uuid.uuid4().hex[:16]}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def reading(what: str) -> AbstractContextManager[None]:
    """Raise UnusableFile, asked to read ``what``, for every OSError of the ``with`` block."""
    hint = "name another file, or let its owner make it readable"
    return _asked(f"read {what}", "a file that this user may read", hint)


def writing(what: str) -> AbstractContextManager[None]:
    """Raise UnusableFile, asked to write ``what``, for every OSError of the ``with`` block."""
    allowed = "a file in a folder that exists and that this user may write, with room left"
    return _asked(f"write {what}", allowed, "name another file")


@contextmanager
def _asked(asked: str, allowed: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UnusableFile(asked, allowed=allowed, value=problem.strerror or str(problem), hint=hint) from problem


def write_text(path: Path, text: str, what: str) -> None:
    """Write ``text`` to a file in one step. Raises UnusableFile, asked to write ``what``."""
    with writing(what), replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")


def format_size(size: int) -> str:
    """Return bytes as people read them: ``"1.2 MB"``."""
    power = next((power for power in range(4) if size < 1000 ** (power + 1)), 4)
    return f"{size / 1000**power:.{min(power, 1)}f} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder``. Files that vanish meanwhile count as nothing."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{base}/{name}").st_size
    return total


TREES = ("codegen", "templates", "emulator")  # folders of the installed package
_SUFFIXES = (".py", ".j2", ".cuh", ".json", ".h", ".cpp")


def digest(folder: str | Path) -> str:
    """Return the SHA-256 over names and bytes of the sources in a folder and below, wherever that folder is."""
    total, root = hashlib.sha256(), Path(folder)
    for name in sorted(path.relative_to(root).as_posix() for path in _sources(root)):
        data = (root / name).read_bytes()
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()


def last_change(folder: str | Path) -> int:
    """Return the time at which a source in a folder or below was last written, in nanoseconds since the epoch."""
    return max(path.stat().st_mtime_ns for path in _sources(Path(folder)))


def _sources(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.suffix in _SUFFIXES)
