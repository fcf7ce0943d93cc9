"""Columns: the scanned dimension is strided; a thread takes neighbouring columns, neighbouring lanes the next ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.dtypes import DType
from scanops.codegen.fragments import fragments
from scanops.codegen.spec import MAX_LENGTH, ScanSpec
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, power_of_two_above
from scanops.codegen.strategies.rows import ACCESS_BYTES
from scanops.codegen.targets import Target

__all__ = [
    "ColumnsPlan",
    "PanelPlan",
    "can_stage",
    "column_width",
    "full_width",
    "is_narrow",
    "odd_rows",
    "panel_lanes",
    "plan",
    "register_rows",
]

COPY_BYTES = (4, 8, 16)  # what an asynchronous copy can move
LINE_BYTES = 128  # of memory that is fetched together


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
        same = self.spec.input.bytes == self.spec.out.bytes
        narrow = self.lanes * self.input_bytes < LINE_BYTES
        return self.staged and self.panels == 1 and narrow and same and not self.apart

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
        together = 1 if self.apart else min(self.vector, ACCESS_BYTES // dtype.bytes)
        return tuple((together * dtype.bytes, column) for column in range(0, self.vector, together))

    @property
    def alignments(self) -> dict[str, int]:
        """Bytes of the boundary that accesses of an operand keep to, by its C type."""
        sizes = {"Input": self.input_bytes, "Mask": self.mask_bytes, "Output": self.vector * self.spec.out.bytes}
        return {name: min(ACCESS_BYTES, size) for name, size in sizes.items()}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPlan(PanelPlan):
    """A block walks down its panel, tile after tile."""

    strategy: ClassVar[str] = "columns"
    template: ClassVar[str] = "columns.cu.j2"


def column_width(spec: ScanSpec) -> int:
    """Columns a thread reads and writes with one access: 16 bytes of the widest operand, every row on the boundary."""
    if spec.strided or not spec.aligned:
        return 1
    width = full_width(spec)
    while spec.inner % width:
        width //= 2
    return width


def full_width(spec: ScanSpec) -> int:
    """Columns whose items take 16 bytes of the widest operand."""
    sizes = [row.bytes for row in (spec.input, spec.out, spec.mask_dtype) if row is not None]
    return ACCESS_BYTES // max(sizes)


def panel_lanes(spec: ScanSpec, vector: int, most: int) -> int:
    """Threads side by side: no more than there are columns for."""
    return min(most, power_of_two_above(ceil_div(spec.inner, vector)))


def can_stage(spec: ScanSpec, target: Target, together: int) -> bool:
    """Whether asynchronous copies can bring the operands: the architecture has them, and for these sizes."""
    sizes = [min(ACCESS_BYTES, row.bytes * together) for row in (spec.input, spec.mask_dtype) if row is not None]
    return target.copies_async and all(size in COPY_BYTES for size in sizes)


def is_narrow(spec: ScanSpec, target: Target) -> bool:
    """Whether all columns together are less than a line of memory, and lanes exchange rows to read whole lines."""
    same = spec.input.bytes == spec.out.bytes
    return same and spec.inner * spec.out.bytes < LINE_BYTES and can_stage(spec, target, column_width(spec))


def register_rows(spec: ScanSpec, vector: int, *, apart: bool = False) -> int:
    """Rows of a thread that pass through its registers, of which it has 128."""
    sizes = [row.bytes for row in (spec.input, spec.mask_dtype) if row is not None]
    loaded = sum(max(4, size) if apart else size for size in sizes)  # what is read alone takes a register of its own
    rows = ROWS
    while rows * vector * max(fragments(spec).state_bytes, loaded * 3 // 4) > ROW_BYTES:
        rows //= 2
    return max(1, rows)


def odd_rows(spec: ScanSpec, vector: int, most: int) -> int:
    """Rows of a thread that passes them to its neighbours: an odd number keeps lanes in different banks."""
    fitting = NARROW_BYTES // (vector * fragments(spec).state_bytes)
    return min(most, max(1, (fitting - 1) | 1))


# H200, fp32 sum unless said otherwise, fraction of a copy. Two blocks of 256, or one of 512, share a multiprocessor.
ROWS, ROW_BYTES = 16, 256  # a thread: 1 x 32768 x 8192 by panels has 0.97; 12 rows 0.92, 8 rows 0.90
STRIDED_THREADS = ((8192, 512), (MAX_LENGTH, 256))  # (length up to, threads): 32768 x 8192 has 0.89, 0.81 with 512
FEW_COLUMNS, FEW_ITEMS = 8, 4  # 16384 x 4096 x 4, a column a lane: 0.94, with 512 threads 0.84, with 8 rows 0.49
THREADS = 256
LANES = 16  # 256 bytes a row: 1 x 32768 x 8192 by a loop has 0.92, with 8 lanes 0.83
ONE_TILE = 256  # rows; 2048 x 256 x 512 is a tile of registers
# (length up to, lanes, threads, rows a thread, stages) of a loop over staged tiles
STAGED = (
    (512, 16, 512, 8, 2),  # 512 x 512 x 1024: 0.99, with 8 lanes, one tile, 0.94
    (1024, 8, 512, 8, 2),  # 256 x 1024 x 1024: 0.974, with 16 lanes 0.966
    (MAX_LENGTH, 16, 256, 8, 4),  # bf16, 64 x 4096 x 1024: 0.934, 0.926 with 3 stages and two blocks, 0.84 by panels
)
NARROW_BYTES = 288  # of states a thread
# (threads, rows a thread, stages, blocks) of narrow panels
NARROW_TILE = (256, 17, 1, 2)  # all of a column: 16384 x 4096 x 4 has 0.98, 0.50 where lanes read what they scan
NARROW_LOOP = (512, 11, 2, 1)  # 4096 x 4096 x 16: 0.958, 256 x 17 x 3 0.953, 512 x 9 x 3 0.950
DECLARED_BYTES = 8192  # of shared memory, beside the ring


def plan(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """Panels of 256 bytes a row; lanes reach along the columns where there are few."""
    if is_narrow(spec, target):
        return _narrow(spec, target)
    vector = column_width(spec)
    if vector > 1 and spec.capacity > ONE_TILE and can_stage(spec, target, vector):
        _, lanes, threads, items, stages = next(row for row in STAGED if spec.capacity <= row[0])
        return _plan(spec, target, vector, panel_lanes(spec, vector, lanes), threads, items, stages=stages, blocks=1)
    items, most = register_rows(spec, vector), THREADS
    if vector == 1 or spec.inner <= FEW_COLUMNS:
        vector = 1
        items, most = (FEW_ITEMS, THREADS) if spec.inner <= FEW_COLUMNS else (ROWS, _strided_threads(spec))
    elif spec.capacity > ONE_TILE:
        items = max(1, items // 2)  # the next tile waits in registers meanwhile
    items = min(items, spec.capacity)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    lanes = panel_lanes(spec, vector, LANES if vector > 1 and slots > 1 else WARP)
    threads = max(WARP, min(most, lanes * slots))
    return _plan(spec, target, vector, lanes, threads, items, stages=0, blocks=max(1, 512 // threads))


def _strided_threads(spec: ScanSpec) -> int:
    return next(threads for length, threads in STRIDED_THREADS if spec.capacity <= length)


def _narrow(spec: ScanSpec, target: Target) -> ColumnsPlan:
    vector = column_width(spec)
    lanes = panel_lanes(spec, vector, WARP)
    threads, most, stages, blocks = NARROW_TILE
    items = odd_rows(spec, vector, most)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    if lanes * slots > threads:
        threads, most, stages, blocks = NARROW_LOOP
        items = odd_rows(spec, vector, most)
    return _plan(
        spec, target, vector, lanes, min(threads, max(WARP, lanes * slots)), items, stages=stages, blocks=blocks
    )


def _plan(
    spec: ScanSpec, target: Target, vector: int, lanes: int, threads: int, items: int, *, stages: int, blocks: int
) -> ColumnsPlan:
    made = ColumnsPlan(
        spec=spec,
        target=target,
        why=f"the scanned dimension has stride {spec.inner}: {lanes * vector} neighbouring columns a block",
        threads=threads,
        items=items,
        tiles=ceil_div(spec.capacity, threads // lanes * items),
        columns=lanes * vector,
        vector=vector,
        apart=False,
        stages=stages,
        blocks=blocks,
    )
    if made.tiles == 1 and stages > 1:
        return replace(made, stages=1)
    if made.shared_bytes + DECLARED_BYTES > target.block_shared_bytes:
        if stages > 2:
            return _plan(spec, target, vector, lanes, threads, items, stages=stages - 1, blocks=1)
        return _plan(spec, target, vector, lanes, threads // 2, items, stages=stages, blocks=1)
    return made
