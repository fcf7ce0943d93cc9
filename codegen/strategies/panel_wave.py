"""Columns, split over blocks that stay: tiles claimed in order, copied ahead, totals published ahead of need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import panels
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.strategies.columns import DECLARED_BYTES
from scanops.codegen.strategies.panels import PanelsPlan
from scanops.codegen.strategies.widths import (
    WIDE_STATE,
    can_stage,
    column_width,
    full_width,
    is_narrow,
    panel_lanes,
)
from scanops.codegen.targets import Target

__all__ = ["PanelWavePlan", "fits", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelWavePlan(PanelsPlan):
    """Persistent blocks with a ring of tiles in shared memory.

    A tile's totals are published when it is scanned, its group's a step later, and both are waited for a step after
    that; what precedes a tile is folded in the order of ``PanelsPlan``.
    """

    strategy: ClassVar[str] = "panel_wave"
    template: ClassVar[str] = "panel_wave.cu.j2"

    ahead: int  # steps from a tile's scan, when its totals are published, to its store; at least 2

    @property
    def folds(self) -> bool:
        """Lanes always do: the totals of the warps."""
        return True

    @property
    def warps_a_lane(self) -> int:
        """Warps whose totals a lane folds by itself."""
        return max(1, self.warps // self.fold_lanes)


# Threads, tiles in the ring, steps ahead; a tile takes what shared memory has for it, as in the wave over rows.
THREADS, FEW_THREADS = 512, 256  # the fewer where shared memory is small
SMALL_SHARED = 128 * 1024
STAGES, AHEAD = 4, 2
LANES = 16
STATE_BYTES = 128  # of a thread's rows: two tiles' prefixes and totals wait in registers beside them,
WIDE_STATE_BYTES = 64  # and those of larger states take more
GROUP = 32  # tiles
STRETCH = 32  # groups: where there is one panel, all blocks meet at the end of a stretch
MANY_GROUP, MANY_STRETCH = 16, 1


def fits(spec: ScanSpec, target: Target) -> bool:
    """Whether panels do, and asynchronous copies bring whole accesses of their tiles."""
    if not panels.fits(spec, target) or fragments(spec).calls:
        return False  # what 512 threads hold across a call of a function spills
    vector = column_width(spec)
    whole = vector == full_width(spec) or is_narrow(spec, target)
    return whole and can_stage(spec, target, vector) and plan(spec, target).tiles > 1


def plan(spec: ScanSpec, target: Target) -> PanelWavePlan:
    """A ring of tiles as large as shared memory allows."""
    few = spec.lines == "few"
    vector = column_width(spec)
    threads = THREADS if target.block_shared_bytes > SMALL_SHARED else FEW_THREADS
    lanes = panel_lanes(spec, vector, LANES)
    row_bytes = vector * sum(row.bytes for row in (spec.input, spec.mask_dtype) if row is not None)
    shared = (target.block_shared_bytes - DECLARED_BYTES) // (STAGES * threads * row_bytes)
    state_bytes = fragments(spec).state_bytes
    held = STATE_BYTES if state_bytes <= WIDE_STATE else WIDE_STATE_BYTES
    items = max(1, min(shared, held // (vector * state_bytes)))
    items = (items - 1) | 1 if is_narrow(spec, target) else items  # lanes that exchange rows lie in different banks
    return PanelWavePlan(
        spec=spec,
        target=target,
        why=f"columns of {spec.items_text}: tiles of all panels are walked by all blocks in order",
        threads=threads,
        items=items,
        tiles=ceil_div(spec.capacity, threads // lanes * items),
        columns=lanes * vector,
        vector=vector,
        apart=False,
        stages=STAGES,
        ahead=AHEAD,
        blocks=1,
        abreast=panels.ABREAST,
        group=GROUP if few else MANY_GROUP,
        stretch=STRETCH if few else MANY_STRETCH,
    )
