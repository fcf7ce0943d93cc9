"""Build locks: one builder of a kernel over threads and processes.

    root/.locks/<16 hex of identity>.lock   held while a kernel is built

The operating system drops a lock when its holder dies. Locks save work and are not needed for correctness: publishing
is atomic, so a process that waits too long, or has a file system without locks, builds a private copy.

They are ``fcntl.flock`` and not the package filelock, of which torch accepts any version. With its versions 3.13 and
3.20, a forked child keeps a copy of the descriptor: when the holder was killed, its lock stayed taken until the child
ended, 5 s later in the measured case, and here, as with 4.3, it was free at once. Where there is no flock, filelock
falls back to files that outlive their holder, which versions before 4 cannot be told to refuse. It logs nothing while
it waits, and its import takes 30 ms, about as long as that of scanops.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from scanops.forks import reset_in_child

_LOG = logging.getLogger("scanops")

_POLL_SECONDS = 0.05
_LINE_SECONDS = 10.0  # between two lines about the same wait
_STALE_SECONDS = 3600.0  # age of what a dead builder has left
_TAKEN = (errno.EAGAIN, errno.EACCES)  # network file systems answer the second
_SUFFIXES = (".lock", ".second.lock")
_STAGE = re.compile(r"[0-9a-f]{16}-\d+-[0-9a-f]{8}|pruned-[0-9a-f]{32}")  # of a build; of what is being removed
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN: set[int] = set()  # descriptors of lock files that this process has opened


@contextlib.contextmanager
def hold_build_lock(folder: Path, identity: str, name: str, seconds: float) -> Iterator[None]:
    """Hold the build lock of ``identity`` for a ``with`` block.

    After ``seconds`` of waiting, for a holder that is stopped for example, the second lock of the same kernel is asked
    for: all who have waited in vain share one more build. After another ``seconds`` each goes on without a lock.
    """
    first, second = (folder / f"{identity[:16]}{suffix}" for suffix in _SUFFIXES)
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(hold_lock(first, f"build {name}", seconds, "asking for the second lock"))
        if held is False:  # where there are no locks, the second is none either
            stack.enter_context(hold_lock(second, f"build {name} a second time", seconds, "building a private copy"))
        yield


@contextlib.contextmanager
def hold_lock(path: Path, what: str, seconds: float, otherwise: str) -> Iterator[bool | None]:
    """Hold the lock file ``path`` for a ``with`` block, or go on without it after ``seconds``.

    Yields True with the lock, False after waiting in vain, None where the file system has no locks. ``what`` the holder
    does and what is done ``otherwise`` are for the log, which names the holder and its age.
    """
    handle, held = -1, None
    try:
        try:
            handle = os.open(path, _FLAGS | os.O_CREAT, 0o600)
            _OPEN.add(handle)
            held = _take_lock(handle) or _wait(handle, what, seconds, otherwise)
            if held:
                with contextlib.suppress(OSError):  # on a full disk the log names no holder
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        except OSError as problem:
            _LOG.warning("no lock in %s to %s (%s); going on without", path.parent, what, problem)
        yield held
    finally:
        if handle in _OPEN:  # not in a child, which has closed its copies
            if held:  # unlocked explicitly: a process forked without Python's knowledge may have a copy
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, 0)
                    fcntl.flock(handle, fcntl.LOCK_UN)
            _OPEN.discard(handle)
            os.close(handle)


def sweep(root: Path) -> None:
    """Remove what processes that died have left in .staging for an hour: builds whose locks nobody holds.

    A folder of the user's may be the store, and have a .staging of its own: only names that builds give count.
    """
    for stage in (root / ".staging").glob("*"):
        with contextlib.suppress(OSError):
            is_stale = abs(time.time() - stage.stat().st_mtime) > _STALE_SECONDS
            if is_stale and _STAGE.fullmatch(stage.name) and is_free(root / ".locks", stage.name[:16]):
                shutil.rmtree(stage, ignore_errors=True)


def is_free(folder: Path, prefix: str) -> bool:
    """Return whether nobody builds the kernel whose identity starts with ``prefix``, as far as locks can tell."""
    for suffix in _SUFFIXES:
        with contextlib.suppress(OSError):
            handle = os.open(folder / f"{prefix}{suffix}", _FLAGS)
            try:
                if not _take_lock(handle):
                    return False
            finally:
                os.close(handle)
    return True


def _wait(handle: int, what: str, seconds: float, otherwise: str) -> bool:
    """Return whether the lock was taken within ``seconds``."""
    began, lines = time.monotonic(), 0
    while not _take_lock(handle):
        waited = time.monotonic() - began
        if waited >= seconds:
            _LOG.warning("waited %g s for %s to %s (SCANOPS_LOCK_SECONDS); %s", seconds, _who(handle), what, otherwise)
            return False
        if waited >= lines * _LINE_SECONDS:
            _LOG.log(logging.WARNING if lines else logging.INFO, "waiting for %s to %s", _who(handle), what)
            lines += 1
        time.sleep(min(_POLL_SECONDS, seconds - waited))
    return True


def _who(handle: int) -> str:
    """Return the holder of a lock file, and for how long it has held it by the clock of the file system."""
    try:
        name, since = os.pread(handle, 200, 0).decode(errors="replace"), os.fstat(handle).st_mtime
    except OSError:
        name = ""
    return f"{name}, for {max(0.0, time.time() - since):.0f} s now," if name else "another process"


def _take_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _TAKEN:
            return False
        raise
    return True


@reset_in_child
def _close_copies() -> None:
    """Close the child's copies of the descriptors: they would hold the locks after the holder has died."""
    while _OPEN:
        os.close(_OPEN.pop())
