"""How an operand lies in memory, beside the line that is scanned."""

from __future__ import annotations

from typing import Literal

Layout = Literal["dense", "rows", "columns", "transposed", "strided", "line"]
LAYOUTS: tuple[Layout, ...] = ("dense", "rows", "columns", "transposed", "strided")  # of any operand
LINE: Layout = "line"  # of a mask, a gate or head flags: one item for the whole line
