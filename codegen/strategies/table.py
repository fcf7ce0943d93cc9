"""The table of strategies: what makes a plan of each, and which of its numbers vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, require
from scanops.codegen.strategies.rows import fills_registers
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import Target

__all__ = ["STRATEGIES", "Grid", "Strategy", "rebuilt"]

Grid = Mapping[str, tuple[int, ...]]  # numbers that the tuner varies together, with their values
POWERS = tuple(2**k for k in range(6))
WIDTHS = tuple(2**k for k in range(1, 9))
LONG = 2048  # items; shorter rows are not worth splitting over blocks or copying ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to scan lines, whose plans differ in some numbers."""

    plan: Callable[[ScanSpec, Target, bool], Plan]  # by the strategy's own rule, for few lines or many
    fits: Callable[[ScanSpec, Target, bool], bool]  # whether its plans for a spec are worth a measurement
    free: tuple[str, ...]  # the numbers that a measured plan gives; the others follow from them and from the spec
    grids: tuple[Grid, ...]


STRATEGIES: Mapping[str, Strategy] = {
    "warp": Strategy(
        plan=warp.plan,
        fits=lambda spec, target, few: spec.inner == 1 and warp.fits(spec),
        free=("threads", "lanes"),
        grids=({"threads": (64, 128, 256, 512), "lanes": POWERS},),
    ),
    "staged": Strategy(
        plan=staged.plan,
        fits=lambda spec, target, few: staged.fits(spec),
        free=("threads", "rows", "lanes"),
        grids=({"threads": (32, 64, 128, 256), "rows": tuple(2**k for k in range(10)), "lanes": POWERS},),
    ),
    "block": Strategy(
        plan=block.plan,
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= WARP and block.fits(spec, target),
        free=("vectors",),
        grids=({"threads": tuple(range(32, 1025, 32)), "vectors": tuple(range(1, 17))},),
    ),
    "split": Strategy(
        plan=split.plan,
        fits=lambda spec, target, few: spec.inner == 1 and few and spec.capacity >= LONG,
        free=("threads", "vectors"),
        grids=({"threads": (128, 256, 512, 1024), "vectors": (1, 2, 3, 4, 6, 8, 12, 16)},),
    ),
    "wave": Strategy(
        plan=wave.plan,
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= LONG,
        free=("threads", "vectors", "stages", "ahead", "blocks"),
        grids=(
            {"threads": (256, 384, 512, 768, 1024), "vectors": tuple(range(1, 13))},
            {"stages": (2, 3, 4, 5, 6), "ahead": (1, 2, 3)},
            {"blocks": (1, 2), "vectors": (1, 2, 3, 4, 6)},
        ),
    ),
    "transposed": Strategy(
        plan=transposed.plan,
        fits=lambda spec, target, few: transposed.fits(spec),
        free=("threads", "items", "vector", "stages", "streams"),
        grids=(
            {"threads": (32, 64, 128, 256, 512), "items": (4, 8, 16, 32)},
            {"threads": (64, 128, 256), "stages": (2, 3, 4, 5), "streams": (False, True)},
            {"vector": (1, 2, 4), "items": (8, 16, 32), "threads": (64, 128, 256)},
        ),
    ),
    "columns": Strategy(
        plan=columns.plan,
        fits=lambda spec, target, few: spec.inner > 1,
        free=("threads", "items", "columns", "vector", "stages", "blocks"),
        grids=(
            {"threads": (64, 128, 256, 512, 1024), "items": (1, 2, 4, 6, 8, 12, 16)},
            {"threads": (128, 256, 512), "stages": (0, 2, 3, 4, 5)},
            {"columns": WIDTHS, "threads": (128, 256, 512)},
        ),
    ),
    "panels": Strategy(
        plan=panels.plan,
        fits=lambda spec, target, few: spec.inner > 1 and spec.capacity >= WARP,
        free=("threads", "items", "columns", "vector", "stages", "blocks", "abreast", "group", "stretch"),
        grids=(
            {"threads": (128, 256, 512), "items": (4, 6, 8, 12, 16, 20)},
            {"columns": WIDTHS, "items": (8, 16)},
            {"blocks": (1, 2, 3, 4), "items": (4, 8, 16)},
            {"group": (1, 8, 32), "stretch": (1, 8, 32)},
            {"abreast": tuple(2**k for k in range(11))},
        ),
    ),
}


def rebuilt(plan: Plan, **changes: Any) -> Plan:
    """Return ``plan`` with some of its numbers changed and those that follow from them recomputed.

    Raises UnsupportedRequest where no correct kernel has these numbers; ValueError or ArithmeticError for numbers that
    divide nothing.
    """
    numbers: dict[str, Any] = {**plan.numbers(), **changes}
    length = plan.spec.capacity + max(0, numbers.get("boundary", 0) - 1)
    if isinstance(plan, StagedPlan):
        shape = {name: numbers[name] for name in ("threads", "rows", "lanes", "items")}
        shape |= {name: value for name, value in changes.items() if name == "unroll"}
        return replace(staged.shaped(plan.spec, plan.target, **shape), few=plan.few)
    if "lanes" in changes and "vectors" in numbers:  # a row lies within its lanes
        numbers["vectors"] = ceil_div(length, changes["lanes"] * numbers["items"])
    if plan.strategy == "block" and "vectors" in changes and "threads" not in changes:  # or within its block
        numbers["threads"] = WARP * ceil_div(length, WARP * numbers["vectors"] * numbers["items"])
    if "blocks" in numbers and "threads" in changes and "blocks" not in changes:
        numbers["blocks"] = max(1, plan.threads * numbers["blocks"] // numbers["threads"])
    if "alone" in numbers and "alone" not in changes:
        numbers["alone"] = fills_registers(plan.spec, *(numbers[name] for name in ("items", "vectors", "threads")))
    del numbers["tiles"]
    made = replace(plan, **numbers)
    fits = made.shared_bytes <= made.target.block_shared_bytes
    require(made, fits, "shared memory that a block of the target has")
    return made
