"""Rows split over blocks: few long rows, their tiles walked by all blocks together, totals exchanged in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import RowPlan, ceil_div, vector_width, vectors_in_registers
from scanops.codegen.targets import Target

__all__ = ["SplitPlan", "plan"]

# H200, 1 x 2^28, fraction of a copy: fp32 0.85 as two blocks of 256, 0.79 as one of 512; fp64 0.70 and 0.72.
SHAPES = {4: (256, 2), 8: (512, 1)}  # bytes of a state: (threads, resident blocks a multiprocessor)
MAX_VECTORS = 16  # each access costs a scan across the warp


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan(RowPlan):
    """Blocks claim tiles in order and publish each tile's total; prefixes are folded from totals in a fixed order."""

    strategy: ClassVar[str] = "split"
    template: ClassVar[str] = "split_rows.cu.j2"

    blocks: int  # resident blocks a multiprocessor

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not match lines one to one."""
        return True

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Blocks exchange words through memory."""
        return (*self.code.intrinsics, "relaxed")

    @property
    def groups(self) -> int:
        """Groups of 32 tiles whose totals a block folds at a time: one a warp."""
        return self.warps

    @property
    def pieces(self) -> tuple[int, ...]:
        """The 32-bit pieces of a state: each is published in a word of its own, beside a flag."""
        return tuple(range(self.code.state_bytes // 4))

    @property
    def board_bytes(self) -> int:
        """What a tile's words take."""
        return 8 * len(self.pieces)


def plan(spec: ScanSpec, target: Target) -> SplitPlan:
    """Tiles as large as registers hold: a thread has three of them under way."""
    items = vector_width(spec)
    vectors = min(MAX_VECTORS, vectors_in_registers(spec, items, raw=1, scanned=2))
    threads, blocks = SHAPES[4 if fragments(spec).state_bytes == 4 else 8]
    return SplitPlan(
        spec=spec,
        target=target,
        why=f"few rows of {spec.length}: their tiles are spread over all multiprocessors",
        threads=threads,
        items=items,
        tiles=ceil_div(spec.length, threads * vectors * items),
        vectors=vectors,
        blocks=blocks,
    )
