"""Rows split over blocks, for few rows: a block scans one tile, and all tiles are in flight together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.occupancy import most_registers
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.strategies.registers import fills_registers, registers_of, vectors_in_registers
from scanops.codegen.strategies.rows import RowPlan, row_of
from scanops.codegen.targets import Target

__all__ = ["BoardPlan", "SplitPlan", "plan"]

# (bytes of all states of a row, up to; threads; accesses a thread). A tile takes few blocks past one another's totals,
# but leaves multiprocessors idle when it is large.
SHAPES = (
    (2**18, 256, 4),
    (2**62, 512, 8),
)
BOARD_REGISTERS = 16  # a thread's, for words of the board: masked bfloat16 spills 92 to 144 bytes without


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPlan(RowPlan):
    """Blocks that publish the totals of their tiles and fold those ahead in a fixed order."""

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Blocks exchange words through memory."""
        return (*self.code.intrinsics, "relaxed")

    @property
    def index(self) -> str:
        """The tile's number in its row, in C, as wide as a position."""
        return "index" if self.position == "int" else "(long long)index"

    @property
    def pieces(self) -> tuple[int, ...]:
        """The 32-bit pieces of a state: each is published in a word of its own, beside a flag."""
        return tuple(range(self.code.state_bytes // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan(BoardPlan):
    """A block a tile. A tile's total is published before those ahead of it are waited for."""

    strategy: ClassVar[str] = "split"
    template: ClassVar[str] = "split_rows.cu.j2"

    alone: bool  # a block has the registers of a multiprocessor to itself

    @property
    def loops(self) -> bool:
        """Never: a block scans one tile."""
        return False


def plan(spec: ScanSpec, target: Target) -> SplitPlan:
    """Tiles in registers, smaller for shorter rows."""
    items, boundary, accesses = row_of(spec)
    row_bytes = spec.capacity * fragments(spec).state_bytes
    threads, preferred = next((threads, each) for limit, threads, each in SHAPES if row_bytes <= limit)
    vectors = min(preferred, vectors_in_registers(spec, items))
    while vectors > 1 and registers_of(spec, items, vectors) + BOARD_REGISTERS > most_registers(target, threads):
        vectors -= 1
    return SplitPlan(
        spec=spec,
        target=target,
        why=f"few rows of {spec.items_text}: each is spread over several multiprocessors at once",
        threads=threads,
        items=items,
        tiles=ceil_div(accesses, threads * vectors),
        vectors=vectors,
        boundary=boundary,
        alone=fills_registers(spec, items, vectors, threads),
    )
