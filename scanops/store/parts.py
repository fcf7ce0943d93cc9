"""What several kernels are linked with, kept beside them: root/.parts/<name>, a SHA-256 and the bytes it is of.

A name says all that its bytes follow from. Whoever misses a part makes it, one process at a time; should there be
several writers, the last one wins, and all wrote the same. Nothing here can fail a build: a part that cannot be read or
kept is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from scanops.errors import BadStoreEntry
from scanops.store.lock import locked
from scanops.store.root import check_root, create_root

__all__ = ["made", "read", "write"]

_LOG = logging.getLogger("scanops")
_DIGEST_BYTES = hashlib.sha256().digest_size


def made(root: Path, name: str, make: Callable[[], bytes], seconds: float) -> bytes:
    """The part, from the store or made and kept; ``seconds`` is how long to wait for another process that makes it."""
    part = read(root, name)
    if part is not None:
        return part
    if not _prepared(root, name):
        return make()
    with locked(root / ".locks" / f"{name}.lock", f"make {name}", seconds, "making another one"):
        part = read(root, name)
        if part is None:
            part = make()
            write(root, name, part)
    return part


def read(root: Path, name: str) -> bytes | None:
    """The part, or None when it is absent or corrupt, or others may write to the root."""
    try:
        data = _path(root, name).read_bytes() if check_root(root) else b""
    except (OSError, BadStoreEntry):
        return None
    digest, part = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return part if hashlib.sha256(part).digest() == digest else None


def write(root: Path, name: str, part: bytes) -> None:
    """Keep ``part``, in one step. Does nothing where that cannot be done."""
    if not _prepared(root, name):
        return
    path = _path(root, name)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(hashlib.sha256(part).digest() + part)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as problem:
        _LOG.debug("%s is not kept in %s: %s", name, root, problem)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _prepared(root: Path, name: str) -> bool:
    """Whether there is a folder for parts."""
    try:
        create_root(root)
        check_root(root)
        for folder in (".parts", ".locks"):
            (root / folder).mkdir(mode=0o700, exist_ok=True)
    except (OSError, BadStoreEntry) as problem:
        _LOG.debug("%s is not kept in %s: %s", name, root, problem)
        return False
    return True


def _path(root: Path, name: str) -> Path:
    return root / ".parts" / name
