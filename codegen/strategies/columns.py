"""Columns: the scanned dimension is strided; lanes take neighbouring columns, so accesses are coalesced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ACCESS_BYTES, MAX_LENGTH, ScanSpec
from scanops.codegen.strategies import column_tile
from scanops.codegen.strategies.base import WARP, Constant, Launch, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.column_tile import ColumnTilePlan
from scanops.codegen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPlan(ColumnTilePlan):
    """One block walks down a panel of columns, tile by tile."""

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
        """What a launch follows from: a block for each panel; of chunks, in place of the length, their number."""
        return self._launch("lines", adjacent=self.spec.inner, width=self.columns, tile=int(bool(self.spec.ragged)))


# H200, fp32 sum unless stated otherwise, fraction of a copy. Two blocks of 256, or one of 512, share a multiprocessor.
STRIDED_THREADS = ((8192, 512), (MAX_LENGTH, 256))  # (length up to, threads): 32768 x 8192 has 0.89, 0.81 with 512
FEW_COLUMNS, FEW_ITEMS = 8, 4  # 16384 x 4096 x 4, a column a lane: 0.94, with 512 threads 0.84, with 8 rows 0.49
THREADS = 256
LANES = 16  # 256 bytes a row: 1 x 32768 x 8192 by a loop has 0.92, with 8 lanes 0.83
SHORT = 1024  # rows; a longer loop has one more tile in flight
ONE_TILE = 256  # rows; 2048 x 256 x 512 is a tile of registers
# (length up to, lanes, threads, rows a thread, stages) of a loop over staged tiles
STAGED = (
    (512, 16, 512, 8, 2),  # 512 x 512 x 1024: 0.99, with 8 lanes, one tile, 0.94
    (1024, 8, 512, 8, 2),  # 256 x 1024 x 1024: 0.974, with 16 lanes 0.966
    (MAX_LENGTH, 16, 256, 8, 4),  # bf16, 64 x 4096 x 1024: 0.934, 0.926 with 3 stages and two blocks, 0.84 by panels
)
# The same of fused scans in half types: columns of a thread, lanes, threads, rows of a thread, stages.
FUSED_STAGED = (4, 16, 128, 8, 2)  # softplus(x + b) * a, bf16, 8 x 4096 x 2560: 0.83, by the loop above 0.64
# Loops of recurrences, whose state is a gate and a value, by bytes of an output item:
# (threads, rows per thread, columns, columns per thread, stages)
PAIR_STAGED = {
    2: (128, 16, 64, 4, 2),  # bfloat16, 256 x 256 x 2560: 1.00, with 8 columns a thread 0.36; flags, 3 stages: 0.96
    4: (256, 8, 64, 4, 2),  # 128 x 256 x 4096: 1.01, in one tile of registers 0.74
    8: (256, 8, 32, 2, 2),  # complex64, 128 x 512 x 1024: 1.00, with 4 rows a thread 0.81
}
# Loops of gradients, which hold items of three operands beside small states: (threads, rows per thread, columns,
# columns per thread, stages). H100, 8 x 4096 x 2560: bfloat16 0.93, of products 0.96; with one row per thread, as
# registers alone would hold, 0.33 and 0.27. Fused in float32, 8 x 4096 x 1024: 0.96, in registers 0.38.
GRADIENT_STAGED = (256, 8, 64, 4, 2)
SHORT_GRADIENT = (256, 4, 64, 4, 4)  # bfloat16, 64 x 1000 x 100: 0.94, with 8 rows 0.87
COSTLY_GRADIENT = (256, 8, 64, 2, 2)  # of logcumsumexp: bfloat16, 8 x 4096 x 2560: 0.83, with one row per thread 0.08
# The same of few columns, by bytes of an item: narrower panels occupy more multiprocessors.
FEW_GRADIENT = {
    2: (256, 8, 32, 4, 2),  # fused, 16 x 16384 x 128: 0.74, by tiles in parallel 0.63
    4: (512, 8, 32, 1, 0),  # the same: 0.86; 0.80 or less by tiles in parallel
}
# Loops of logcumsumexp, which is instruction-bound: tiles in registers, few columns per thread.
# (threads, rows per thread, columns, columns per thread, blocks)
COSTLY = {
    2: (128, 32, 32, 1, 3),  # bfloat16, 16 x 4096 x 2560: 0.53, with 8 columns a thread 0.19
    4: (128, 16, 64, 2, 2),  # 16 x 4096 x 2560: 0.78, with 4 columns a thread 0.57
}
PAIR_ROWS = 128  # rows; more than so many are a loop
# (threads, rows a thread, stages, blocks) of narrow panels
NARROW_TILE = (256, 17, 1, 2)  # all of a column: 16384 x 4096 x 4 has 0.98, 0.50 where lanes read what they scan
ANY_TILES = 2  # of that shape, at most, where the length is an argument and typically half of the longest or less
NARROW_LOOP = (512, 11, 2, 1)  # 4096 x 4096 x 16: 0.967, 256 x 17 x 3 0.953, 512 x 9 x 3 0.950
MASKED_LOOP = (512, 9, 2, 1)  # the same with a mask: 0.962, 256 x 11 x 2 0.896
# A view uses parts of cache lines, and L1 holds whole lines of loads in flight: 1024 x 4096 x 16 of 64 columns
# has 0.54 with 208 KB of shared memory beside L1, 0.69 with 180 KB.
VIEW_LOOP = (512, 7, 2, 1)
DECLARED_BYTES = 8192  # bytes of shared memory besides the ring, at least
MOST_DECLARED_BYTES = 48 * 1024  # more must be dynamic shared memory: complex128 states of several fields


def plan(key: KernelKey) -> ColumnsPlan:
    """Plan panels of 256 bytes per row; lanes extend along the columns where there are few columns."""
    spec, target = key.spec, key.architecture
    if column_tile.is_narrow(spec, target):
        return _narrow(spec, target)
    vector = column_tile.column_width(spec)
    threads, items, columns, width, stages = PAIR_STAGED[min(8, max(2, spec.out.bytes))]
    if (
        column_tile.is_pair(spec)
        and spec.capacity > PAIR_ROWS
        and vector >= width
        and column_tile.can_stage(spec, target, width)
    ):
        stages += spec.capacity > SHORT
        return _made(spec, target, width, columns // width, threads, items, stages=stages, blocks=1)
    if column_tile.is_gradient(spec) and spec.capacity > PAIR_ROWS:
        many = SHORT_GRADIENT if spec.capacity <= SHORT and spec.out.bytes < 4 else GRADIENT_STAGED
        many = COSTLY_GRADIENT if spec.operator.costly else many
        threads, items, columns, width, stages = FEW_GRADIENT[spec.out.bytes] if key.is_few else many
        if vector >= width and (stages == 0 or column_tile.can_stage(spec, target, width)):
            return _made(spec, target, width, columns // width, threads, items, stages=stages, blocks=1)
    if column_tile.is_costly(spec) and spec.capacity > ONE_TILE and vector > 1:
        threads, items, columns, width, blocks = COSTLY[spec.out.bytes]
        return _made(spec, target, width, columns // width, threads, items, stages=0, blocks=blocks)
    if vector > 1 and spec.capacity > ONE_TILE and column_tile.can_stage(spec, target, vector):
        _, lanes, threads, items, stages = next(row for row in STAGED if spec.capacity <= row[0])
        if spec.fusion and vector > FUSED_STAGED[0]:
            vector, lanes, threads, items, stages = FUSED_STAGED
        items = min(items, column_tile.register_rows(spec, vector, few=key.is_few))
        return _made(spec, target, vector, lanes, threads, items, stages=stages, blocks=1)
    items, most = column_tile.register_rows(spec, vector, few=key.is_few), THREADS
    if vector == 1 or spec.inner <= FEW_COLUMNS:
        vector = 1
        strided = next(threads for length, threads in STRIDED_THREADS if spec.capacity <= length)
        items, most = (FEW_ITEMS, THREADS) if spec.inner <= FEW_COLUMNS else (column_tile.ROWS, strided)
        items = min(
            items, column_tile.WIDE_ROW_BYTES // max(spec.input.bytes, spec.out.bytes)
        )  # complex128: 16 rows spill
    elif spec.capacity > ONE_TILE:
        items = max(1, items // 2)  # the next tile waits in registers meanwhile
    items = min(items, spec.capacity)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    wide = vector == 1 or slots == 1 or (spec.ragged and slots * WARP <= most)  # chunks: 0.952, 16 lanes 0.943
    lanes = column_tile.lanes_across(spec, vector, WARP if wide else LANES)
    threads = max(WARP, min(most, lanes * slots))
    return _made(spec, target, vector, lanes, threads, items, stages=0, blocks=max(1, 512 // threads))


def _narrow(spec: ScanSpec, target: Target) -> ColumnsPlan:
    """The plan of panels narrower than a cache line: one tile where a block holds all rows, else a loop."""
    vector = column_tile.column_width(spec)
    lanes = column_tile.lanes_across(spec, vector, WARP)
    threads, most, stages, blocks = NARROW_TILE
    items = min(column_tile.odd_rows(spec, vector, most), spec.capacity if spec.aligned else spec.capacity | 1)
    slots = power_of_two_above(ceil_div(spec.capacity, items))
    if lanes * slots > threads * (ANY_TILES if spec.takes_length else 1):
        dense = NARROW_LOOP if spec.alone else MASKED_LOOP
        threads, most, stages, blocks = VIEW_LOOP if spec.input_layout == "columns" else dense
        items = column_tile.odd_rows(spec, vector, most)
    threads = min(threads, max(WARP, lanes * slots))
    return _made(spec, target, vector, lanes, threads, items, stages=stages, blocks=blocks)


def _made(
    spec: ScanSpec, target: Target, vector: int, most_lanes: int, threads: int, items: int, *, stages: int, blocks: int
) -> ColumnsPlan:
    """The plan of these numbers, with fewer stages, then fewer threads, until shared memory suffices."""
    lanes = column_tile.lanes_across(spec, vector, most_lanes)
    one_tile = threads // lanes * items >= spec.capacity
    made = ColumnsPlan(
        spec=spec,
        target=target,
        why=f"the scanned dimension has stride {spec.inner}: {lanes * vector} neighbouring columns per block",
        threads=threads,
        items=items,
        columns=lanes * vector,
        vector=vector,
        strided_columns=False,
        stages=min(stages, 1) if one_tile else stages,
        blocks=blocks,
    )
    totals_bytes = 2 * made.warps * made.columns * made.code.state_bytes  # of two tiles
    declared = max(DECLARED_BYTES, totals_bytes + lanes * ACCESS_BYTES * len(spec.per_line))
    if made.shared_bytes + declared <= target.block_shared_bytes and declared <= MOST_DECLARED_BYTES:
        return made
    stages, threads = (stages - 1, threads) if stages > 2 else (stages, threads // 2)
    return _made(spec, target, vector, lanes, threads, items, stages=stages, blocks=1)
