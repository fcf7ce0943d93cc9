"""How an operand lies in memory, beside the line that is scanned."""

from __future__ import annotations

import itertools
from typing import Literal

Layout = Literal["dense", "rows", "columns", "transposed", "strided", "line", "step"]
LAYOUTS: tuple[Layout, ...] = ("dense", "rows", "columns", "transposed", "strided")  # of any operand
# Of a mask, a gate or head flags:
LINE: Layout = "line"  # one item for the whole line
STEP: Layout = "step"  # one item for all columns that a thread reads at a step of the scan: stride 0 across them
ADJACENT: frozenset[Layout] = frozenset(("dense", "columns", LINE, STEP))  # neighbouring columns are read at once
WHOLE_BYTES = 64  # of a run of contiguous memory that is worth a transposition: two 32-byte sectors


def is_worth_transposing(read_bytes: int, written_bytes: int) -> bool:
    """Return whether a kernel should transpose tiles: runs of so many bytes are contiguous on either side.

    Otherwise the input is read item by item, with layout "strided".
    """
    return min(read_bytes, written_bytes) >= WHOLE_BYTES


def needs_alignment(inner: int, input_layout: Layout) -> bool:
    """Return whether kernels differ by the alignment of the operands.

    An odd number of columns is read item by item, which any boundary allows: one kernel serves both.
    """
    return inner == 1 or inner % 2 == 0 or input_layout == "transposed"


# ---- of scans with states: what an operand varies along, lines ("l"), steps ("t") and states ("n"), with a capital
# letter for the dimension whose items are contiguous

LINE_DIM, STEP_DIM, STATE_DIM = "l", "t", "n"
STATES = "states_"  # begins the name of such a layout
STATE_LAYOUTS = tuple(
    STATES + dims.replace(unit, unit.upper()) if unit else STATES + dims
    for count in range(4)
    for dims in map("".join, itertools.combinations("ltn", count))
    for unit in ("", *dims)
)


def dims_of(layout: str) -> frozenset[str]:
    """Return what an operand of a scan with states varies along: letters of ``STATE_LAYOUTS``."""
    return frozenset(layout.removeprefix(STATES).lower()) if layout.startswith(STATES) else frozenset("ltn")


def unit_of(layout: str) -> str:
    """Return the dimension along which the items of an operand of a scan with states are contiguous, or ""."""
    return next((each.lower() for each in layout.removeprefix(STATES) if each.isupper()), "")
