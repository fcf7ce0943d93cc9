"""Rows in the registers of a block; few rows in those of several blocks, a tile each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import rows
from scanops.codegen.strategies.base import WARP, Launch, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.rows import RowPlan
from scanops.codegen.targets import Target, most_registers

MIN_THREADS = 64
WORD_BYTES = 4  # bytes of the accumulator up to which an expensive combine was counted
RUN_BYTES = 40 * 1024  # bytes of shared memory that a block may declare; above it lanes exchange nothing
SLACK_REGISTERS = 8  # 13 accesses of each of 640 threads, which just fit, spill 8 bytes on sm_90 and 32 on sm_80
# From here on ptxas, unless launch bounds promise one block, delays loads until others are used: 19000 has 0.992 with
# launch bounds that promise one block, and 0.77 without. Guarded loads are not delayed.
MANY_VECTORS = 10
MAX_VECTORS = 16  # each access costs a scan across the warp

# (accesses of a row, up to; accesses per thread, from, to): few threads with many items beat many with few,
# and long rows allow nothing else. H200, fp32 sum, fraction of a copy:
VECTORS = (
    (256, 2, 2),  # 1000, 1024: 0.995, 1.01 with 2; 0.95, 0.97 with 1
    (512, 3, 3),  # 2048: 0.99 with 3, 0.98 with 2
    (2304, 3, 3),  # 4096, 8192, 9216: 0.986, 1.00, 0.994 with 3; 8192 exclusive: 0.95 with 5 or 13
    (4096, 8, 8),  # 10000 to 16384: 0.98 to 0.99; 12000 with 12 0.85, 13000 with 13 0.90, 10000 with 6 0.80
    (2**31, 13, 16),  # 18000 to 24000: 0.99 to 1.00; 32768: 0.994 with 16, 0.94 with 12
)
# Where an access of the input is narrower than one of the output: int8 to int64, 1024: 0.95 with 2, 0.93 with 4.
NARROW_VECTORS = ((512, 2, 2), (2**31, 4, 4))  # 2048, 4096: 0.94 with 4, half with 11; 8192: 0.66 with 4, 0.32 with 11
HALF_VECTORS = ((256, 2, 2), (2**31, 3, 4))  # 1024 bfloat16: 1.00 with 2; 8192: 3 or 4 are 9 % faster than 6
# The same for misaligned rows.
SHIFTED_VECTORS = (
    (288, 3, 3),  # 777: 0.99 with 3, 0.88 with 4; 1001: 0.997 with 3, 0.88 with 1
    (512, 3, 8),  # 1484, 1900: 1.00 with 2 to 9
    (4096, 13, 13),  # 4097, 8191, 12345, 14058: 0.99 each; 8191 with 5 0.94, 12345 with 14 0.85
    (4480, 14, 14),  # 16917, 17434: 0.98, where 13 leave room for one block and have 0.94, 0.96
    (2**31, 13, 13),  # 22222, 28001, 32767: 0.994, 0.988, 0.975; with 8 0.95, 0.945, with 12 at 32767 0.96
)
SHIFTED_NARROW_VECTORS = ((2**31, 2, 5),)  # 2049: 0.66 with 2, 0.45 with 8; 4097: 0.58 with 5, 0.40 with 11
SHIFTED_HALF_VECTORS = ((288, 3, 3), (2**31, 5, 6))  # 4097 bfloat16: 0.84 with 6, 0.76 with 2 or 3, 0.66 with 11
MASKED_VECTORS = (*VECTORS[:3], (5120, 8, 8), (2**31, 10, 16))  # 17000: 0.98, with 11 or more 0.53 to 0.61
SHIFTED_MASKED_VECTORS = (
    (288, 3, 3),
    (512, 3, 8),
    (2304, 11, 11),  # 4097: 0.997, 0.94 with 13, 0.93 with 4, 0.75 with 6
    (2**31, 10, 10),  # 12001, 17001, 20001: 0.97, 0.94, 0.99, with 11 0.85, 0.91, 0.98
)
# Few rows: (bytes of all states of a row, up to; threads; accesses per thread). Large tiles mean few blocks and short
# look-backs, but leave multiprocessors idle.
SPLIT_SHAPES = ((2**18, 256, 4), (2**62, 512, 8))
BOARD_REGISTERS = 16  # register bytes of a thread for status words: masked bfloat16 spills 92 to 144 bytes without
# Accesses of a row, up to, where a tile of the wave is faster than a block's registers beyond: 2 % at 32768 float16;
# int8 to int64 has 0.94 by a block at 4096, and at 8192 0.66, by the wave 0.95.
LONGEST = {"half": 2048, "narrow": 2048}
# Expensive combines: each scan across a warp should cover many items. Counted, not timed:
# instructions per item on sm_90, at 4096 (benchmarks/instructions.py): linear 27.5 with 3, 18.1 with 5, 16.3 with 8,
# where a copy allows 79; logcumsumexp 46 with 3, 37 with 5, 36 with 8, where a copy allows 53.
DEAR_VECTORS = ((256, 2, 4), (2304, 4, 5), (2**31, 8, 16))
# States of a gate and a value in float32: 8192 has 1.025 of a copy with 6; with 5, 4096 spills 4 bytes.
PAIR_VECTORS = ((256, 2, 4), (512, 4, 5), (2304, 6, 7), (2**31, 8, 16))
# Rows with flags: 4096 has 0.98 of a copy with 2, 0.75 with 3; of recurrences 1.04 and 0.46, in bfloat16 0.89 and 0.42.
FLAGGED_VECTORS = ((2**31, 2, 2),)
DEAREST_VECTORS = ((256, 2, 4), (512, 4, 5), (2**31, 8, 8))  # and each result as well
TABLES = {  # by _kind: aligned rows, misaligned rows
    "narrow": (NARROW_VECTORS, SHIFTED_NARROW_VECTORS),
    "half": (HALF_VECTORS, SHIFTED_HALF_VECTORS),
    "masked": (MASKED_VECTORS, SHIFTED_MASKED_VECTORS),
    "flagged": (FLAGGED_VECTORS, FLAGGED_VECTORS),
    "dear": (DEAR_VECTORS, SHIFTED_VECTORS),
    "pair": (PAIR_VECTORS, SHIFTED_VECTORS),
    "dearest": (DEAREST_VECTORS, SHIFTED_VECTORS),
    "full": (VECTORS, SHIFTED_VECTORS),
}
# What a shape costs, in fractions of a copy, fitted to 55 lengths from 1000 to 38000.
IDLE_COST = 0.02  # for all of a row's accesses that lie past its end: 13362 has 0.989 with an eighth of them idle
FEW_COST = 0.015  # for each access per thread below the range
MANY_COST = 0.012  # for each access per thread above the range
POWER_COST, POWERS = 0.012, 2048  # for a tile of a power of two accesses, up to so many
# (accesses of the longest row, up to; accesses a thread makes at most) where the length is an argument. Fractions of
# the kernel for the one length: 1001 with 4: 1.01; 4096 and 8192 with 5: 1.02, 1.02, with 3: 1.02, 0.92; 22222 with 11:
# 0.98, with 13: 0.96, with 16: 0.87.
ANY_VECTORS = ((300, 4), (4200, 5), (2**31, 11))
ANY_TABLES = {
    "realigned": ((300, 3), *ANY_VECTORS[1:]),  # 1000, an item off: 0.92 with 4, where a kernel of 3 has 1.00
    "narrow": ((600, 2), *ANY_VECTORS[1:]),
    # Up to 8192: 4097, 8191 have 0.997, 0.98 with 11, 0.93, 0.88 with 4, 0.77, 0.73 with 5.
    "masked": ((600, 4), (2**31, 11)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan(RowPlan):
    """One row per block.

    A warp holds ``vectors`` adjacent stripes of 32 accesses; warps hold adjacent parts of the row.
    """

    strategy: ClassVar[str] = "block"
    template: ClassVar[str] = "registers.cu.j2"

    one_block_per_sm: bool  # a block has the registers of a multiprocessor to itself

    def __post_init__(self) -> None:
        """Check that a row is one tile."""
        RowPlan.__post_init__(self)
        require(self, self.tiles == 1, "one tile")

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block takes a row, in as few warps and stripes as hold it."""
        stripe = WARP * self.items
        return self._launch(chosen=("stripes",), lead=self._lead, room=stripe * self.vectors, stripe=stripe)

    @property
    def in_runs(self) -> bool:
        """Whether lanes exchange accesses, so that a thread's items are consecutive."""
        sizes = [*(source.dtype.bytes for source in self.spec.sources), *self.spec.result_bytes]
        pays = rows.runs_pay(self.spec, self.vectors)
        return pays and self.threads * self.vectors * self.items * max(sizes) <= RUN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan(RowPlan):
    """One tile per block. A tile's total is published (tile status) before the block looks back at preceding ones."""

    strategy: ClassVar[str] = "split"
    template: ClassVar[str] = "registers.cu.j2"

    one_block_per_sm: bool  # a block has the registers of a multiprocessor to itself

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block for each tile of each row."""
        return self._launch("workspace", lead=self._lead, tile=self.tile, statuses=(1,))


def plan(key: KernelKey) -> BlockPlan:
    """Plan a row as one tile, with threads and accesses such that little of the tile lies past the row's end."""
    spec, target = key.spec, key.architecture
    items, boundary, accesses = rows.row_of(spec)
    if spec.takes_length:
        preferred = next(each for limit, each in _any_table(spec) if accesses <= limit)
        threads, vectors = min(_shapes(spec, target), key=lambda shape: abs(shape[1] - preferred))
    else:
        table = TABLES[_kind(spec)][boundary > 0]
        bounds = next((least, most) for limit, least, most in table if accesses <= limit)
        threads, vectors = min(_shapes(spec, target), key=lambda shape: _cost(shape, accesses, *bounds))
    many = not boundary and vectors >= MANY_VECTORS
    return BlockPlan(
        spec=spec,
        target=target,
        why=f"a row of {spec.items_text} fits in the registers of one block: one tile, no loop",
        threads=threads,
        items=items,
        vectors=vectors,
        boundary=boundary,
        one_block_per_sm=many or (_kind(spec) != "flagged" and rows.fills_registers(spec, items, vectors, threads)),
    )


