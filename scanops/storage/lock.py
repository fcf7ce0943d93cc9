"""One builder at a time for each kernel, over threads and processes.

The operating system drops the lock when its holder dies. It saves work and guards nothing: publishing is safe
without it, so whoever waits too long, or has a file system without locks, builds privately.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["building", "is_free"]

_LOG = logging.getLogger("scanops")


@contextlib.contextmanager
def building(folder: Path, identity: str, name: str, seconds: float) -> Iterator[None]:
    """Hold the lock of ``identity`` for a ``with`` block; after ``seconds`` of waiting, go on without it."""
    lock = _lock(folder, identity[:16])
    holder = folder / f"{identity[:16]}.holder"
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        _LOG.warning(
            "waited %g s for %s to build %s (SCANOPS_LOCK_SECONDS); building a private copy",
            seconds,
            _who(holder),
            name,
        )
        yield
        return
    except (OSError, NotImplementedError) as problem:
        _LOG.warning("no lock in %s (%s); building %s without", folder, problem, name)
        yield
        return
    try:
        with contextlib.suppress(OSError):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def is_free(folder: Path, prefix: str) -> bool:
    """Whether nobody builds the kernel whose identity starts with ``prefix``."""
    lock = _lock(folder, prefix)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError, NotImplementedError):
        return False
    lock.release()
    return True


def _lock(folder: Path, prefix: str) -> FileLock:
    return FileLock(folder / f"{prefix}.lock", mode=0o600)


def _who(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"
