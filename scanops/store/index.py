"""The index of a store or a pack: from a lookup key to an entry, so that a new process need not render the kernel.

A record is ``root/index/<aa>/<sha256 of the key>.json``, mode 0600, with a digest over key, identity and folder name. A
digest is no signature: a user who can write records can forge one. So a record counts only where nobody else could
have written it, and the entry that it leads to must state the spec that was asked for (``Store.find``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanops.files import opened_folder, parse_object, read_trusted, write_owned
from scanops.store.root import make_folders

__all__ = ["read", "record", "write"]

_IDENTITY = re.compile(r"[0-9a-f]{64}")
_RECORD_BYTES = 4096  # at most; a record has about 300


def read(root: Path, key: str, listed: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[str, str] | None:
    """Return (identity, folder name) for ``key``; None for a record that is missing, corrupt, unsafe or dangling.

    With ``listed``, path below the root -> size and SHA-256, also for a record that is not listed or differs.
    """
    path = _path(key)
    try:
        with (
            opened_folder(root, follow=True) as top,
            opened_folder("index", top) as index,
            opened_folder(path.parent.name, index) as folder,
        ):
            data = read_trusted(path.name, _RECORD_BYTES, folder)
        if listed is not None and hashlib.sha256(data).hexdigest() != listed[path.as_posix()]["sha256"]:
            return None
        fields = parse_object(data)
        identity, name = fields["identity"], fields["directory"]
        # The name becomes a path: only a folder of this identity directly below the root is accepted.
        sound = _IDENTITY.fullmatch(identity) and name.endswith("-" + identity[:16]) and "/" not in name
        sound = sound and data == record(key, identity, name)
        return (identity, name) if sound and (root / name).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def record(key: str, identity: str, name: str) -> bytes:
    """Return the bytes that are kept for ``key``."""
    digest = hashlib.sha256(json.dumps([key, identity, name]).encode()).hexdigest()
    return (json.dumps({"identity": identity, "directory": name, "sha256": digest}) + "\n").encode()


def write(root: Path, key: str, identity: str, name: str) -> None:
    """Record ``key``, in one step. Raises OSError where the root cannot be written."""
    path = root / _path(key)
    make_folders(root, "index", f"index/{path.parent.name}")
    write_owned(path, record(key, identity, name), 0o600)


def _path(key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()
    return Path("index", name[:2], f"{name}.json")