def split(key: KernelKey) -> SplitPlan:
    """Plan tiles in registers, smaller for shorter rows."""
    spec, target = key.spec, key.architecture
    items, boundary, _ = rows.row_of(spec)
    row_bytes = spec.capacity * fragments(spec).state_bytes
    threads, preferred = next((threads, each) for limit, threads, each in SPLIT_SHAPES if row_bytes <= limit)
    vectors = min(preferred, rows.vectors_in_registers(spec, items))
    while vectors > 1 and rows.registers_of(spec, items, vectors) + BOARD_REGISTERS > most_registers(target, threads):
        vectors -= 1
    return SplitPlan(
        spec=spec,
        target=target,
        why=f"few rows of {spec.items_text}: each is split over several blocks at once",
        threads=threads,
        items=items,
        vectors=vectors,
        boundary=boundary,
        one_block_per_sm=rows.fills_registers(spec, items, vectors, threads),
    )


def fits(spec: ScanSpec, target: Target) -> bool:
    """Whether the registers of a block hold a row, and a staged kernel is not faster."""
    accesses = rows.row_of(spec)[2]
    longest = LONGEST.get(_kind(spec), accesses) if target.copies_async and not spec.takes_length else accesses
    return accesses <= longest and bool(_shapes(spec, target))


def _kind(spec: ScanSpec) -> str:
    """The key of a table of shapes: flags, an expensive combine, widening items, half types, masks, or any other."""
    if spec.segments == "flags" and spec.accumulator.bytes <= WORD_BYTES and not spec.takes_length:
        return "flagged"
    dear = spec.operator.append and not spec.operator.own  # an item's own fields stay in registers until the end
    if dear and spec.aligned and spec.accumulator.bytes <= WORD_BYTES and not spec.takes_length:
        if spec.operator.behind:
            return "dearest"
        return "pair" if spec.out.bytes == WORD_BYTES and not spec.operator.extend else "dear"
    if spec.widens:
        return "narrow"
    if spec.out.bytes == 2:
        return "half"
    return "full" if spec.alone else "masked"


