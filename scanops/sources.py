"""Digest of the sources that kernels follow from. Imports nothing of scanops: setup.py runs it to build the wheel."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["TREES", "digest"]

TREES = ("codegen", "templates", "emulator")  # folders of the installed package
_SUFFIXES = (".py", ".j2", ".h", ".cpp")


def digest(folder: str | Path) -> str:
    """Return the SHA-256 over names and bytes of the sources in a folder and below, wherever that folder is."""
    total, root = hashlib.sha256(), Path(folder)
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in _SUFFIXES):
        data = (root / name).read_bytes()
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()
