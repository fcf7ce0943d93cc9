"""Rows split over blocks: few long rows, their tiles walked by all blocks together, totals exchanged in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import RowPlan, ceil_div, vector_width, vectors_in_registers
from scanops.codegen.targets import Target

__all__ = ["SplitPlan", "plan"]

THREADS = 512
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
        """Flags between blocks need acquire and release."""
        return (*self.code.intrinsics, "acquire_release")

    @property
    def groups(self) -> int:
        """Groups of 32 tiles whose totals a block folds at a time: one a warp."""
        return self.warps

    def workspace_bytes(self, lines: int) -> int:
        """Memory for the claim counter, a flag a tile and a total a tile."""
        tiles = lines * self.tiles
        return 16 + _round_up(4 * tiles, 16) + self.code.state_bytes * tiles


def plan(spec: ScanSpec, target: Target) -> SplitPlan:
    """Tiles as large as the registers of one block a multiprocessor hold: 48 KiB of fp32, the best of the study."""
    items = vector_width(spec)
    vectors = min(MAX_VECTORS, vectors_in_registers(spec, items, raw=1, scanned=2))
    return SplitPlan(
        spec=spec,
        target=target,
        why=f"few rows of {spec.length}: their tiles are spread over all multiprocessors",
        threads=THREADS,
        items=items,
        tiles=ceil_div(spec.length, THREADS * vectors * items),
        vectors=vectors,
        blocks=1,
    )


def _round_up(n: int, step: int) -> int:
    return ceil_div(n, step) * step