def _any_table(spec: ScanSpec) -> tuple[tuple[int, int], ...]:
    """Accesses per thread for rows up to a length."""
    kind = _kind(spec)
    if kind == "full" and not spec.aligned:
        kind = "realigned"
    if kind == "masked" and not rows.boundary_of(spec, spec.access_items):
        kind = "full"  # rows of 8192, masked, have 0.86 with 11, and 0.95 or more with 5
    return ANY_TABLES.get(kind, ANY_VECTORS)


def _shapes(spec: ScanSpec, target: Target) -> list[tuple[int, int]]:
    """Every (threads, accesses per thread) that holds a row."""
    items, _, accesses = rows.row_of(spec)
    slack = SLACK_REGISTERS if spec.aligned and not spec.takes_length else 0
    most = min(MAX_VECTORS, rows.vectors_in_registers(spec, items))
    shapes = [(max(MIN_THREADS, WARP * ceil_div(accesses, WARP * each)), each) for each in range(1, most + 1)]
    return [
        (threads, each)
        for threads, each in shapes
        if threads <= target.block_threads
        and rows.registers_of(spec, items, each) + slack <= most_registers(target, threads)
    ]


def _cost(shape: tuple[int, int], accesses: int, least: int, most: int) -> float:
    """Expected loss of a shape, as a fraction of a copy."""
    threads, each = shape
    idle = IDLE_COST * (threads * each - accesses) / accesses
    power = POWER_COST if accesses <= POWERS and threads * each == power_of_two_above(threads * each) else 0
    return idle + power + FEW_COST * max(0, least - each) + MANY_COST * max(0, each - most)
