"""What ``ptxas -v`` says, as numbers."""

from __future__ import annotations

import re

from scanops.artifact import Resources

__all__ = ["parse_ptxas"]

_FIELDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("registers", re.compile(r"Used (\d+) registers")),
    ("shared_bytes", re.compile(r"(\d+) bytes smem")),
    ("stack_bytes", re.compile(r"(\d+) bytes stack frame")),
    ("spill_store_bytes", re.compile(r"(\d+) bytes spill stores")),
    ("spill_load_bytes", re.compile(r"(\d+) bytes spill loads")),
)


def parse_ptxas(log: str) -> Resources | None:
    """The largest value of each kind over all kernels in ``log``; None when ptxas said nothing about any."""
    found = {name: [int(number) for number in pattern.findall(log)] for name, pattern in _FIELDS}
    if not found["registers"]:
        return None
    # ptxas leaves out shared memory when there is none; the other lines are always there.
    found["shared_bytes"] = found["shared_bytes"] or [0]
    return Resources(**{name: max(numbers) if numbers else None for name, numbers in found.items()})
