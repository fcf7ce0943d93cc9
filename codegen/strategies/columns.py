"""Columns: the scanned dimension is strided; lanes take neighbouring columns, so accesses are coalesced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import INT_BYTES
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import COLUMN_LENGTH, LINE_BYTES
from scanops.codegen.shapes import Shape, find_shape
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec
from scanops.codegen.strategies import column_tile
from scanops.codegen.strategies.base import WARP, Constant, Launch, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.column_tile import ColumnTilePlan
from scanops.codegen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPlan(ColumnTilePlan):
    """One block walks down a tile of neighbouring columns, tile by tile."""

    strategy: ClassVar[str] = "columns"
    template: ClassVar[str] = "columns.cu.j2"

    def __post_init__(self) -> None:
        """Check that a ring of several stages holds as many tiles."""
        ColumnTilePlan.__post_init__(self)
        single = self.tiles == 1 or self.spec.takes_length
        require(self, self.stages < 2 or self.tiles > 1, "several tiles for several stages")
        require(self, self.stages != 1 or single, "several stages for several tiles")

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names."""
        return (*ColumnTilePlan.constants(self), Constant("kLoops", self.tiles > 1, "a column has several tiles"))

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block for each column tile; of chunks, in place of the length, their number."""
        return self._launch("lines", adjacent=self.spec.inner, width=self.columns, tile=int(bool(self.spec.ragged)))


# H200, fp32 sum unless stated otherwise, fraction of a copy. Two blocks of 256, or one of 512, share a multiprocessor.
FEW_COLUMNS, FEW_ITEMS = 8, 4  # 16384 x 4096 x 4, a column a lane: 0.94, with 512 threads 0.84, with 8 rows 0.49
THREADS = 256
# Bytes of memory that are read together, and threads of a block of few short columns. Tiles of parts of a sector read
# it several times: sums of bfloat16, 52 x 1024 x 16, have 0.19 in tiles of 1 column, 0.58 in tiles of 16, 0.73 where
# lanes exchange rows; 33 x 512 x 96 has 0.67 with 8 columns, 0.82 with 16.
SECTOR_BYTES, FEW_THREADS = 32, 512
# Rows of columns that are one tile of registers. Narrow ones are read as they are scanned: recurrences in bfloat16,
# 526031 x 16 x 16, have 0.61 with a column a thread, 0.46 where lanes exchange rows of 4 columns.
SHORTEST = 32
# Columns of a tile in a loop of small blocks, at most, and rows of a thread, at least. Sums in bfloat16 with offsets,
# 374 x 72 x 1024, have 0.72 in tiles of 64 columns, 0.56 in tiles of 32.
TILE_COLUMNS, LEAST_ROWS = 64, 4
LANES = 16  # 256 bytes a row: 1 x 32768 x 8192 by a loop has 0.92, with 8 lanes 0.83
SHORT = 1024  # rows; a longer loop has one more tile in flight
SHORT_FEW = 512  # rows of few narrow columns of a fused scan, of which one block scans a column tile
LONGEST_FUSED = 4096  # rows of fused scans that are short: longer ones take tiles of more rows
ONE_TILE = 256  # rows; 2048 x 256 x 512 is a tile of registers
# Rows of a thread that reads through shared memory, at least, whose columns are fewer otherwise. Gradients of a gate's
# sum in float16, 50 x 4832 x 128, have 0.79 with 6 rows of 4 columns, 0.45 with 2 rows.
STAGED_ROWS = 6
# Of a thread that holds a tile in registers while the next one arrives: gradients of products with flags in float16,
# 8815 x 8192, have 0.61 with 6 rows of 16 bytes, 0.35 with 2 rows of 32.
LOOP_STATE_BYTES = 192
SHORT_THREADS = 512  # of a multiprocessor, at least, by blocks of short columns
PAIR_ROWS = 128  # rows; more than so many are a loop
# Tiles of the shape that holds a narrow column, at most, where the length is an argument and typically half of the
# longest or less.
ANY_TILES = 2
LOOP, NARROW = ("threads", "items", "columns", "vector", "stages"), ("threads", "items", "stages", "blocks")
DECLARED_BYTES = 8192  # bytes of shared memory besides the ring, at least
MOST_DECLARED_BYTES = 48 * 1024  # more must be dynamic shared memory: complex128 states of several fields


def plan(key: KernelKey) -> ColumnsPlan:
    """Plan column tiles of 256 bytes per row; lanes extend along the columns where there are few columns."""
    spec, target = key.spec, key.architecture
    leaves_registers = column_tile.fit_width(spec) >= min(column_tile.column_width(spec), column_tile.LIGHT_COLUMNS)
    exchanges = column_tile.is_narrow(spec, target) and (leaves_registers or not spec.aligned)
    few = key.is_few and spec.capacity <= COLUMN_LENGTH and column_tile.are_neighbours(spec)
    narrow = exchanges and spec.inner * spec.out.bytes <= SECTOR_BYTES and not spec.operator.costly  # one column tile
    if few and not narrow:
        return _few(spec, target)
    if exchanges:
        most = (SHORT_FEW if key.is_few else SHORT) if spec.fusion else SHORTEST
        is_short = spec.capacity <= most and spec.aligned and not spec.takes_length
        return _short(spec, target) if is_short else _narrow(spec, target)
    vector = column_tile.column_width(spec)
    shape = find_shape("columns pair", spec.out.bytes)
    threads, items, columns, width, stages = shape.take(*LOOP)
    if (
        column_tile.is_pair(spec)
        and spec.capacity > PAIR_ROWS
        and vector >= width
        and column_tile.can_stage(spec, target, width)
    ):
        stages += spec.capacity > SHORT
        return _plan(spec, target, width, columns // width, threads, items, shape, stages=stages, blocks=1)
    if column_tile.is_gradient(spec) and spec.capacity > PAIR_ROWS:
        kind = " short" if spec.capacity <= SHORT and spec.out.bytes < 4 else ""
        kind = " few" if key.is_few else " costly" if spec.operator.costly else kind
        shape = find_shape(f"columns gradient{kind}", spec.out.bytes)
        threads, items, columns, width, stages = shape.take(*LOOP)
        if vector >= width and (stages == 0 or column_tile.can_stage(spec, target, width)):
            return _plan(spec, target, width, columns // width, threads, items, shape, stages=stages, blocks=1)
    searches = spec.by_offsets and spec.inner * spec.out.bytes < LINE_BYTES  # each for few columns
    if column_tile.is_costly(spec) and spec.capacity > SHORTEST and vector > 1 and not searches:
        shape = find_shape("columns costly", spec.out.bytes)
        threads, items, columns, width, blocks = shape.take("threads", "items", "columns", "vector", "blocks")
        items = min(items, ceil_div(spec.capacity, threads * width // columns))  # rows for all threads
        return _plan(spec, target, width, columns // width, threads, items, shape, stages=0, blocks=blocks)
    if _is_short(spec, target):
        return _short(spec, target)
    shape = find_shape("columns staged", spec.capacity)
    threads, items, stages, states = shape.take("threads", "items", "stages", "states")
    vector = column_tile.fit_width(spec, states // STAGED_ROWS)
    if vector > 1 and spec.capacity > ONE_TILE and column_tile.can_stage(spec, target, vector):
        items = column_tile.fit_rows(spec, vector, items, states)
        lanes = max(LANES, TILE_COLUMNS // vector)
        return _plan(spec, target, vector, lanes, threads, items, shape, stages=stages, blocks=1)
    vector = column_tile.fit_width(spec)
    items, most, strided = column_tile.register_rows(spec, vector, few=key.is_few), THREADS, None
    if vector == 1 or spec.inner <= FEW_COLUMNS:
        vector = 1
        if spec.inner <= FEW_COLUMNS:
            items = FEW_ITEMS
        else:
            strided = find_shape("columns strided", spec.capacity)
            items, most = column_tile.ROWS, strided.numbers["threads"]
        items = min(
            items, column_tile.WIDE_ROW_BYTES // max(spec.input.bytes, spec.out.bytes)
        )  # complex128: 16 rows spill
    elif spec.capacity > ONE_TILE and not column_tile.is_light(spec):
        items = column_tile.fit_rows(spec, vector, column_tile.ROWS, LOOP_STATE_BYTES)
    elif spec.capacity > ONE_TILE:
        items = max(1, items // 2)  # the next tile waits in registers meanwhile
    items = min(items, spec.capacity)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    wide = vector == 1 or slots == 1 or (spec.ragged and slots * WARP <= most)  # chunks: 0.952, 16 lanes 0.943
    lanes = column_tile.lanes_across(spec, vector, WARP if wide else LANES)
    threads = max(WARP, min(most, lanes * slots))
    return _plan(spec, target, vector, lanes, threads, items, strided, stages=0, blocks=max(1, 512 // threads))


def _is_short(spec: ScanSpec, target: Target) -> bool:
    """Whether small blocks are faster: those of hundreds of threads would wait for each other more than they read.

    Columns of more than a tile are where cp.async copies no items, or gradients take registers; of any length where
    expressions do, if they are not long, or read one by one. Gradients of fused sums in bfloat16, 371 x 1126 x 224,
    have 0.55 by small blocks, 0.40 with 4 columns a thread; forward and backward, 90 x 65536 x 18, 0.24 and 0.29.
    """
    if spec.ragged or spec.takes_length or not column_tile.are_neighbours(spec):
        return False
    if spec.capacity > ONE_TILE:
        width = column_tile.column_width(spec)
        if spec.fusion:
            return spec.capacity <= LONGEST_FUSED or width == 1
        return spec.capacity <= SHORT and (bool(spec.operator.own) or not column_tile.can_stage(spec, target, width))
    light = column_tile.is_light(spec) and not spec.fusion and column_tile.column_width(spec) > 1
    return not (light and spec.out.bytes < INT_BYTES)


def _short(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """The plan of many short columns: small blocks, of which a multiprocessor holds so many that some always read."""
    is_shortest, strided = spec.capacity <= SHORTEST, False
    vector = column_tile.fit_width(spec, column_tile.SHORT_STATE_BYTES)
    if is_shortest and spec.inner * spec.out.bytes < LINE_BYTES:
        vector = 1
    elif vector == 1 and spec.access_items > 1 and spec.inner > 2 * WARP and not spec.line_sums:
        vector, strided = 2, column_tile.column_width(spec) == 1
    shape = find_shape("columns short" + " strided" * (strided and not is_shortest), spec.capacity)
    threads, slots, most, stages, states = shape.take("threads", "slots", "items", "stages", "states")
    lanes = column_tile.lanes_across(spec, vector, min(WARP, TILE_COLUMNS // vector))
    if vector == 1 and lanes == WARP and 0 < spec.inner % WARP <= WARP // 2:
        lanes = WARP // 2  # fewer idle: int8, 712 x 33 with offsets, has 0.59, with a warp across 0.39
    threads = max(threads, lanes * slots)
    most = column_tile.fit_rows(spec, vector, most, states)
    tiles = ceil_div(spec.capacity, threads // lanes * most)
    items = min(most, max(LEAST_ROWS, ceil_div(spec.capacity, threads // lanes * tiles)))  # tiles of as many rows
    threads = max(WARP, min(threads, lanes * power_of_two_above(ceil_div(spec.capacity, items))))
    stages = stages if not strided and column_tile.can_stage(spec, target, vector) else 0
    if threads // lanes * items >= spec.capacity:
        stages = 0
    return _plan(
        spec, target, vector, lanes, threads, items, shape,
        stages=stages, blocks=max(1, SHORT_THREADS // threads), strided_columns=strided,
    )  # fmt: skip


def _few(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """The plan of few short columns: blocks that read whole sectors, each of all rows if registers hold them."""
    sector = max(2, SECTOR_BYTES // max(spec.input.bytes, spec.out.bytes))
    lanes = column_tile.lanes_across(spec, 1, sector)
    slots = FEW_THREADS // lanes
    items = min(column_tile.register_rows(spec, 1), max(FEW_ITEMS, ceil_div(spec.capacity, slots)))
    threads = max(WARP, min(FEW_THREADS, lanes * power_of_two_above(ceil_div(spec.capacity, items))))
    return _plan(spec, target, 1, lanes, threads, items, None, stages=0, blocks=max(1, FEW_THREADS // threads))


def _narrow(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """The plan of column tiles narrower than a cache line: one tile where a block holds all rows, else a loop."""
    vector = column_tile.fit_width(spec) if spec.aligned else column_tile.column_width(spec)
    lanes = column_tile.lanes_across(spec, vector, WARP)
    shape = find_shape("columns narrow")
    threads, most, stages, blocks = shape.take(*NARROW)
    items = min(column_tile.odd_rows(spec, vector, most), spec.capacity if spec.aligned else spec.capacity | 1)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    if lanes * slots > threads * (ANY_TILES if spec.takes_length else 1):
        kind = " view" if spec.input_layout == "columns" else "" if spec.alone else " masked"
        shape = find_shape(f"columns narrow loop{kind}")
        threads, most, stages, blocks = shape.take(*NARROW)
        items = column_tile.odd_rows(spec, vector, most)
    threads = min(threads, max(WARP, lanes * slots))
    return _plan(spec, target, vector, lanes, threads, items, shape, stages=stages, blocks=blocks)


def _plan(
    spec: ScanSpec,
    target: Target,
    vector: int,
    most_lanes: int,
    threads: int,
    items: int,
    shape: Shape | None,
    *,
    stages: int,
    blocks: int,
    strided_columns: bool = False,
) -> ColumnsPlan:
    """The plan of these numbers, with fewer stages, then fewer threads, until shared memory suffices."""
    lanes = column_tile.lanes_across(spec, vector, most_lanes)
    one_tile = threads // lanes * items >= spec.capacity
    made = ColumnsPlan(
        spec=spec,
        target=target,
        why=f"the scanned dimension has stride {spec.inner}: {lanes * vector} neighbouring columns per block",
        origin=shape.origin if shape else "",
        threads=threads,
        items=items,
        columns=lanes * vector,
        vector=vector,
        strided_columns=strided_columns,
        stages=min(stages, 1) if one_tile else stages,
        blocks=blocks,
    )
    totals_bytes = (
        made.warps * made.columns * (2 * made.code.state_bytes + made.sum_bytes)
    )  # of two tiles, of sums once
    declared = max(DECLARED_BYTES, totals_bytes + lanes * ACCESS_BYTES * len(spec.per_line))
    if made.shared_bytes + declared <= target.block_shared_bytes and declared <= MOST_DECLARED_BYTES:
        return made
    stages, threads = (stages - 1, threads) if stages > 2 else (stages, threads // 2)
    return _plan(
        spec, target, vector, lanes, threads, items, shape, stages=stages, blocks=1, strided_columns=strided_columns
    )
