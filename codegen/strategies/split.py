"""Few rows, split over blocks: each block scans one tile, and all tiles are in flight together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Launch
from scanops.codegen.strategies.rows import RowPlan, fills_registers, registers_of, row_of, vectors_in_registers
from scanops.codegen.targets import Target, most_registers

# (bytes of all states of a row, up to; threads; accesses per thread). Large tiles mean few blocks and short look-backs,
# but leave multiprocessors idle.
SHAPES = ((2**18, 256, 4), (2**62, 512, 8))
BOARD_REGISTERS = 16  # register bytes of a thread for status words: masked bfloat16 spills 92 to 144 bytes without


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan(RowPlan):
    """One tile per block. A tile's total is published (tile status) before the block looks back at preceding ones."""

    strategy: ClassVar[str] = "split"
    template: ClassVar[str] = "registers.cu.j2"

    alone: bool  # a block has the registers of a multiprocessor to itself

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block for each tile of each row."""
        return self._launch("workspace", lead=self._lead, tile=self.tile, statuses=(1,))


def plan(spec: ScanSpec, target: Target, few: bool = False) -> SplitPlan:
    """Plan tiles in registers, smaller for shorter rows."""
    items, boundary, _ = row_of(spec)
    row_bytes = spec.capacity * fragments(spec).state_bytes
    threads, preferred = next((threads, each) for limit, threads, each in SHAPES if row_bytes <= limit)
    vectors = min(preferred, vectors_in_registers(spec, items))
    while vectors > 1 and registers_of(spec, items, vectors) + BOARD_REGISTERS > most_registers(target, threads):
        vectors -= 1
    return SplitPlan(
        spec=spec,
        target=target,
        why=f"few rows of {spec.items_text}: each is split over several blocks at once",
        threads=threads,
        items=items,
        vectors=vectors,
        boundary=boundary,
        alone=fills_registers(spec, items, vectors, threads),
    )
