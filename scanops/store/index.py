"""A small index from a caller's key to an identity, so that a new process need not render to find its kernel.

A record says which key it is for, by a digest over all three: one that was altered, or put where another belongs,
would lead to a kernel that is sound and computes something else.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanops.store.files import data_problem

__all__ = ["read", "record", "write"]

_IDENTITY = re.compile(r"[0-9a-f]{64}")


def read(root: Path, key: str, listed: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[str, str] | None:
    """(identity, folder name) for ``key``. A missing, corrupt or dangling record is a miss.

    With ``listed``, path below the root -> size and SHA-256, so is a record that is not listed or differs.
    """
    try:
        path = _path(root, key)
        data = path.read_bytes()
        if listed is not None and data_problem("record", data, listed[path.relative_to(root).as_posix()]):
            return None
        fields = json.loads(data)
        identity, name = fields["identity"], fields["directory"]
        # The name becomes a path: nothing but a folder of this identity directly below the root will do.
        sound = _IDENTITY.fullmatch(identity) and name.endswith("-" + identity[:16]) and "/" not in name
        sound = sound and data == record(key, identity, name)
        return (identity, name) if sound and (root / name).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def record(key: str, identity: str, name: str) -> bytes:
    """What is kept for ``key``."""
    digest = hashlib.sha256(json.dumps([key, identity, name]).encode()).hexdigest()
    return (json.dumps({"identity": identity, "directory": name, "sha256": digest}) + "\n").encode()


def write(root: Path, key: str, identity: str, name: str) -> None:
    """Record ``key``, in one step. Raises OSError where the root cannot be written."""
    path = _path(root, key)
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        draft.write_bytes(record(key, identity, name))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _path(root: Path, key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()
    return root / "index" / name[:2] / f"{name}.json"
