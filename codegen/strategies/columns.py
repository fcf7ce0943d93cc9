"""Columns: the scanned dimension is strided; neighbouring lanes take neighbouring columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import MAX_LENGTH, ScanSpec
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, fills_registers, power_of_two_above
from scanops.codegen.targets import Target

__all__ = ["ColumnsPlan", "plan"]

# (length up to, threads). H200, fp32 sum, 16 items a thread, fraction of a copy:
THREADS = (
    (8192, 512),  # 512 x 512 x 1024: 0.97, with 256 threads 0.91; 64 x 4096 x 1024: 0.90 and 0.85
    (MAX_LENGTH, 256),  # 1 x 32768 x 8192: 0.89, with 512 threads 0.81
)
ITEMS = 16  # loads a thread has in flight: 512 x 512 x 1024 has 0.93 with 8
ITEM_BYTES = 128  # of a thread's items, as loaded and as states; beyond it half as many: masked fp32 has 0.94, not 0.73
# Few columns side by side: lanes reach along them, and a line of cache should be used up while it is there.
# 4096 x 4 (of 16384): 0.94 with 4 items and 256 threads, 0.84 with 512, 0.49 with 8 items; 2, 3, 8 columns alike.
NARROW = 8  # columns
NARROW_ITEMS, NARROW_THREADS = 4, 256
FEW_COLUMNS = 8  # columns a block when lines are few: 32 bytes of fp32, one sector


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPlan(Plan):
    """A block holds ``columns`` columns; its threads are slots along them, ``items`` consecutive rows a slot."""

    strategy: ClassVar[str] = "columns"
    template: ClassVar[str] = "columns.cu.j2"

    columns: int  # columns a block, a power of two up to 32
    alone: bool  # a block has the registers of a multiprocessor to itself

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
    if spec.inner <= NARROW:
        most, items = NARROW_THREADS, min(NARROW_ITEMS, spec.length)
    else:
        most = next(threads for length, threads in THREADS if spec.length <= length)
        items = min(_items(spec), spec.length)
    slots = power_of_two_above(ceil_div(spec.length, items))
    threads = max(WARP, min(most, columns * slots))
    return ColumnsPlan(
        spec=spec,
        target=target,
        why=f"the scanned dimension has stride {spec.inner}: {columns} neighbouring columns a block",
        threads=threads,
        items=items,
        tiles=ceil_div(spec.length, threads // columns * items),
        columns=columns,
        alone=fills_registers(spec, items, 1, threads, raw=1),
    )


def _items(spec: ScanSpec) -> int:
    mask = spec.mask_dtype.bytes if spec.mask_dtype else 0
    bytes_an_item = spec.input.bytes + mask + fragments(spec).state_bytes
    return ITEMS if ITEMS * bytes_an_item <= ITEM_BYTES else ITEMS // 2
