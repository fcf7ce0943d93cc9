"""The table of strategies: what makes a plan of each, and which of its numbers vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, require
from scanops.codegen.strategies.rows import fills_registers
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import Target

__all__ = ["STRATEGIES", "Strategy", "rebuilt"]

POWERS = tuple(2**k for k in range(11))
LONG = 2048  # items; shorter rows are not worth splitting over blocks or copying ahead
PANEL: Mapping[str, Sequence[int]] = {
    "threads": POWERS[5:],
    "items": (1, 2, 4, 6, 8, 12, 16, 20, 24, 32),
    "columns": POWERS[1:9],
    "vector": POWERS[:4],
    "stages": range(6),
    "blocks": range(1, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to scan lines, whose plans differ in some numbers."""

    plan: Callable[[ScanSpec, Target, bool], Plan]  # by the strategy's own rule, for few lines or many
    fits: Callable[[ScanSpec, Target, bool], bool]  # whether its plans for a spec are worth a measurement
    # The numbers that a measured plan gives, with the values worth a try; the others follow from them and from the spec
    free: Mapping[str, Sequence[int]]


STRATEGIES: Mapping[str, Strategy] = {
    "warp": Strategy(
        plan=warp.plan,
        fits=lambda spec, target, few: spec.inner == 1 and warp.fits(spec),
        free={"threads": POWERS[6:10], "lanes": POWERS[:6]},
    ),
    "staged": Strategy(
        plan=staged.plan,
        fits=lambda spec, target, few: staged.fits(spec),
        free={"threads": POWERS[5:9], "rows": POWERS[:10], "lanes": POWERS[:6]},
    ),
    "block": Strategy(
        plan=block.plan,
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= WARP and block.fits(spec, target),
        free={"vectors": range(1, 17)},
    ),
    "split": Strategy(
        plan=split.plan,
        fits=lambda spec, target, few: spec.inner == 1 and few and spec.capacity >= LONG,
        free={"threads": (128, 256, 384, 512, 768, 1024), "vectors": range(1, 17)},
    ),
    "wave": Strategy(
        plan=wave.plan,
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= LONG,
        free={
            "threads": (*range(96, 513, 32), 640, 768, 1024),
            "vectors": range(1, 17),
            "stages": range(2, 7),
            "ahead": range(1, 4),
            "blocks": range(1, 5),
        },
    ),
    "transposed": Strategy(
        plan=transposed.plan,
        fits=lambda spec, target, few: transposed.fits(spec),
        free={
            "threads": POWERS[5:10],
            "items": POWERS[2:6],
            "vector": POWERS[:3],
            "stages": range(1, 6),
            "blocks": range(1, 17),
            "streams": (False, True),
        },
    ),
    "columns": Strategy(
        plan=columns.plan,
        fits=lambda spec, target, few: spec.inner > 1,
        free=PANEL,
    ),
    "panels": Strategy(
        plan=panels.plan,
        fits=lambda spec, target, few: spec.inner > 1 and spec.capacity >= WARP,
        free={**PANEL, "abreast": POWERS, "group": (1, 8, 32), "stretch": (1, 4, 8, 32)},
    ),
}


def rebuilt(plan: Plan, **free: Any) -> Plan:
    """Return ``plan`` with these free numbers, and those that follow from them recomputed.

    Raises UnsupportedRequest where no correct kernel has these numbers; ValueError or ArithmeticError for numbers that
    divide nothing.
    """
    numbers: dict[str, Any] = {**plan.numbers(), **free}
    if isinstance(plan, StagedPlan):
        shape = {name: numbers[name] for name in ("threads", "rows", "lanes", "items")}
        return replace(staged.shaped(plan.spec, plan.target, **shape), few=plan.few)
    reach = plan.spec.capacity + max(0, numbers.get("boundary", 0) - 1)
    if plan.strategy == "warp":  # a row lies within its lanes
        numbers["vectors"] = ceil_div(reach, numbers["lanes"] * numbers["items"])
    if plan.strategy == "block":  # or within its block
        numbers["threads"] = WARP * ceil_div(reach, WARP * numbers["vectors"] * numbers["items"])
    if "alone" in numbers:
        numbers["alone"] = fills_registers(plan.spec, *(numbers[name] for name in ("items", "vectors", "threads")))
    del numbers["tiles"]
    made = replace(plan, **numbers)
    fits = made.shared_bytes <= made.target.block_shared_bytes
    require(made, fits, "shared memory that a block of the target has")
    return made
