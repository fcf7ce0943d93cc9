"""Rows by block: a block scans a row in registers, in one tile or tile by tile with the next loads in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import (
    WARP,
    RowPlan,
    ceil_div,
    fills_registers,
    reads_wide,
    vector_width,
    vectors_in_registers,
)
from scanops.codegen.targets import Target

__all__ = ["BlockPlan", "plan"]

MAX_THREADS = 512  # of blocks that hold much: 128 registers a thread
MAX_VECTORS = 16  # each access costs a scan across the warp

# (accesses of a row, up to; accesses a thread makes). H200, fp32 sum, fraction of a copy:
WIDE = (  # of 16 bytes
    (256, 2),  # 1024: 1.00 with 2, 0.996 with 4, 0.97 with 1
    (1024, 4),  # 2048, 4096: 0.98 with 4, 0.97 with 2, 0.94 with 1
    (2048, 2),  # 8192: 0.986 with 2, 0.97 with 4 or 8
)
NARROW = ((5120, 9),)  # 4097: 0.91 with 9, 0.85 with 15, 0.74 with 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan(RowPlan):
    """A block a row. A warp holds ``vectors`` neighbouring stripes of 32 accesses, warps follow one another."""

    strategy: ClassVar[str] = "block"
    template: ClassVar[str] = "block_rows.cu.j2"

    alone: bool  # a block has the registers of a multiprocessor to itself


def plan(spec: ScanSpec, target: Target) -> BlockPlan:
    """One tile when the row fits in the registers of a block; else equal tiles as long as a block holds."""
    items = vector_width(spec)
    one_tile = min(MAX_VECTORS, vectors_in_registers(spec, items, raw=0, scanned=1))
    looping = min(MAX_VECTORS, vectors_in_registers(spec, items, raw=1, scanned=1))
    accesses = ceil_div(spec.length, items)
    if accesses <= MAX_THREADS * one_tile:
        table = WIDE if reads_wide(spec, items) else NARROW
        preferred = next((each for limit, each in table if accesses <= limit), one_tile)
        threads = _whole_warps(ceil_div(accesses, min(preferred, one_tile)))
        vectors, tiles = ceil_div(accesses, threads), 1
        why = f"a row of {spec.length} fits in the registers of one block: one tile, no loop"
    else:
        threads = MAX_THREADS
        sizes = range(looping, looping // 2, -1)  # a tile that divides the row wastes no loads and needs no guards
        vectors = min(sizes, key=lambda v: ceil_div(spec.length, threads * v * items) * v)
        tiles = ceil_div(spec.length, threads * vectors * items)
        why = f"a row of {spec.length} outgrows the registers of a block: {tiles} tiles, the next one's loads in flight"
    return BlockPlan(
        spec=spec,
        target=target,
        why=why,
        threads=threads,
        items=items,
        tiles=tiles,
        vectors=vectors,
        alone=fills_registers(spec, items, vectors, threads, raw=int(tiles > 1)),
    )


def _whole_warps(threads: int) -> int:
    return ceil_div(threads, WARP) * WARP
