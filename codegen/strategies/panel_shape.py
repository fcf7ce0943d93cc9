"""A panel of neighbouring columns: what a block, a warp and a thread take of it, and which rows and columns exist."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.rows import LINE_BYTES

__all__ = ["PanelShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape(Plan):
    """A block works on a panel of ``columns`` neighbouring columns; its threads are slots along them.

    A thread takes ``vector`` neighbouring columns, one access a row, and ``items`` consecutive rows of a tile.
    """

    columns: int  # a panel
    vector: int  # columns a thread, a power of two
    apart: bool  # they are read one by one, `lanes` columns from one to the next; else by one access, side by side
    stages: int  # tiles in shared memory, most of them on their way; 0: tiles pass through registers alone
    blocks: int  # resident blocks a multiprocessor that registers are promised for

    @property
    def lanes(self) -> int:
        """Threads side by side across a panel."""
        return self.columns // self.vector

    @property
    def slots(self) -> int:
        """Threads along a column."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Rows in a tile."""
        return self.slots * self.items

    @property
    def column_pitch(self) -> int:
        """Columns from a thread's first to that of the next thread."""
        return 1 if self.apart else self.vector

    @property
    def column_spacing(self) -> int:
        """Columns from one of a thread to its next."""
        return self.lanes if self.apart else 1

    @property
    def panels(self) -> int:
        """Panels side by side across the inner dimension."""
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
    def counts_columns(self) -> bool:
        """Whether a thread is told how many of its columns exist: they lie apart, and not all of them do."""
        return self.ragged and self.apart

    @property
    def guarded(self) -> bool:
        """Whether some thread lies outside the tensor."""
        return self.ragged or self.tile * self.tiles != self.spec.length

    @property
    def live(self) -> str:
        """Rows from a thread's first to the end of its columns, in C."""
        rows = f"{self.length} - first"
        return f"column < {self.spec.inner} ? {rows} : 0" if self.ragged else rows

    @property
    def guards_given(self) -> str:
        """What a guarded access is told, as further parameters: rows to the end of the column, columns that exist."""
        rows = f", {self.position} live" if self.guarded else ""
        return rows + (", int across" if self.counts_columns else "")

    def guards_passed(self, live: str) -> str:
        """And as further arguments."""
        return (f", {live}" if self.guarded else "") + (", across" if self.counts_columns else "")

    def live_if(self, row: int, column: int = 0) -> str:
        """Whether a thread's row exists, and this column of it, in C; empty: they always do."""
        if not self.guarded:
            return ""
        return f"live > {row}" + (f" && across > {column}" if column and self.counts_columns else "")

    @property
    def leaves_out(self) -> bool:
        """Whether rows that do not exist are not read."""
        return self.guarded and not self.stands_in

    @property
    def stands_in(self) -> bool:
        """Whether a row that does not exist reads an operand's first access instead of none.

        Beside another operand's, ptxas takes guarded loads a few at a time, each with what is done with it, and masked
        64 x 4096 x 1024 falls to 0.65 of a copy (H200); loads that are always made, it makes together.
        """
        return self.guarded and not self.spec.alone and not (self.staged or self.apart or self.realigns)

    @property
    def realigns(self) -> bool:
        """Whether rows begin off the boundary of an access, and items of two are shifted into their places."""
        return not self.spec.aligned and not self.apart and self.vector > 1

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of a thread in a tile, in scan order."""
        return tuple(range(self.items))

    @property
    def across(self) -> tuple[int, ...]:
        """Columns of a thread."""
        return tuple(range(self.vector))

    @property
    def scan_order(self) -> tuple[int, ...]:
        """A run of rows is loaded in scan order already."""
        return self.rows

    @property
    def steps(self) -> tuple[int, ...]:
        """Distances, in lanes, of the shuffles of a scan across the slots of a warp."""
        return tuple(self.lanes * 2**k for k in range((WARP // self.lanes).bit_length() - 1))

    @property
    def crosses_lanes(self) -> bool:
        """Whether a warp holds several slots of the same column."""
        return self.lanes < WARP

    @property
    def last_lanes(self) -> int:
        """The first lane of those that hold the totals of a warp."""
        return WARP - self.lanes

    @property
    def slots_a_warp(self) -> int:
        """Threads of a warp along a column."""
        return WARP // self.lanes

    @property
    def staged(self) -> bool:
        """Whether tiles pass through shared memory."""
        return self.stages > 0

    @property
    def lead(self) -> int:
        """Tiles whose copies begin before the tile is scanned."""
        return self.stages - 1

    @property
    def exchanged(self) -> bool:
        """Whether the lanes of a warp exchange rows in shared memory.

        In global memory they take turns, so that an access of all of them is one stretch of memory however narrow the
        panel; each scans neighbouring rows.
        """
        same = self.spec.keeps_bytes
        narrow = self.columns * self.spec.input.bytes < LINE_BYTES
        return self.staged and self.panels == 1 and narrow and same and not self.apart

    @property
    def spacing(self) -> int:
        """Rows from one access of a thread to its next."""
        return self.slots_a_warp if self.exchanged else 1

    # ---- what lines begin and end with

    @property
    def own_line(self) -> str:
        """The number of a thread's first line, in C."""
        return "line"

    @property
    def there(self) -> str:
        """How many of a thread's lines exist, in C."""
        if self.counts_columns:
            return "across"
        return f"column < {self.spec.inner} ? {self.vector} : 0" if self.ragged else str(self.vector)

    @property
    def begins_lines(self) -> bool:
        """Whether a thread begins all its lines itself."""
        return True

    @property
    def begin_each(self) -> str:
        """What a thread's lines begin with, in C."""
        if not self.spec.initial:
            return "identities()"
        return f"begin_lines(carry_in + {self.own_line} * carry_in_step, carry_in_step, {self.there})"

    @property
    def scanned_first(self) -> str:
        """The scan position of the first row that a thread scans, in C."""
        return f"first + lane / {self.lanes} * {self.items - 1}" if self.exchanged else "first"

    @property
    def first_row(self) -> str:
        """The row of the tile that a thread accesses first, in C."""
        if self.exchanged:
            return f"warp * {self.slots_a_warp * self.items} + lane / {self.lanes}"
        return f"(int)(threadIdx.x / {self.lanes}) * {self.items}"

    @property
    def gap(self) -> int:
        """Accesses left out after each run that a thread scans: neighbouring runs begin in different banks."""
        return self.lanes if self.items % 2 == 0 else 0

    @property
    def run(self) -> int:
        """From one thread's run to the next one's, in accesses."""
        return self.items * self.lanes + self.gap

    @property
    def row_pitch(self) -> int:
        """From one row of a thread to its next in the ring, in accesses."""
        return self.lanes if self.exchanged else self.threads

    @property
    def warp_accesses(self) -> int:
        """What a warp takes of a stage of the ring, in accesses."""
        return self.run * self.slots_a_warp

    @property
    def warp_rows(self) -> int:
        """Rows of a tile that a warp takes."""
        return self.slots_a_warp * self.items
