"""One builder at a time for each kernel, over threads and processes.

The operating system drops the lock when its holder dies. It saves work and guards nothing: publishing is safe
without it, so whoever waits too long, or has a file system without locks, builds privately.

flock itself, with no library above it: where there is no flock, those go over to files that outlive their holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["building", "is_free", "locked"]

_LOG = logging.getLogger("scanops")
_POLL_SECONDS = 0.05
_LINE_SECONDS = 10.0  # between two lines about the same wait
_TAKEN = (errno.EAGAIN, errno.EACCES)  # network file systems answer the second
_OPEN: set[int] = set()  # handles of lock files that this process has opened


def building(folder: Path, identity: str, name: str, seconds: float) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of ``identity`` for a ``with`` block; after ``seconds`` of waiting, go on without it."""
    return locked(folder / f"{identity[:16]}.lock", f"build {name}", seconds, "building a private copy")


@contextlib.contextmanager
def locked(path: Path, what: str, seconds: float, otherwise: str) -> Iterator[None]:
    """Hold the lock file ``path`` for a ``with`` block, or go on without it: after ``seconds``, or where it cannot be.

    ``what`` the holder does and what is done ``otherwise`` are for the log, which names the holder and its age.
    """
    handle = None
    try:
        handle = _open(path)
        held = _wait(handle, what, seconds, otherwise)
    except OSError as problem:
        _LOG.warning("no lock in %s to %s (%s); %s", path.parent, what, problem, otherwise)
        held = False
    except BaseException:
        _close(handle)
        raise
    try:
        yield
    finally:
        if held:
            _unlock(handle)
        _close(handle)


def is_free(folder: Path, prefix: str) -> bool:
    """Whether nobody builds the kernel whose identity starts with ``prefix``, as far as there are locks to tell."""
    handle = None
    try:
        handle = _open(folder / f"{prefix}.lock")
        return _taken(handle)
    except OSError:
        return True
    finally:
        _close(handle)


def _wait(handle: int, what: str, seconds: float, otherwise: str) -> bool:
    """Whether the lock was taken within ``seconds``."""
    began, lines = time.monotonic(), 0
    while not _taken(handle):
        waited = time.monotonic() - began
        if waited >= seconds:
            _LOG.warning("waited %g s for %s to %s (SCANOPS_LOCK_SECONDS); %s", seconds, _who(handle), what, otherwise)
            return False
        if waited >= lines * _LINE_SECONDS:
            _LOG.log(logging.WARNING if lines else logging.INFO, "waiting for %s to %s", _who(handle), what)
            lines += 1
        time.sleep(min(_POLL_SECONDS, seconds - waited))
    with contextlib.suppress(OSError):  # a full disk: whoever waits is told of no name
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
    return True


def _who(handle: int) -> str:
    """The holder, and for how long it has been one by the clock of the file system."""
    try:
        name, since = os.pread(handle, 200, 0).decode(errors="replace"), os.fstat(handle).st_mtime
    except OSError:
        name = ""
    return f"{name}, at it for {max(0.0, time.time() - since):.0f} s," if name else "another process"


def _open(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    _OPEN.add(handle)
    return handle


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _TAKEN:
            return False
        raise
    return True


def _unlock(handle: int | None) -> None:
    # Said, and not left to closing: a process that was forked without Python's knowledge may have a copy.
    if handle in _OPEN:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            fcntl.flock(handle, fcntl.LOCK_UN)


def _close(handle: int | None) -> None:
    if handle in _OPEN:
        _OPEN.discard(handle)
        os.close(handle)


def _after_fork() -> None:
    """A lock is its process's own: copies of the handle would hold it after its holder has died."""
    while _OPEN:
        os.close(_OPEN.pop())


os.register_at_fork(after_in_child=_after_fork)
