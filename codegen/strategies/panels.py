"""Columns split over blocks: one tile per block, claimed in memory order, with tree look-back over tile status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import Constant, ceil_div
from scanops.codegen.strategies.columns import DECLARED_BYTES, ONE_TILE
from scanops.codegen.strategies.panel import PanelPlan
from scanops.codegen.strategies.rows import LINE_BYTES
from scanops.codegen.strategies.widths import (
    are_neighbours,
    can_stage,
    column_width,
    full_width,
    is_costly,
    is_narrow,
    is_pair,
    odd_rows,
    panel_lanes,
    register_rows,
)
from scanops.codegen.targets import Target

__all__ = ["PanelsPlan", "fits", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelsPlan(PanelPlan):
    """A block claims a tile and looks back at the tiles above it in its panel.

    The exclusive prefix of a tile is folded in an order that depends on its position alone: the carry of the preceding
    groups of groups, which is chained; the totals of preceding groups in its group of groups; the totals of preceding
    tiles in its group. Groups of one tile in groups of one group are a plain chain.
    """

    strategy: ClassVar[str] = "panels"
    template: ClassVar[str] = "panels.cu.j2"
    looks_back: ClassVar[bool] = True

    abreast: int  # panels whose tiles are claimed together, row of tiles by row of tiles
    group: int  # tiles per group, a power of two up to 32
    stretch: int  # groups per group of groups, likewise

    def grid(self, lines: int, multiprocessors: int, neighbours: int | None = None) -> int:
        """Return the number of blocks of a launch for so many lines: one for each tile."""
        return lines // self.spec.inner * self.panels * self.tiles

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names."""
        return (
            *PanelPlan.constants(self),
            Constant("kAbreast", self.abreast, "panels whose tiles are claimed together"),
            Constant("kGroup", self.group, "tiles of a group"),
            Constant("kStretch", self.stretch, "groups of a group of groups"),
            Constant("kHasPeers", self.has_peers, "a tile folds the totals of tiles"),
            Constant("kHasGroups", self.has_groups, "a tile folds the totals of groups"),
            Constant("kHasCarry", self.has_carry, "inclusive prefixes are chained over groups of groups"),
        )

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls, those for tile status among them."""
        return (*self.code.intrinsics, "relaxed", *self.ring_intrinsics)

    @property
    def groups(self) -> int:
        """Number of groups in a panel; the last one may be partial."""
        return ceil_div(self.tiles, self.group)

    @property
    def has_peers(self) -> bool:
        """Whether totals of tiles are exchanged."""
        return self.group > 1 and self.tiles > 1

    @property
    def has_groups(self) -> bool:
        """Whether totals of groups are exchanged."""
        return self.stretch > 1 and self.groups > 1

    @property
    def has_carry(self) -> bool:
        """Whether inclusive prefixes are chained over groups of groups."""
        return self.groups > self.stretch

    @property
    def folds(self) -> bool:
        """Whether lanes fold totals across a warp."""
        return self.has_peers or self.has_groups

    @property
    def fold_columns(self) -> int:
        """Number of columns that one warp folds."""
        return max(1, self.columns // self.warps)


# H200, fp32 sum, fraction of a copy.
THREADS, BLOCKS = 256, 2
ABREAST = 256  # 32768 x 32768: 0.96, with 128 panels 0.94, with 64 0.91
LANES = 16  # 256 bytes a row: 1 x 32768 x 8192 has 0.97, with 8 lanes 0.94, with 32 0.91
NARROW_LANES = 32  # bool to int64, 64 x 4096 x 512: 0.84
APART_LANES = 32  # of 4 columns, when inner is odd: 64 x 4096 x 1001 has 0.83, 16 lanes 0.71, a column a lane 0.54
# few panels: (threads, rows per thread, blocks), larger tiles in shared memory; groups, and groups of groups
FEW_TILE = (256, 24, 2)  # 8 x 131072 x 256: 0.89, 48 rows by one block 0.73
# splits a panel further: fewer totals per byte. 1 x 4194304 x 64: 0.80, in one panel 0.77
ONE_PANEL_LANES = 8
# the same where rows are many and states small: 0.84. 1 x 131072 x 64: 0.65 and 0.62; masked or in double no faster
LONG_TILE, LONG, SMALL_STATE = (256, 48, 1), 131072, 4  # the latter in bytes
GROUP, STRETCH = 32, 4  # 1 x 4194304 x 64: 0.80, in groups of 64 0.78, of 128 0.75
SHORT = 1024  # rows; up to this length a loop over staged tiles is as fast
# rows; logcumsumexp of 1 x 32768 x 4096 has 0.65 by tiles in parallel, 0.28 by a loop
LONGEST_LOOP = 4096
# Tiles of recurrences, whose state is a gate and a value, by bytes of an output item and whether panels are few:
# (threads, rows per thread, columns, columns per thread, tiles per group), two blocks per SM. Fraction of a copy of
# (8, 4096, 2560), or with few panels of (8, 65536, 256); the tiles of sums in parentheses.
PAIR_TILES = {
    (2, False): (128, 16, 64, 4, 1),  # 0.87 (0.30)
    (2, True): (128, 24, 64, 4, 8),  # 0.78 (0.41)
    (4, False): (256, 8, 64, 4, 1),  # 0.99 (0.99)
    (4, True): (256, 8, 32, 4, 8),  # 0.91 (0.69)
    (8, False): (128, 16, 32, 2, 1),  # complex64: 1.01 (0.84)
    (8, True): (128, 16, 32, 2, 8),  # complex64, not measured
}


def fits(spec: ScanSpec, target: Target, few: bool) -> bool:
    """Whether one block per panel would leave memory idle: columns are long, or odd in number."""
    if spec.inner == 1 or not are_neighbours(spec) or spec.capacity <= ONE_TILE:
        return False
    if not few:
        if spec.inner * spec.out.bytes < LINE_BYTES:
            return False
        # A loop has more halves in flight than registers hold, unless states take the registers.
        short = spec.capacity <= LONGEST_LOOP
        pairs = is_pair(spec) and not (short and spec.segments)
        halves = spec.keeps_bytes and spec.out.bytes < 4 and not pairs
        loops = halves or spec.capacity <= SHORT or (short and is_costly(spec))
        if column_width(spec) == full_width(spec) and loops:
            return False
    return plan(spec, target, few).tiles > 1


def plan(spec: ScanSpec, target: Target, few: bool = False) -> PanelsPlan:
    """Plan one chain per panel, many panels side by side; for few panels, larger tiles with a tree look-back."""
    vector = column_width(spec)
    apart = vector < full_width(spec) and are_neighbours(spec) and not is_narrow(spec, target)
    vector = full_width(spec) if apart else vector
    if is_pair(spec) and not apart and vector == full_width(spec) and spec.inner > ONE_PANEL_LANES * vector:
        return _of_pairs(spec, target, few)
    threads, items, blocks = THREADS, register_rows(spec, vector, apart=apart, few=few), BLOCKS
    lanes = APART_LANES if apart else LANES
    one_panel = few and not apart and spec.inner <= LANES * vector
    if one_panel:
        lanes = ONE_PANEL_LANES
    if lanes * vector * spec.input.bytes < LINE_BYTES:
        lanes = NARROW_LANES
    staged = few and not apart and can_stage(spec, target, vector)
    if staged:
        long = one_panel and spec.length is not None and spec.length >= LONG
        small = spec.alone and fragments(spec).held_bytes <= SMALL_STATE and not is_narrow(spec, target)
        threads, items, blocks = LONG_TILE if long and small else FEW_TILE
        sizes = [source.dtype.bytes for source in spec.sources]
        resident = target.shared_bytes // blocks - target.reserved_bytes - DECLARED_BYTES
        items = min(
            items, resident // (threads * vector * sum(sizes)), items * 16 // (vector * fragments(spec).held_bytes)
        )
        items -= items // 4 if spec.strided else 0  # steps and places of a view take registers
        items = odd_rows(spec, vector, items) if is_narrow(spec, target) else items
    lanes = min(panel_lanes(spec, vector, lanes), threads // vector)
    group, stretch = (GROUP, STRETCH) if few else (1, 1)
    made = _made(
        spec, target, vector, lanes, threads, items,
        apart=apart, stages=int(staged), blocks=blocks, group=group, stretch=stretch,
    )  # fmt: skip
    return made if made.shared_bytes + DECLARED_BYTES <= target.block_shared_bytes else _in_registers(made, few)


def _of_pairs(spec: ScanSpec, target: Target, few: bool) -> PanelsPlan:
    """The plan of a recurrence: tiles in registers, sized by ``PAIR_TILES``."""
    threads, items, columns, vector, group = PAIR_TILES[max(2, spec.out.bytes), few]
    items = min(items - items // 4, 14) if spec.segments else items  # flags take registers, too
    lanes = panel_lanes(spec, vector, columns // vector)
    return _made(spec, target, vector, lanes, threads, items, group=group)


def _made(
    spec: ScanSpec,
    target: Target,
    vector: int,
    lanes: int,
    threads: int,
    items: int,
    *,
    apart: bool = False,
    stages: int = 0,
    blocks: int = BLOCKS,
    group: int = 1,
    stretch: int = 1,
) -> PanelsPlan:
    """Return the plan of these numbers, with those that follow from them."""
    return PanelsPlan(
        spec=spec,
        target=target,
        why=f"columns of {spec.items_text}: their tiles are split over all multiprocessors",
        threads=threads,
        items=items,
        columns=lanes * vector,
        vector=vector,
        apart=apart,
        stages=stages,
        blocks=blocks,
        abreast=ABREAST,
        group=group,
        stretch=stretch,
    )


def _in_registers(made: PanelsPlan, few: bool) -> PanelsPlan:
    """Plan the same with tiles in registers, where a tile exceeds a block's shared memory."""
    items = register_rows(made.spec, made.vector, apart=made.apart, few=few)
    return replace(made, stages=0, items=items)
