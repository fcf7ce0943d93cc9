"""Columns: the scanned dimension is strided; neighbouring lanes take neighbouring columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, power_of_two_above
from scanops.codegen.targets import Target

__all__ = ["ColumnsPlan", "plan"]

THREADS = 512
ITEMS = 8  # loads a thread has in flight
FEW_COLUMNS = 8  # columns a block when lines are few: 32 bytes of fp32, one sector


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPlan(Plan):
    """A block holds ``columns`` columns; its threads are slots along them, ``items`` consecutive rows a slot."""

    strategy: ClassVar[str] = "columns"
    template: ClassVar[str] = "columns.cu.j2"

    columns: int  # columns a block, a power of two up to 32

    @property
    def slots(self) -> int:
        """Threads along a column."""
        return self.threads // self.columns

    @property
    def tile(self) -> int:
        """Rows in a tile."""
        return self.slots * self.items

    @property
    def panels(self) -> int:
        """Blocks side by side across the inner dimension."""
        return ceil_div(self.spec.inner, self.columns)

    @property
    def paneled(self) -> bool:
        """Whether there are several."""
        return self.panels > 1

    @property
    def ragged(self) -> bool:
        """Whether the last panel reaches past the last column."""
        return self.panels * self.columns != self.spec.inner

    @property
    def guarded(self) -> bool:
        """Whether some thread lies outside the tensor."""
        return self.ragged or self.tile * self.tiles != self.spec.length

    @property
    def scan_order(self) -> tuple[int, ...]:
        """A run of a column is loaded item by item in scan order already."""
        return tuple(range(self.items))

    @property
    def steps(self) -> tuple[int, ...]:
        """Distances, in lanes, of the shuffles of a scan across the slots of a warp."""
        return tuple(self.columns * 2**k for k in range((WARP // self.columns).bit_length() - 1))

    @property
    def crosses_lanes(self) -> bool:
        """Whether a warp holds several slots of the same column."""
        return self.columns < WARP

    @property
    def first_index(self) -> str:
        """The row in memory of the first item of the thread whose scan position is ``first``."""
        return f"({self.spec.length - 1} - first)" if self.spec.reverse else "first"


def plan(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """A warp across 32 columns, fewer when there are too few to fill the GPU; short columns take fewer slots."""
    columns = min(WARP, power_of_two_above(spec.inner))
    if spec.lines == "few":
        columns = min(columns, FEW_COLUMNS)
    items = min(ITEMS, spec.length)
    slots = power_of_two_above(ceil_div(spec.length, items))
    threads = max(WARP, min(THREADS, columns * slots))
    return ColumnsPlan(
        spec=spec,
        target=target,
        why=f"the scanned dimension has stride {spec.inner}: {columns} neighbouring columns a block",
        threads=threads,
        items=items,
        tiles=ceil_div(spec.length, threads // columns * items),
        columns=columns,
    )
