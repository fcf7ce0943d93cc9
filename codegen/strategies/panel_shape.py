"""The shape of a panel of neighbouring columns: the parts of a block, a warp and a thread, and their guards."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.rows import LINE_BYTES

__all__ = ["PanelShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape(Plan):
    """A block scans a panel of ``columns`` neighbouring columns; its threads are slots along the columns.

    A thread takes ``vector`` neighbouring columns, one access per row, and ``items`` consecutive rows of a tile.
    """

    columns: int  # per panel
    vector: int  # columns per thread, a power of two
    apart: bool  # they are read one by one, `lanes` columns apart; otherwise adjacent columns by one access
    stages: int  # stages of the ring in shared memory, most of them in flight; 0: tiles pass through registers only
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds

    @property
    def lanes(self) -> int:
        """Number of threads side by side across a panel."""
        return self.columns // self.vector

    @property
    def slots(self) -> int:
        """Number of threads along a column."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Number of rows in a tile."""
        return self.slots * self.items

    @property
    def column_pitch(self) -> int:
        """Columns from a thread's first to the next thread's first."""
        return 1 if self.apart else self.vector

    @property
    def column_spacing(self) -> int:
        """Columns from one of a thread to its next."""
        return self.lanes if self.apart else 1

    @property
    def panels(self) -> int:
        """Number of panels side by side across the inner dimension."""
        return ceil_div(self.spec.inner, self.columns)

    @property
    def paneled(self) -> bool:
        """Whether there are several panels."""
        return self.panels > 1

    @property
    def ragged(self) -> bool:
        """Whether the last panel extends past the last column."""
        return self.panels * self.columns != self.spec.inner

    @property
    def counts_columns(self) -> bool:
        """Whether a thread needs the number of its columns that exist: they are apart, and some do not exist."""
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
        """Additional parameters of a guarded access: rows to the end of the column, columns that exist."""
        rows = f", {self.position} live" if self.guarded else ""
        return rows + (", int across" if self.counts_columns else "")

    def guards_passed(self, live: str) -> str:
        """Additional arguments of a guarded access."""
        return (f", {live}" if self.guarded else "") + (", across" if self.counts_columns else "")

    def live_if(self, row: int, column: int = 0) -> str:
        """C condition that a thread's row, and this column of it, exist; empty: always."""
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

        With a second operand ptxas issues guarded loads a few at a time, each with its use, and masked 64 x 4096 x
        1024 falls to 0.65 of a copy (H200); unconditional loads it issues together.
        """
        return self.guarded and not self.spec.alone and not (self.staged or self.apart or self.realigns)

    @property
    def realigns(self) -> bool:
        """Whether rows start off the boundary of an access, so that items of two accesses are shifted into place."""
        return not self.spec.aligned and not self.apart and self.vector > 1

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of a thread in a tile, in scan order."""
        return tuple(range(self.items))

    @property
    def across(self) -> tuple[int, ...]:
        """Indices of the columns of a thread."""
        return tuple(range(self.vector))

    @property
    def scan_order(self) -> tuple[int, ...]:
        """Indices of the rows of a thread, which are loaded in scan order."""
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
        """The first of the lanes that hold the totals of a warp."""
        return WARP - self.lanes

    @property
    def slots_a_warp(self) -> int:
        """Number of threads of a warp along a column."""
        return WARP // self.lanes

    @property
    def staged(self) -> bool:
        """Whether tiles pass through shared memory."""
        return self.stages > 0

    @property
    def lead(self) -> int:
        """Number of tiles whose copies are issued before a tile is scanned."""
        return self.stages - 1

    @property
    def exchanged(self) -> bool:
        """Whether the lanes of a warp exchange rows in shared memory.

        In global memory lanes access rows in turns, so that an access of the warp is contiguous however narrow the
        panel is; in shared memory each lane scans neighbouring rows.
        """
        same = self.spec.keeps_bytes
        narrow = self.columns * self.spec.input.bytes < LINE_BYTES
        return self.staged and self.panels == 1 and narrow and same and not self.apart

    @property
    def spacing(self) -> int:
        """Rows from one access of a thread to its next."""
        return self.slots_a_warp if self.exchanged else 1

    # ---- carries

    @property
    def own_line(self) -> str:
        """Number of a thread's first line, in C."""
        return "line"

    @property
    def there(self) -> str:
        """Number of a thread's lines that exist, in C."""
        if self.counts_columns:
            return "across"
        return f"column < {self.spec.inner} ? {self.vector} : 0" if self.ragged else str(self.vector)

    @property
    def begins_lines(self) -> bool:
        """Whether a thread applies the carry-in of all its lines itself."""
        return True

    @property
    def begin_each(self) -> str:
        """The carry-in of a thread's lines as States, in C."""
        if not self.spec.initial:
            return "identities()"
        return f"begin_lines(carry_in + {self.own_line} * carry_in_step, carry_in_step, {self.there})"

    @property
    def scanned_first(self) -> str:
        """Scan position of the first row that a thread scans, in C."""
        return f"first + lane / {self.lanes} * {self.items - 1}" if self.exchanged else "first"

    @property
    def first_row(self) -> str:
        """Row of the tile that a thread accesses first, in C."""
        if self.exchanged:
            return f"warp * {self.slots_a_warp * self.items} + lane / {self.lanes}"
        return f"(int)(threadIdx.x / {self.lanes}) * {self.items}"

    @property
    def gap(self) -> int:
        """Accesses of padding after each run that a thread scans, to avoid bank conflicts."""
        return self.lanes if self.items % 2 == 0 else 0

    @property
    def run(self) -> int:
        """Accesses from one thread's run to the next thread's."""
        return self.items * self.lanes + self.gap

    @property
    def row_pitch(self) -> int:
        """Accesses from one row of a thread to its next in the ring."""
        return self.lanes if self.exchanged else self.threads

    @property
    def warp_accesses(self) -> int:
        """Accesses of a warp's part of a stage of the ring."""
        return self.run * self.slots_a_warp

    @property
    def warp_rows(self) -> int:
        """Number of rows of a warp's part of a tile."""
        return self.slots_a_warp * self.items
