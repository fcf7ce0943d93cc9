"""Rows in the registers of a block; few rows in those of several blocks, a tile each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.shapes import find_shape
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import rows
from scanops.codegen.strategies.base import WARP, Launch, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.rows import RowPlan
from scanops.codegen.targets import Target, most_registers, occupancy

MIN_THREADS = 64
WORD_BYTES = 4  # bytes of the accumulator up to which an expensive combine was counted
RUN_BYTES = 40 * 1024  # bytes of shared memory that a block may declare; above it lanes exchange nothing
SLACK_REGISTERS = 8  # 13 accesses of each of 640 threads, which just fit, spill 8 bytes on sm_90 and 32 on sm_80
# From here on ptxas, unless launch bounds promise one block, delays loads until others are used: 19000 has 0.992 with
# launch bounds that promise one block, and 0.77 without. Guarded loads are not delayed.
MANY_VECTORS = 10
MAX_VECTORS = 16  # each access costs a scan across the warp

# Most registers of aligned rows that ptxas did without: 40 of 51 for 24 items of bfloat16; of recurrences 64 of 82.
ESTIMATED_ABOVE, GATED_ABOVE = 11, 20
FEW_REGISTERS = 40  # of a thread by estimate, up to which linked blocks look early; H200, ranks in the middle
BOARD_REGISTERS = 16  # register bytes of a thread for status words: masked bfloat16 spills 92 to 144 bytes without
# Accesses of a row, up to, where a tile of the wave is faster than a block's registers beyond: 2 % at 32768 float16;
# int8 to int64 has 0.94 by a block at 4096, and at 8192 0.66, by the wave 0.95.
LONGEST = {"half": 2048, "narrow": 2048}
# What a shape costs, in fractions of a copy, fitted to 55 lengths from 1000 to 38000.
IDLE_COST = 0.02  # for all of a row's accesses that lie past its end: 13362 has 0.989 with an eighth of them idle
FEW_COST = 0.015  # for each access per thread below the range
MANY_COST = 0.012  # for each access per thread above the range
POWER_COST, POWERS = 0.012, 2048  # for a tile of a power of two accesses, up to so many
MISALIGNED_KINDS = ("narrow", "half", "masked")  # that have measured shapes of their own


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
    def least_blocks(self) -> int:
        """Linked kernels keep the occupancy of the same kernel without links: what they wait for may be spilled.

        Rows of 8192 bfloat16 take 40 registers without links and 50 with them: 4 or 3 blocks, 1.00 or 0.87 of a copy
        (H200).
        """
        if not self.spec.linked or self.one_block_per_sm:
            blocks: int = RowPlan.least_blocks.fget(self)  # type: ignore[attr-defined]
            return blocks
        above = ESTIMATED_ABOVE if self.spec.gate is None else GATED_ABOVE
        spare = 0 if self.boundary else above
        registers = rows.registers_of(self.spec, self.items, self.vectors) - spare
        blocks = occupancy(self.target, threads=self.threads, registers=registers).blocks
        return blocks if blocks > 1 else 0

    @property
    def looks_early(self) -> bool:
        """Whether a thread holds few items: rows of 8192 float32 gain 8 % by it, bfloat16 and recurrences lose 10 %."""
        return rows.registers_of(self.spec, self.items, self.vectors) <= FEW_REGISTERS

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
    shape = find_shape(_table_of(spec), accesses)
    if spec.takes_length:
        preferred = shape.numbers["vectors"]
        threads, vectors = min(_shapes(spec, target), key=lambda each: abs(each[1] - preferred))
    else:
        bounds = shape.take("least", "most")
        threads, vectors = min(_shapes(spec, target), key=lambda each: _cost(each, accesses, *bounds))
    many = not boundary and vectors >= MANY_VECTORS
    return BlockPlan(
        spec=spec,
        target=target,
        why=f"a row of {spec.items_text} fits in the registers of one block: one tile, no loop",
        threads=threads,
        items=items,
        vectors=vectors,
        boundary=boundary,
        origin=shape.origin,
        one_block_per_sm=many or (_kind(spec) != "head_flags" and rows.fills_registers(spec, items, vectors, threads)),
    )


def split(key: KernelKey) -> SplitPlan:
    """Plan tiles in registers, smaller for shorter rows."""
    spec, target = key.spec, key.architecture
    items, boundary, _ = rows.row_of(spec)
    shape = find_shape("split", spec.capacity)
    threads, tile, most = shape.take("threads", "tile", "vectors")
    vectors = max(1, min(tile // (threads * items), most, rows.vectors_in_registers(spec, items)))
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
        origin=shape.origin,
        one_block_per_sm=rows.fills_registers(spec, items, vectors, threads),
    )


def fits(spec: ScanSpec, target: Target) -> bool:
    """Whether the registers of a block hold a row, and a staged kernel is not faster."""
    accesses = rows.row_of(spec)[2]
    longest = LONGEST.get(_kind(spec), accesses) if target.copies_async and not spec.takes_length else accesses
    return accesses <= longest and bool(_shapes(spec, target))


def _kind(spec: ScanSpec) -> str:
    """Among measured shapes: head flags, instruction-bound combines, items that widen, halves, masks, other rows."""
    if spec.segments == "flags" and spec.accumulator.bytes <= WORD_BYTES and not spec.takes_length:
        return "head_flags"
    bound = spec.operator.append and not spec.operator.own  # an item's own fields stay in registers until the end
    if bound and spec.aligned and spec.accumulator.bytes <= WORD_BYTES and not spec.takes_length:
        if spec.operator.behind:
            return "instruction_bound 2"
        return "recurrence" if spec.out.bytes == WORD_BYTES and not spec.operator.extend else "instruction_bound 1"
    if spec.widens:
        return "narrow"
    if spec.out.bytes == 2:
        return "half"
    return "full" if spec.alone else "masked"


def _table_of(spec: ScanSpec) -> str:
    """The table of measured shapes for a row."""
    kind, boundary = _kind(spec), rows.boundary_of(spec, spec.access_items)
    if spec.takes_length:
        if kind == "full" and not spec.aligned:
            kind = "realigned"
        if kind == "masked" and not boundary:
            kind = "full"  # rows of 8192, masked, have 0.86 with 11, and 0.95 or more with 5
        return f"block any length {kind}" if kind in ("realigned", "narrow", "masked") else "block any length"
    if boundary and kind != "head_flags":
        return f"block {kind} misaligned" if kind in MISALIGNED_KINDS else "block misaligned"
    return f"block {kind}"


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
