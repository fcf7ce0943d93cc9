"""A panel of neighbouring columns: what every plan for a scanned dimension that is not the last has."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.dtypes import DType
from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.rows import ACCESS_BYTES, LINE_BYTES
from scanops.codegen.strategies.widths import piece_bytes

__all__ = ["PanelPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlan(Plan):
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
    def guarded(self) -> bool:
        """Whether some thread lies outside the tensor."""
        return self.ragged or self.tile * self.tiles != self.spec.length

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
    def begins_empty(self) -> bool:
        """Whether some fold begins with the identity of every column."""
        return True

    @property
    def last_lanes(self) -> int:
        """The first lane of those that hold the totals of a warp."""
        return WARP - self.lanes

    @property
    def slots_a_warp(self) -> int:
        """Threads of a warp along a column."""
        return WARP // self.lanes

    @property
    def exchanged(self) -> bool:
        """Whether the lanes of a warp exchange rows in shared memory.

        In global memory they take turns, so that an access of all of them is one stretch of memory however narrow the
        panel; each scans neighbouring rows.
        """
        narrow = self.lanes * self.input_bytes < LINE_BYTES
        return self.staged and self.panels == 1 and narrow and self.spec.keeps_bytes and not self.apart

    @property
    def spacing(self) -> int:
        """Rows from one access of a thread to its next."""
        return self.slots_a_warp if self.exchanged else 1

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
    def warp_accesses(self) -> int:
        """What a warp takes of a stage of the ring, in accesses."""
        return self.run * self.slots_a_warp

    @property
    def warp_rows(self) -> int:
        """Rows of a tile that a warp takes."""
        return self.slots_a_warp * self.items

    @property
    def flat_mask(self) -> bool:
        """Whether a warp reads its rows of the mask as one stretch, by whole accesses."""
        dense = self.masked and self.spec.mask_layout == "dense" and self.spec.aligned
        if not dense or not self.exchanged or self.gap or self.columns != self.spec.inner:
            return False
        aligned_rows = ACCESS_BYTES // min(ACCESS_BYTES, self.mask_bytes * self.lanes)
        return self.mask_bytes < ACCESS_BYTES and self.warp_rows % aligned_rows == 0 and self.spec.divides(aligned_rows)

    @property
    def flat_accesses(self) -> tuple[tuple[str, bool], ...]:
        """(number in C, whether some lane has none) of a lane's accesses to such a stretch."""
        count = self.warp_rows * self.lanes * self.mask_bytes // ACCESS_BYTES
        starts = range(0, count, WARP)
        return tuple(("lane" + (f" + {start}" if start else ""), start + WARP > count) for start in starts)

    @property
    def flat_vectors(self) -> int:
        """Rows' vectors in one of them."""
        return ACCESS_BYTES // self.mask_bytes

    @property
    def flat_first(self) -> str:
        """The row in memory where a warp's stretch begins, in C."""
        ahead = f"lane / {self.lanes}"
        if not self.spec.reverse:
            return f"first - {ahead}"
        last = f"length - {self.warp_rows}" if self.spec.length is None else str(self.spec.length - self.warp_rows)
        return f"{last} - first + {ahead}"

    @property
    def row_pitch(self) -> int:
        """From one row of a thread to its next in the ring, in accesses."""
        return self.lanes if self.exchanged else self.threads

    @property
    def staged(self) -> bool:
        """Whether tiles pass through shared memory."""
        return self.stages > 0

    @property
    def lead(self) -> int:
        """Tiles whose copies begin before the tile is scanned."""
        return self.stages - 1

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        return (*self.code.intrinsics, *self.ring_intrinsics)

    @property
    def ring_intrinsics(self) -> tuple[str, ...]:
        """Those of them that tiles in shared memory take."""
        return ("dynamic", "copies", *(("streams",) if self.streams else ())) if self.staged else ()

    @property
    def input_bytes(self) -> int:
        """Bytes of one access of the input."""
        return self.vector * self.spec.input.bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of one access of the mask; 0 without one."""
        return self.vector * self.spec.mask_dtype.bytes if self.spec.mask_dtype else 0

    @property
    def streams(self) -> bool:
        """Whether copies pass by the first cache: 256 x 1024 x 1024 with 3 stages has 0.974 so, 0.829 otherwise. Where
        lanes exchange rows, neighbours share lines: 4096 x 4096 x 16 has 0.90 through the cache and 0.85 past it."""
        return self.staged and not self.exchanged and ACCESS_BYTES in (self.input_copies[0][0], *self._mask_sizes)

    @property
    def widest_access(self) -> int:
        """Bytes."""
        return ACCESS_BYTES

    @property
    def _mask_sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _ in self.mask_copies)

    @property
    def input_copies(self) -> tuple[tuple[int, int], ...]:
        """(bytes, column) of the copies that a row of the input takes."""
        return self._copies(self.spec.input)

    @property
    def mask_copies(self) -> tuple[tuple[int, int], ...]:
        """(bytes, column) of the copies that a row of the mask takes."""
        return self._copies(self.spec.mask_dtype)

    def _copies(self, dtype: DType | None) -> tuple[tuple[int, int], ...]:
        if dtype is None:
            return ()
        together = 1 if self.apart else piece_bytes(self.spec, dtype, self.vector) // dtype.bytes
        return tuple((together * dtype.bytes, column) for column in range(0, self.vector, together))

    @property
    def alignments(self) -> dict[str, int]:
        """Bytes of the boundary that accesses of an operand keep to, by its C type."""
        sizes = {"Input": self.input_bytes, "Mask": self.mask_bytes}
        sizes |= {out.type: self.vector * size for out, size in zip(self.results, self.spec.result_bytes, strict=True)}
        return {name: min(ACCESS_BYTES, size) for name, size in sizes.items()}

    @property
    def by_item(self) -> bool:
        """Whether a thread reads its columns one by one: they lie apart, or begin off the boundary of an access."""
        return self.apart or not self.spec.aligned

    @property
    def unaligned_output(self) -> bool:
        """Whether the output may begin off the boundary of an access."""
        return not self.spec.aligned and not self.apart and self.vector > 1

    @property
    def state_alignment(self) -> int:
        """Bytes of the boundary that the states of a thread keep to in shared memory."""
        size = self.vector * self.code.state_bytes
        return min(ACCESS_BYTES, size & -size)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 where declared arrays are enough."""
        accesses = self.warps * self.warp_accesses if self.exchanged else self.items * self.threads
        return self.stages * accesses * (self.input_bytes + self.mask_bytes)

    @property
    def input_step(self) -> str:
        """Items from one row of the input to the next in scan order."""
        return self.minus + ("geometry.input_step" if self.strided_input else str(self.spec.inner))

    @property
    def mask_step(self) -> str:
        """Items from one row of the mask to the next in scan order."""
        return self.minus + ("geometry.mask_step" if self.strided_mask else str(self.spec.inner))

    @property
    def output_step(self) -> str:
        """Items from one row of the output to the next in scan order."""
        return self.minus + str(self.spec.inner)

    @property
    def first_index(self) -> str:
        """The row in memory of the first item of the thread whose scan position is ``first``."""
        last = "length - 1" if self.spec.length is None else self.spec.length - 1
        return f"({last} - first)" if self.spec.reverse else "first"
