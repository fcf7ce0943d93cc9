"""A file of an entry, held against its manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_problem"]


def file_problem(path: Path, expected: dict[str, object]) -> str | None:
    """What is wrong with a file of an entry, None when size and SHA-256 are those of the manifest."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        return f"{path.name}: {problem.strerror}"
    if len(data) != expected["size"]:
        return f"{path.name}: {len(data)} bytes instead of {expected['size']}"
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        return f"{path.name}: SHA-256 differs"
    return None
