"""Sizes in bytes as people write them, and the size of a folder."""

from __future__ import annotations

import math
import os
import re
import reprlib
from pathlib import Path

from scanops.errors import UnsupportedRequest

__all__ = ["format_size", "parse_size", "size_of"]

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("", 1000), ("IB", 1024))
}


def parse_size(text: str, *, asked: str) -> int | None:
    """Return the bytes that ``"5GB"``, ``"512 MiB"`` or ``"1000"`` mean, None for ``"none"``.

    Raises UnsupportedRequest for any other text; ``asked`` begins the message.
    """
    if text.strip().lower() == "none":
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    number = float(found[1]) if found else 0.0
    if found is None or unit is None or not math.isfinite(number * unit):
        raise UnsupportedRequest(
            f"{asked}: {reprlib.repr(text)}",
            allowed="a number of bytes, with KB, MB, GB, TB or KiB, MiB, GiB, TiB behind it, or none",
            value=reprlib.repr(text),
            hint="write 5GB, for example",
        )
    return int(number * unit)


def format_size(size: int) -> str:
    """Return bytes as people read them: ``"1.2 MB"``."""
    power = next((power for power in range(4) if size < 1000 ** (power + 1)), 4)
    return f"{size / 1000**power:.{min(power, 1)}f} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder``. Files that vanish meanwhile count as nothing."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                for item in listing:
                    if item.is_dir(follow_symlinks=False):
                        folders.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
