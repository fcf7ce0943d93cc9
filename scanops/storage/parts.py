"""What several kernels are linked with, kept beside them: root/.parts/<name>, a SHA-256 and the bytes it is of.

A name says all that its bytes follow from. Whoever misses a part makes it; the last of several writers wins, and all
wrote the same. Nothing here can fail a build: a part that cannot be read or kept is made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from pathlib import Path

from scanops.errors import BadStoreEntry
from scanops.storage.root import check_root, create_root

__all__ = ["read", "write"]

_LOG = logging.getLogger("scanops")
_DIGEST_BYTES = hashlib.sha256().digest_size


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
    path = _path(root, name)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        create_root(root)
        check_root(root)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(hashlib.sha256(part).digest() + part)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except (OSError, BadStoreEntry) as problem:
        _LOG.debug("%s is not kept in %s: %s", name, root, problem)


def _path(root: Path, name: str) -> Path:
    return root / ".parts" / name
