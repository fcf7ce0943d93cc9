"""A small index from a caller's key to an identity, so that a new process need not render to find its kernel."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from pathlib import Path

__all__ = ["read", "write"]

_IDENTITY = re.compile(r"[0-9a-f]{64}")


def read(root: Path, key: str) -> tuple[str, str] | None:
    """(identity, folder name) for ``key``. A missing, corrupt or dangling record is a miss."""
    try:
        record = json.loads(_path(root, key).read_bytes())
        identity, name = record["identity"], record["directory"]
        # The name becomes a path: nothing but a folder of this identity directly below the root will do.
        sound = _IDENTITY.fullmatch(identity) and name.endswith("-" + identity[:16]) and "/" not in name
        return (identity, name) if sound and (root / name).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(root: Path, key: str, identity: str, name: str) -> None:
    """Record ``key``, in one step. Raises OSError where the root cannot be written."""
    path = _path(root, key)
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        draft.write_text(json.dumps({"identity": identity, "directory": name}) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _path(root: Path, key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()
    return root / "index" / name[:2] / f"{name}.json"
