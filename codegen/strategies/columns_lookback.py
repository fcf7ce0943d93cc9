"""Columns split over blocks: one tile per block, claimed in memory order, with tree look-back over tile status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.fragments import INT_BYTES, fragments
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.layouts import STEP
from scanops.codegen.lines import COLUMN_LENGTH, LINE_BYTES
from scanops.codegen.shapes import Shape, find_shape
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import column_tile
from scanops.codegen.strategies.base import WARP, Constant, Launch, is_power_of_two, require
from scanops.codegen.strategies.column_tile import ColumnTilePlan
from scanops.codegen.strategies.columns import DECLARED_BYTES, ONE_TILE, SECTOR_BYTES
from scanops.codegen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsLookbackPlan(ColumnTilePlan):
    """A block claims a tile and looks back at the tiles above it in its column tile.

    The exclusive prefix of a tile is folded in an order that depends on its position alone: the carry of the preceding
    groups of groups, which is chained; the totals of preceding groups in its group of groups; the totals of preceding
    tiles in its group. Groups of one tile in groups of one group are a plain chain.
    """

    strategy: ClassVar[str] = "columns_lookback"
    template: ClassVar[str] = "columns_lookback.cu.j2"

    abreast: int  # column tiles whose tiles are claimed together, row of tiles by row of tiles
    group: int  # tiles per group, a power of two up to 32
    stretch: int  # groups per group of groups, likewise

    def __post_init__(self) -> None:
        """Check that the lanes of a block can fold every column of a column tile; a block copies one tile."""
        ColumnTilePlan.__post_init__(self)
        powers = all(is_power_of_two(number) and number <= WARP for number in (self.group, self.stretch))
        require(self, self.columns <= self.threads, "no more columns than threads")
        require(self, powers, f"groups and stretches that are powers of two up to {WARP}")
        require(self, self.stages <= 1, "at most one stage: a block scans one tile")

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block for each tile of each column tile."""
        spans = zip((1, self.group, self.group * self.stretch), self.looks, strict=True)
        statuses = tuple(span for span, is_there in spans if is_there)
        adjacent, width = self.spec.inner, self.columns
        return self._launch("lines", "workspace", adjacent=adjacent, width=width, tile=self.tile, statuses=statuses)

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names."""
        peers, groups, carry = self.looks
        return (
            *ColumnTilePlan.constants(self),
            Constant("kTilesAbreast", self.abreast, "column tiles whose tiles are claimed together"),
            Constant("kGroupTiles", self.group, "tiles per group"),
            Constant("kSupergroupGroups", self.stretch, "groups per group of groups"),
            Constant("kFoldsTiles", peers, "a tile folds the totals of tiles"),
            Constant("kFoldsGroups", groups, "a tile folds the totals of groups"),
            Constant("kChainsPrefixes", carry, "inclusive prefixes are chained over groups of groups"),
        )

    @property
    def looks(self) -> tuple[bool, bool, bool]:
        """Whether a tile looks back at tiles of its group, at groups in its group of groups, at a chained prefix."""
        peers, groups = self.group > 1 and self.tiles > 1, self.stretch > 1 and self.tiles > self.group
        return peers, groups, self.tiles > self.group * self.stretch


# H200, fp32 sum, fraction of a copy.
THREADS, BLOCKS = 256, 2
SPREAD_THREADS, SPREAD_ROWS = 128, 8  # of tiles that are made smaller, so that half of the multiprocessors have one
ABREAST = 256  # 32768 x 32768: 0.96, with 128 column tiles 0.94, with 64 0.91
# 4 H100, 8 x 65536 x 4096, sum, ms where ranks do not meet between scans: 1.54, with 16 1.52, with 32 1.50, with 2
# 1.59. The next rank waits for so many column tiles: with 32 it takes 1.75 where ranks meet.
LINKED_ABREAST = 8
LANES = 16  # 256 bytes a row: 1 x 32768 x 8192 has 0.97, with 8 lanes 0.94, with 32 0.91
NARROW_LANES = 32  # bool to int64, 64 x 4096 x 512: 0.84
# Of a thread, each of which takes a register however small its items are. Two of states of 8 bytes: bfloat16,
# 3 x 13711 x 455 with an expression has 0.46, with 4 columns 0.31. Greater states take the registers of both.
STRIDED_COLUMNS, STRIDED_STATE = 4, 8
STEP_COLUMNS = 2  # of few: flags of steps in bfloat16, 8 x 8720 x 512, 18 rows of 2 have 0.57, 6 rows of 4 have 0.38
# Few columns of greater states: the gradient of cummax in bfloat16, 1 x 43321 x 65, has 0.62 in tiles of 16 columns and
# 24 rows a thread, 0.25 in tiles of 32 and 6 rows; flags of steps, 3 x 31384 x 65, 0.33 in groups of 8 tiles, 0.25 of
# 32.
MOST_ROWS, STATE_BYTES, HEAVY_GROUP = 24, 288, 8
# Few columns whose states take the registers: recurrences in bfloat16, 24 x 16384 x 40, have 0.50 with 9 rows of 4
# columns a thread, 0.24 with 3 rows of 8; with a gate for each line 0.42 and 0.18; gradients, 1 x 16384 x 100, 0.30, by
# a loop 0.07; sums, 24 x 16384 x 40, 0.67 with 18 rows of 4 columns, 0.32 with 8 rows of 8. The gradient of a sum of
# gates, 520699 x 16, takes 95 us with 9 rows of 2 columns, 237 us with 4 rows. Beyond 64 columns recurrences are faster
# in registers: 36216 x 120 takes 17 us, not 21 us (H200).
# Sums of 901317 x 16 take 37 us, in longer tiles of all columns 28 us.
MOST_PAIR_COLUMNS, MOST_HALF_COLUMNS, LONGEST_HALVES = 64, 128, 32768
FEW_ROW_BYTES, FEW_COLUMNS, FEW_ROWS = 16, 64, 19
STRIDED_LANES = 32  # when inner is odd: 64 x 4096 x 1001 has 0.83, 16 lanes 0.71, a column a lane 0.54
# splits a column tile further: fewer totals per byte. 1 x 4194304 x 64: 0.80, in one column tile 0.77
ONE_TILE_LANES = 8
LONG, SMALL_STATE = 131072, 4  # rows; bytes: with both, few columns have larger tiles
TILE = ("threads", "items", "columns", "vector", "group")
GROUP, STRETCH = 32, 4  # 1 x 4194304 x 64: 0.80, in groups of 64 0.78, of 128 0.75
SHORT = 1024  # rows; up to this length a loop over staged tiles is as fast
# rows; logcumsumexp of 1 x 32768 x 4096 has 0.65 by tiles in parallel, 0.28 by a loop
LONGEST_LOOP = 4096
GRADIENT_WIDTH = 4  # columns of a thread in tiles of gradients
LONGEST_GRADIENT = 16384  # rows; few columns of so many are a loop over narrow column tiles
NARROW_GRADIENT = 64  # columns; so few would be a block or two


def fits(key: KernelKey) -> bool:
    """Whether one block per column tile would leave memory idle: columns are long, or odd in number."""
    spec = key.spec
    shortest = COLUMN_LENGTH if key.is_few and not spec.linked else ONE_TILE
    if spec.inner == 1 or spec.ragged or not column_tile.are_neighbours(spec) or spec.capacity <= shortest:
        return False
    if (
        column_tile.is_gradient(spec)
        and column_tile.column_width(spec) > 2
        and not (
            key.is_few and (_takes_registers(spec) or spec.capacity > LONGEST_GRADIENT or spec.inner <= NARROW_GRADIENT)
        )
    ):
        return False
    if not key.is_few:
        if spec.inner * spec.out.bytes < LINE_BYTES:
            return False
        width = column_tile.column_width(spec)
        # Loops are as fast, products of 5724 x 512 x 38 with 0.91, 0.84 in tiles, and sum over lines once a column: odd
        # numbers of columns whose operands are summed, 2 x 8192 x 2313, have 0.56, in tiles 0.48.
        if spec.capacity <= SHORT or (width == 1 and spec.line_sums):
            return False
        # A loop has more halves in flight than registers hold, unless states take the registers; so have loops of
        # expressions: three operands, 74 x 2608 x 256, have 0.81, in tiles 0.72.
        short = spec.capacity <= LONGEST_LOOP
        pairs = column_tile.is_pair(spec) and not (short and spec.segments)
        halves = {*spec.result_bytes} == {spec.input.bytes} and spec.out.bytes < 4 and not pairs
        loops = halves or (bool(spec.fusion) and not pairs) or (short and column_tile.is_costly(spec))
        if width == spec.access_items and loops:
            return False
    return plan(key).tiles > 1


def plan(key: KernelKey) -> ColumnsLookbackPlan:
    """Plan one chain per column tile, many of them side by side; for few, larger tiles with a tree look-back.

    Linked lines end a few column tiles at a time, as the next rank waits for them.
    """
    if key.is_few and not key.spec.linked and _takes_registers(key.spec):
        return _of_states(key.spec, key.architecture)
    made = _plan(key)
    if key.spec.linked:
        return _link(key, made)
    return _spread(key, made) if key.is_few else made


def _takes_registers(spec: ScanSpec) -> bool:
    """Whether states take more registers than items do: of half types in columns that are not long; of expressions."""
    if spec.fusion:
        return fragments(spec).held_bytes > column_tile.WIDE_STATE
    small = {*spec.result_bytes} == {spec.out.bytes} and spec.out.bytes < INT_BYTES
    long = spec.capacity > (LONGEST_GRADIENT if column_tile.is_gradient(spec) else LONGEST_HALVES)
    most = MOST_PAIR_COLUMNS if column_tile.is_pair(spec) else MOST_HALF_COLUMNS
    spills = spec.operator.costly and not column_tile.is_gradient(spec)  # wider tiles, with as many columns a thread
    narrow = column_tile.column_width(spec) > 1 and (spec.inner <= most or spills)
    return small and narrow and (spills or not long)


def _of_states(spec: ScanSpec, target: Target) -> ColumnsLookbackPlan:
    """The plan of few columns by their states: many rows of few columns a thread, in shared memory if copies can be."""
    vector = column_tile.fit_width(spec, FEW_ROW_BYTES * (1 if column_tile.is_light(spec) else 2))
    staged = column_tile.can_stage(spec, target, vector)
    lanes = column_tile.lanes_across(spec, vector, min(WARP, FEW_COLUMNS // vector))
    if staged:
        items = column_tile.odd_rows(spec, vector, FEW_ROWS)
    else:
        items = column_tile.fit_rows(spec, vector, FEW_ROWS, STATE_BYTES)
    return _fill(
        spec, target, vector, lanes, THREADS, items, None, stages=int(staged), group=HEAVY_GROUP, stretch=STRETCH
    )


def _spread(key: KernelKey, made: ColumnsLookbackPlan) -> ColumnsLookbackPlan:
    """The plan with smaller tiles where those of the shape leave multiprocessors idle."""
    spec, target = key.spec, key.architecture
    most = (
        spec.capacity * spec.inner // (target.multiprocessors // 2)
    )  # items of a tile; batches have tiles of their own
    if made.threads * made.vector * made.items <= most:
        return made
    threads, vector = min(made.threads, SPREAD_THREADS), min(made.vector, column_tile.column_width(spec))
    items = min(made.items, column_tile.register_rows(spec, vector, few=True))
    while threads * vector * items > most and (vector > 1 or items > SPREAD_ROWS):
        vector, items = (vector // 2, items) if vector > 1 else (vector, max(SPREAD_ROWS, items // 2))
    lanes = column_tile.lanes_across(spec, vector, max(1, SECTOR_BYTES // spec.out.bytes // vector))
    blocks = min(8, made.blocks * made.threads // threads)
    return _fill(spec, target, vector, lanes, threads, items, None, blocks=blocks, group=GROUP, stretch=STRETCH)


def _link(key: KernelKey, made: ColumnsLookbackPlan) -> ColumnsLookbackPlan:
    """The plan of linked lines, from that of lines that end on this GPU."""
    spec, target, vector = key.spec, key.architecture, column_tile.column_width(key.spec)
    if vector == spec.access_items:
        stages, halves = column_tile.can_stage(spec, target, vector), spec.out.bytes == spec.input.bytes == 2
        if spec.saved or (halves and stages):
            # Tiles of halves are staged: in registers, the rows of a tile are those of words of 4 bytes.
            size = spec.out.bytes if stages else max(INT_BYTES, spec.out.bytes)
            name = "gradient" if spec.saved else "half pair" if column_tile.is_pair(spec) else "half"
            tile = _fill_shape(spec, target, find_shape(f"columns_lookback linked {name}", size))
            if tile.shared_bytes + DECLARED_BYTES <= target.block_shared_bytes:
                return tile
        if column_tile.is_pair(spec):
            group, stretch, abreast = find_shape("columns_lookback linked pair").take("group", "stretch", "abreast")
            return replace(made, abreast=abreast, group=group, stretch=stretch)
    return replace(made, abreast=LINKED_ABREAST, group=GROUP, stretch=STRETCH)


def _fill_shape(spec: ScanSpec, target: Target, shape: Shape) -> ColumnsLookbackPlan:
    """The plan of a shape, with fewer rows where operands do not fit in shared memory."""
    threads, items, columns, vector, group = shape.take(*TILE)
    stretch, abreast, stages, blocks = shape.take("stretch", "abreast", "stages", "blocks")
    if stages:
        resident = target.shared_bytes // blocks - target.reserved_bytes - DECLARED_BYTES
        items = min(items, resident // (threads * vector * sum(source.dtype.bytes for source in spec.streams)))
    lanes = column_tile.lanes_across(spec, vector, columns // vector)
    made = _fill(
        spec, target, vector, lanes, threads, max(1, items), shape,
        stages=stages, blocks=blocks, group=group, stretch=stretch,
    )  # fmt: skip
    return replace(made, abreast=abreast)


def _plan(key: KernelKey) -> ColumnsLookbackPlan:
    spec, target, few = key.spec, key.architecture, key.is_few
    vector = column_tile.column_width(spec)
    if column_tile.is_pair(spec) and vector == spec.access_items and spec.inner > ONE_TILE_LANES * vector:
        return _of_pairs(key)
    if (
        few
        and spec.looks_ahead
        and column_tile.is_gradient(spec)
        and column_tile.column_width(spec) >= GRADIENT_WIDTH
        and column_tile.can_stage(spec, target, GRADIENT_WIDTH)
    ):
        return _of_gradients(spec, target)
    light, narrow = column_tile.is_light(spec), column_tile.is_narrow(spec, target)
    strided = not narrow and vector < spec.access_items and column_tile.are_neighbours(spec)
    heavy = fragments(spec).held_bytes > column_tile.WIDE_STATE
    if not (light or narrow or (spec.operator.costly and not heavy)):
        vector = min(column_tile.fit_width(spec), STEP_COLUMNS if few and STEP in spec.layouts else spec.access_items)
        strided = strided and vector == 1 and fragments(spec).held_bytes <= STRIDED_STATE
        vector = 2 if strided else vector
    elif strided:
        vector = min(spec.access_items, STRIDED_COLUMNS)
    if spec.fusion and few and not strided:
        shape = find_shape("columns_lookback fused")
        threads, items, columns, access_bytes = shape.take("threads", "items", "columns", "bytes")
        vector = min(vector, max(1, access_bytes // spec.out.bytes))
        items, lanes = (
            min(items, column_tile.register_rows(spec, vector)),
            column_tile.lanes_across(spec, vector, columns // vector),
        )
        return _fill(spec, target, vector, lanes, threads, items, shape, group=GROUP)
    threads, items, blocks = THREADS, column_tile.register_rows(spec, vector, strided_columns=strided, few=few), BLOCKS
    lanes = STRIDED_LANES if strided else LANES
    group, stretch = (GROUP, STRETCH) if few else (1, 1)
    if (
        few and not (light or narrow) and vector < column_tile.LIGHT_COLUMNS
    ):  # longer tiles of fewer columns make shorter chains
        items, lanes, group = column_tile.fit_rows(spec, vector, MOST_ROWS, STATE_BYTES), LANES, HEAVY_GROUP
    is_one_tile = few and not strided and spec.inner <= LANES * vector
    if is_one_tile:
        lanes = ONE_TILE_LANES
    if lanes * vector * spec.input.bytes < LINE_BYTES:
        lanes = NARROW_LANES
    staged, tile = few and not strided and column_tile.can_stage(spec, target, vector), None
    if staged:
        long = is_one_tile and spec.length is not None and spec.length >= LONG
        small = spec.alone and fragments(spec).held_bytes <= SMALL_STATE and not column_tile.is_narrow(spec, target)
        tile = find_shape("columns_lookback few" + " long" * (long and small))
        threads, items, blocks = tile.take("threads", "items", "blocks")
        sizes = [source.dtype.bytes for source in spec.streams]
        resident = target.shared_bytes // blocks - target.reserved_bytes - DECLARED_BYTES
        items = min(
            items, resident // (threads * vector * sum(sizes)), items * 16 // (vector * fragments(spec).held_bytes)
        )
        items -= items // 4 if spec.views else 0  # steps and places of a view take registers
        items = column_tile.odd_rows(spec, vector, items) if column_tile.is_narrow(spec, target) else items
        items = items if spec.aligned else (items - 1) | 1  # no padding between the rows of lanes
    lanes = min(column_tile.lanes_across(spec, vector, lanes), threads // vector)
    made = _fill(
        spec, target, vector, lanes, threads, items, tile,
        strided_columns=strided, stages=int(staged), blocks=blocks, group=group, stretch=stretch,
    )  # fmt: skip
    if made.shared_bytes + DECLARED_BYTES <= target.block_shared_bytes:
        return made
    return replace(made, stages=0, items=column_tile.register_rows(spec, vector, strided_columns=strided, few=few))


def _of_pairs(key: KernelKey) -> ColumnsLookbackPlan:
    """The plan of a recurrence: tiles in registers."""
    spec, target = key.spec, key.architecture
    shape = find_shape("columns_lookback pair" + " few" * key.is_few, spec.out.bytes)
    threads, items, columns, vector, group = shape.take(*TILE)
    items = min(items - items // 4, 14) if spec.segments else items  # flags take registers, too
    # The shapes were measured with states of the output's own accumulator; wider ones take the registers of more rows.
    items = max(1, items * max(INT_BYTES, spec.out.bytes) // max(spec.accumulator.bytes, INT_BYTES))
    if key.is_few and spec.out.bytes < INT_BYTES and spec.inner <= 2 * columns:
        columns //= 2  # a chain of half as many tiles
    lanes = column_tile.lanes_across(spec, vector, columns // vector)
    return _fill(spec, target, vector, lanes, threads, items, shape, group=group)


def _of_gradients(spec: ScanSpec, target: Target) -> ColumnsLookbackPlan:
    """The plan of a recurrence's gradient on few column tiles: tiles in shared memory, whose items are lifted twice."""
    shape = find_shape("columns_lookback gradient", spec.out.bytes)
    threads, items, columns, blocks = shape.take("threads", "items", "columns", "blocks")
    columns = min(columns, ONE_TILE_LANES * GRADIENT_WIDTH) if spec.inner <= columns else columns
    lanes = column_tile.lanes_across(spec, GRADIENT_WIDTH, columns // GRADIENT_WIDTH)
    return _fill(
        spec,
        target,
        GRADIENT_WIDTH,
        lanes,
        threads,
        items,
        shape,
        stages=1,
        blocks=blocks,
        group=GROUP,
        stretch=STRETCH,
    )


def _fill(
    spec: ScanSpec, target: Target, vector: int, lanes: int, threads: int, items: int, shape: Shape | None, *,
    strided_columns: bool = False, stages: int = 0, blocks: int = BLOCKS, group: int = 1, stretch: int = 1,
) -> ColumnsLookbackPlan:  # fmt: skip
    """The plan of these numbers."""
    return ColumnsLookbackPlan(
        spec=spec,
        target=target,
        why=f"columns of {spec.items_text}: their tiles are split over all multiprocessors",
        threads=threads,
        items=items,
        columns=lanes * vector,
        vector=vector,
        strided_columns=strided_columns,
        stages=stages,
        blocks=blocks,
        abreast=ABREAST,
        origin=shape.origin if shape else "",
        group=group,
        stretch=stretch,
    )
