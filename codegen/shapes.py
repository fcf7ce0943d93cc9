"""Measured shapes for all GPUs, which the rules of strategies begin with: codegen/measured/any.json.

A shape is some numbers of a plan that no rule computes, with the measurements that they come from. The rule of a
strategy names the shapes that it needs, and fits them to registers and shared memory. A plan that begins with one says
so: its origin is ``measured: `` and the name of the entry.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

__all__ = ["Shape", "find_shape"]


class Shape(NamedTuple):
    """An entry of the table."""

    name: str  # of the table, and the size up to which the entry holds
    numbers: Mapping[str, int]

    @property
    def origin(self) -> str:
        """What a plan with these numbers says that they come from."""
        return f"measured: {self.name}, any GPU"

    def take(self, *names: str) -> tuple[int, ...]:
        """Return these numbers, in this order."""
        return tuple(self.numbers[name] for name in names)


def find_shape(table: str, size: float = 0) -> Shape:
    """Return the shape of a table for a size, in the unit that the table states."""
    return next(shape for limit, shape in _load_shapes()[table] if size <= limit)


@functools.cache
def _load_shapes() -> Mapping[str, tuple[tuple[float, Shape], ...]]:
    """The shapes of each table, with the size up to which each holds."""
    file = resources.files("scanops.codegen") / "measured" / "any.json"
    tables = json.loads(file.read_text(encoding="utf-8"))["shapes"]
    return {
        name: tuple(_read_entry(name, table["by"], **entry) for entry in table["entries"])
        for name, table in tables.items()
    }


def _read_entry(
    table: str, by: str, *, up_to: int | None, numbers: Mapping[str, int], note: str = ""
) -> tuple[float, Shape]:
    """The size up to which an entry holds, and its shape; ``note``: the measurements, for those who read the file."""
    name = table if up_to is None else f"{table}, {by} up to {up_to}"
    return (math.inf if up_to is None else up_to), Shape(name, numbers)
