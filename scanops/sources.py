"""The files that kernels follow from, and their digest. Imports nothing of scanops: a build of the wheel runs it."""

from __future__ import annotations

import hashlib
import os

__all__ = ["digest", "paths"]

_SUFFIXES = (".py", ".j2", ".h", ".cpp")


def paths(folder: str) -> list[str]:
    """A folder, and the folders and sources below it, each folder sorted by name."""
    found = [folder]
    with os.scandir(folder) as listing:
        for item in sorted(listing, key=lambda item: item.name):
            if item.is_dir() and item.name != "__pycache__":
                found += paths(item.path)
            elif item.name.endswith(_SUFFIXES):
                found.append(item.path)
    return found


def digest(folder: str) -> str:
    """SHA-256 over the names and bytes of the sources in a folder, wherever that is."""
    total = hashlib.sha256()
    for path in paths(folder):
        if path.endswith(_SUFFIXES):
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                data = file.read()
            total.update(f"{path[len(folder) :]} {len(data)}\n".encode() + data)
    return total.hexdigest()
