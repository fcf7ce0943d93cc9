"""Panels of neighbouring columns: the parts of a block, a warp and a thread, and how operands are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.spec import ACCESS_BYTES, Source
from scanops.codegen.strategies.base import WARP, Constant, Plan, ceil_div
from scanops.codegen.strategies.rows import LINE_BYTES

__all__ = ["PanelPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlan(Plan):
    """A block scans a panel of ``columns`` neighbouring columns; its threads are slots along the columns.

    A thread takes ``vector`` neighbouring columns, one access per row, and ``items`` consecutive rows of a tile. Tiles
    are read through shared memory or straight to registers.
    """

    looks_back: ClassVar[bool] = False  # a block scans one tile, and waits for those above it

    columns: int  # per panel
    vector: int  # columns per thread, a power of two
    apart: bool  # they are read one by one, `lanes` columns apart; otherwise adjacent columns by one access
    stages: int  # stages of the ring in shared memory, most of them in flight; 0: tiles pass through registers only
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names; numbers that follow from them are constants of the text itself."""
        return (
            Constant("kReverse", self.spec.reverse, "scan from a column's end to its start"),
            Constant("kInner", self.spec.inner, "columns side by side: the stride of the scanned dimension"),
            Constant("kThreads", self.threads, "of a block"),
            Constant("kBlocks", self.blocks, "of a multiprocessor, at least"),
            Constant("kItems", self.items, "rows of a thread in a tile"),
            Constant("kVector", self.vector, "columns of a thread"),
            Constant("kLanes", self.lanes, "threads side by side across a panel"),
            Constant("kPanels", self.panels, "side by side across the columns"),
            Constant("kApart", self.apart, "a thread's columns are kLanes apart, and accessed one by one"),
            Constant("kRealigns", self.realigns, "rows start off the boundary of an access"),
            Constant("kExchanged", self.exchanged, "lanes exchange rows in shared memory"),
            Constant("kOverwrites", self.overwrites, "results overwrite rows that other lanes read"),
            *(self._staged_constants() if self.staged else ()),
        )

    def _staged_constants(self) -> tuple[Constant, ...]:
        return (
            Constant("kStages", self.stages, "tiles in the ring in shared memory"),
            Constant("kRingBytes", self.shared_bytes, "of dynamic shared memory"),
        )

    def _loaded_constants(self) -> tuple[Constant, ...]:
        return (Constant("kStandsIn", self.stands_in, "rows that do not exist read the operand's first access"),)

    # ---- the parts of a panel

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
    def panels(self) -> int:
        """Number of panels side by side across the inner dimension."""
        return ceil_div(self.spec.inner, self.columns)

    @property
    def guarded(self) -> bool:
        """Whether some thread lies outside the tensor."""
        return self.panels * self.columns != self.spec.inner or self.tile * self.tiles != self.spec.length

    @property
    def crosses_lanes(self) -> bool:
        """Whether a warp holds several slots of the same column."""
        return self.lanes < WARP

    @property
    def warp_rows(self) -> int:
        """Number of rows of a warp's part of a tile."""
        return WARP // self.lanes * self.items

    # ---- how operands are read

    @property
    def realigns(self) -> bool:
        """Whether rows start off the boundary of an access, so that items of two accesses are shifted into place."""
        return not self.spec.aligned and not self.apart and self.vector > 1

    @property
    def stands_in(self) -> bool:
        """Whether a row that does not exist reads an operand's first access instead of none.

        With a second operand ptxas issues guarded loads a few at a time, each with its use, and masked 64 x 4096 x
        1024 falls to 0.65 of a copy (H200); unconditional loads it issues together.
        """
        return self.guarded and not self.spec.alone and not (self.staged or self.apart or self.realigns)

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: of its tiles, or to know where its operands end."""
        return True

    # ---- the ring in shared memory

    @property
    def staged(self) -> bool:
        """Whether tiles pass through shared memory."""
        return self.stages > 0

    @property
    def exchanged(self) -> bool:
        """Whether the lanes of a warp exchange rows in shared memory.

        In global memory lanes access rows in turns, so that an access of the warp is contiguous however narrow the
        panel is; in shared memory each lane scans neighbouring rows.
        """
        narrow = self.columns * self.spec.input.bytes < LINE_BYTES
        return self.staged and self.panels == 1 and narrow and self.spec.keeps_bytes and not self.apart

    @property
    def gap(self) -> int:
        """Accesses of padding after the rows that a lane scans, to avoid bank conflicts."""
        return self.lanes if self.items % 2 == 0 else 0

    def is_flat(self, source: Source) -> bool:
        """Whether a warp's rows of an operand are one contiguous range, read by full 16-byte accesses."""
        if source.layout != "dense" or not self.exchanged or self.gap or self.columns != self.spec.inner:
            return False
        access_bytes = self.vector * source.dtype.bytes
        rows = ACCESS_BYTES // min(ACCESS_BYTES, access_bytes * self.lanes)  # of a 16-byte access
        whole = access_bytes < ACCESS_BYTES and self.warp_rows % rows == 0 and self.spec.divides(rows)
        return self.realigns or whole

    @property
    def copies_flat(self) -> bool:
        """Whether some operand is copied as contiguous ranges."""
        return any(self.is_flat(source) for source in self.spec.sources)

    @property
    def copies_rows(self) -> bool:
        """Whether some operand is copied row by row."""
        return not all(self.is_flat(source) for source in self.spec.sources)

    @property
    def overwrites(self) -> bool:
        """Whether lanes that exchange rows store results over items that other lanes still read."""
        return self.realigns or (self.copies_flat and self.spec.reverse)

    @property
    def streams(self) -> bool:
        """Whether 16-byte copies bypass L1: 256 x 1024 x 1024 with 3 stages has 0.974 of a copy this way and 0.829
        through L1.

        Where lanes exchange rows, neighbours share cache lines: 4096 x 4096 x 16 has 0.90 through L1 and 0.85 past it
        (H200).
        """
        widest = max(source.dtype.bytes for source in self.spec.sources) * self.vector
        return self.staged and not self.exchanged and widest == ACCESS_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, the ring; 0 where declared arrays are enough."""
        return self.stages * sum(
            self._stage_accesses(source) * self.vector * source.dtype.bytes for source in self.spec.sources
        )

    def _stage_accesses(self, source: Source) -> int:
        """Accesses of an operand in a stage of the ring, with slack where lanes exchange misaligned rows."""
        if not self.exchanged:
            return self.items * self.threads
        slack = ACCESS_BYTES // (self.vector * source.dtype.bytes) if self.realigns else 0
        return self.warps * (self.warp_rows * self.lanes + self.gap * (WARP // self.lanes) + slack)

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return (*self.code.intrinsics, *self.ring_intrinsics)

    @property
    def ring_intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 that tiles in shared memory need."""
        return ("dynamic", "copies", *(("streams",) if self.streams else ())) if self.staged else ()

    # ---- what the text declares

    @property
    def begins_empty(self) -> bool:
        """Whether some fold starts from the identity of every column."""
        return not self.looks_back or self.crosses_lanes or (self.serial and bool(self.spec.operator.append))

    @property
    def begins_lines(self) -> bool:
        """Whether a thread applies the carry-in of its columns; where a tile looks back, that starts from it."""
        return self.spec.initial and not self.looks_back
