"""Tiles of neighbouring columns: the plan of a block, and how many columns and rows of a tile a thread takes."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.fragments import INT_BYTES, fragments
from scanops.codegen.layouts import ADJACENT, STEP
from scanops.codegen.lines import LINE_BYTES
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import (
    WARP,
    Constant,
    Plan,
    ceil_div,
    is_power_of_two,
    power_of_two_above,
    require,
)
from scanops.codegen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTilePlan(Plan):
    """A block scans a tile of ``columns`` neighbouring columns; its threads are slots along the columns.

    A thread takes ``vector`` neighbouring columns, one access per row, and ``items`` consecutive rows of a tile. Tiles
    are read through shared memory or straight to registers.
    """

    columns: int  # per column tile
    vector: int  # columns per thread, a power of two
    strided_columns: bool  # they are read one by one, `lanes` columns apart; otherwise adjacent columns by one access
    stages: int  # stages of the ring in shared memory, most of them in flight; 0: tiles pass through registers only
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds

    def __post_init__(self) -> None:
        """Check that threads divide a column tile evenly, and that cp.async can copy staged tiles."""
        Plan.__post_init__(self)
        lanes, fitting = self.lanes, 2 * max(self.spec.inner, self.vector)
        side_by_side = self.vector == 1 or self.strided_columns or are_neighbours(self.spec)
        require(self, self.columns % self.vector == 0, "columns that are a whole number of accesses")
        require(self, side_by_side, "accesses of one column where an operand's columns are not adjacent in memory")
        require(
            self, self.strided_columns or self.spec.inner % self.vector == 0, "rows that are a whole number of accesses"
        )
        require(self, is_power_of_two(lanes) and lanes <= WARP, f"lanes that are a power of two up to {WARP}")
        require(self, self.columns < fitting, "columns that the tensor has")
        require(self, is_power_of_two(self.threads), "a power of two of threads")
        if self.stages:
            copied = can_stage(self.spec, self.target, self.vector) and not self.strided_columns
            flat = self.exchanged and self.items % 2 == 1  # no padding between the rows of lanes
            require(self, copied, "copies that whole accesses can make")
            require(self, self.spec.aligned or flat, "aligned columns, or rows exchanged without gaps, of staged tiles")

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names; numbers that follow from them are constants of the text itself."""
        return (
            Constant("kInner", self.spec.inner, "columns side by side: the stride of the scanned dimension"),
            Constant("kBlocksPerSm", self.blocks, "least resident blocks per multiprocessor"),
            Constant("kRunItems", self.items, "rows per thread and tile"),
            Constant("kThreadColumns", self.vector, "columns per thread"),
            Constant("kLanes", self.lanes, "threads side by side across a column tile"),
            Constant("kColumnTiles", self._column_tiles, "column tiles across the columns"),
            Constant(
                "kPartialColumns",
                self._column_tiles * self.columns != self.spec.inner,
                "the last tile has fewer columns",
            ),
            Constant(
                "kStridedColumns", self.strided_columns, "a thread's columns are kLanes apart, and accessed one by one"
            ),
            Constant("kRealigns", self.realigns, "rows start between the boundaries of vector loads"),
            Constant("kExchangesRows", self.exchanged, "lanes exchange rows in shared memory"),
            Constant("kStages", self.stages, "tiles in the ring in shared memory"),
            Constant("kLineSums", len(self.summed), "results that are summed over lines"),
        )

    @property
    def lanes(self) -> int:
        """Number of threads side by side across a column tile."""
        return self.columns // self.vector

    @property
    def tile(self) -> int:
        """Number of rows in a tile."""
        return self.threads // max(1, self.lanes) * self.items

    @property
    def _column_tiles(self) -> int:
        """Number of column tiles side by side across the inner dimension."""
        return ceil_div(self.spec.inner, self.columns)

    @property
    def realigns(self) -> bool:
        """Whether rows start off the boundary of an access, so that items of two accesses are shifted into place."""
        return not self.spec.aligned and not self.strided_columns and self.vector > 1

    @property
    def sum_bytes(self) -> int:
        """Bytes of a column's sums."""
        return len(self.summed) * self.spec.sum.bytes

    @property
    def exchanged(self) -> bool:
        """Whether the lanes of a warp exchange rows in shared memory.

        In global memory lanes access rows in turns, so that an access of the warp is contiguous however narrow the
        column tile is; in shared memory each lane scans neighbouring rows.
        """
        narrow = self.columns * self.spec.input.bytes < LINE_BYTES and not self.spec.ragged
        is_plain = self.spec.keeps_bytes and not self.strided_columns
        return self.stages > 0 and self._column_tiles == 1 and narrow and is_plain

    def is_flat(self, source: Source) -> bool:
        """Whether a warp's rows of an operand are one contiguous range, read by full 16-byte accesses."""
        if (
            source.layout != "dense"
            or not self.exchanged
            or (source.shift and not self.realigns)
            or self.items % 2 == 0
            or self.columns != self.spec.inner
        ):
            return False
        access_bytes = self.vector * source.dtype.bytes
        rows = ACCESS_BYTES // min(ACCESS_BYTES, access_bytes * self.lanes)  # of a 16-byte access
        whole = access_bytes < ACCESS_BYTES and self._warp_rows % rows == 0 and self.spec.divides(rows)
        return self.realigns or whole

    @property
    def _warp_rows(self) -> int:
        return WARP // self.lanes * self.items

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, the ring; 0 where declared arrays are enough."""
        sizes = [self.vector * source.dtype.bytes for source in self.spec.streams]
        return self.stages * sum(size * self._stage_accesses(size) for size in sizes)

    def _stage_accesses(self, size: int) -> int:
        """Accesses of so many bytes in a stage of the ring: with padding against bank conflicts where lanes exchange
        rows, and slack for misaligned ones.
        """
        if not self.exchanged:
            return self.items * self.threads
        padding = WARP if self.items % 2 == 0 else 0
        return self.warps * (self._warp_rows * self.lanes + padding + self.realigns * ACCESS_BYTES // size)


# H200, fp32 sum, fraction of a copy.
ROWS, ROW_BYTES = 16, 256  # bytes per thread: 1 x 32768 x 8192 by column tiles has 0.97; 12 rows 0.92, 8 rows 0.90
WIDE_STATE, WIDE_ROW_BYTES = 8, 128  # larger states also need large prefixes: 256 bytes of double pairs spill
ASYNC_BYTES = (4, 8, 16)  # bytes that one cp.async can copy
NARROW_BYTES = 288  # bytes of states per thread
# Bytes of a row's states in a thread. More leave registers for a row or two, whose loads hide no latency: products with
# flags in float16, 8815 x 8192, have 0.13 with 8 columns a thread, 0.45 with 2; short recurrences in bfloat16,
# 11520 x 32 x 512, 0.75 with 8 columns, 0.97 with 2 (H200).
ROW_STATE_BYTES, SHORT_STATE_BYTES = 32, 24
LIGHT_COLUMNS = 4  # of a thread, for which light states leave registers


def are_neighbours(spec: ScanSpec) -> bool:
    """Whether neighbouring columns are adjacent in memory, or have one item, in every operand."""
    return spec.layouts <= ADJACENT


def column_width(spec: ScanSpec) -> int:
    """Columns per thread: those of one store of at most 16 bytes, at the same alignment in every row."""
    width = spec.access_items if are_neighbours(spec) else 1
    while spec.inner % width:
        width //= 2
    return width


def fit_width(spec: ScanSpec, row_state_bytes: int = ROW_STATE_BYTES) -> int:
    """Columns per thread whose states leave registers for several rows: of ``column_width``, or fewer."""
    width, held = column_width(spec), fragments(spec).held_bytes
    while width > 1 and width * held > row_state_bytes:
        width //= 2
    return width


def is_light(spec: ScanSpec) -> bool:
    """Whether a thread holds the state of an item in one register."""
    return fragments(spec).held_bytes <= INT_BYTES


def fit_rows(spec: ScanSpec, vector: int, most: int, state_bytes: int) -> int:
    """Rows of a thread with so many bytes of states, at most ``most``."""
    return max(1, min(most, spec.capacity, state_bytes // (vector * fragments(spec).held_bytes)))


def lanes_across(spec: ScanSpec, vector: int, most: int) -> int:
    """Threads side by side across a column tile: no more than there are columns for."""
    return min(most, power_of_two_above(ceil_div(spec.inner, vector)))


def can_stage(spec: ScanSpec, target: Target, together: int) -> bool:
    """Whether cp.async can copy the operands: the target has it, for accesses of these sizes, not one item for several
    columns; misaligned rows are copied as contiguous ranges: those of a warp, each shorter than a cache line, by full
    accesses only.
    """
    sizes = [source.dtype.bytes * together for source in spec.streams]
    if not target.copies_async or STEP in spec.layouts or any(size not in ASYNC_BYTES for size in sizes):
        return False
    narrow = not spec.views and spec.keeps_bytes and spec.inner * spec.out.bytes < LINE_BYTES
    full = together * spec.input.bytes == ACCESS_BYTES and spec.inner % together == 0
    return spec.aligned or (narrow and full and is_power_of_two(spec.inner // together))


def is_narrow(spec: ScanSpec, target: Target) -> bool:
    """Whether all columns together are narrower than a cache line, so that lanes exchange rows to read full lines."""
    narrow = spec.keeps_bytes and spec.inner * spec.out.bytes < LINE_BYTES and not spec.ragged
    return narrow and can_stage(spec, target, column_width(spec))


def register_rows(spec: ScanSpec, vector: int, *, strided_columns: bool = False, few: bool = False) -> int:
    """Rows of a thread that pass through its registers, of which it has 128."""
    sizes = [source.dtype.bytes for source in spec.streams]
    loaded = sum(
        max(4, size) if strided_columns else size for size in sizes
    )  # an item that is read alone takes a whole register
    realigned = not spec.aligned and vector > 1 and not strided_columns  # two accesses a row
    loaded = loaded * 5 // 6 if realigned else loaded * 3 // 4
    state_bytes, rows = fragments(spec).held_bytes, ROWS
    most = ROW_BYTES if state_bytes <= WIDE_STATE else WIDE_ROW_BYTES
    while rows * vector * max(state_bytes, loaded) > most:
        rows //= 2
    # Ends of operands take registers: 64 x 4096 x 1024, 2 items off, has 0.90 with 12 rows, 0.50 with 16. So do the
    # addresses of status words: int8 to int64 spills 32 to 88 bytes with 16 rows.
    if realigned or (few and not spec.alone):
        rows -= rows // 4
    return max(1, rows)


def odd_rows(spec: ScanSpec, vector: int, most: int) -> int:
    """Rows of a thread that passes them to its neighbours: odd, to avoid bank conflicts."""
    fitting = NARROW_BYTES // (vector * fragments(spec).held_bytes)
    return min(most, max(1, (fitting - 1) | 1))


def is_pair(spec: ScanSpec) -> bool:
    """Whether a state is a small pair to which an element is appended in two operations, as of a recurrence."""
    operator = spec.operator
    cheap = bool(operator.append) and not (operator.costly or operator.own or operator.extend)
    plain = spec.mask is None and spec.aligned
    return cheap and plain and spec.keeps_bytes and spec.out.bytes <= 8


def is_gradient(spec: ScanSpec) -> bool:
    """Whether states hold items until the end: those of gradients, beside a tensor of the forward scan or a gate."""
    operator = spec.operator
    plain = spec.aligned and spec.mask is None and spec.out.bytes in (2, 4) and spec.accumulator.bytes <= 4
    reads = spec.looks_ahead or (spec.saved is not None and operator.costly) or (spec.gate and not spec.saved)
    return plain and bool(reads and operator.append and operator.own)


def is_costly(spec: ScanSpec) -> bool:
    """Whether a combine takes dozens of instructions, on aligned columns of 2 or 4 bytes an item."""
    return (
        spec.aligned
        and spec.keeps_bytes
        and spec.operator.costly
        and spec.out.bytes in (2, 4)
        and not spec.operator.own
    )
