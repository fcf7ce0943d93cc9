"""Alternative plans for the tuner to measure, and the check of plans that come back from its files.

One table gives, for each strategy, the numbers that may vary and their values. Numbers that follow from them, such as
tiles per line or lanes per row, are recomputed, and plans from which no correct kernel can be rendered are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scanops.codegen.figures import expected_registers, residents
from scanops.codegen.measured import rebuilt
from scanops.codegen.plan import make_plan
from scanops.codegen.plan_rules import broken_rule, check_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import WARP, Plan
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import Target, target_named
from scanops.errors import UnsupportedRequest, shown

__all__ = ["FAMILIES", "candidates", "restored"]

MOST = 48  # candidates of a spec
OWN = 28  # of them, at least, of the planner's strategy, as far as there are so many
DECLARED_BYTES = 4096  # of shared memory, reserved for arrays that a kernel declares beside its dynamic ones
MOST_TURNS = 8  # rows that a lane of a staged plan scans one after the other
IDLE = 0.15  # fraction of the tiles that may lie past the end of the line, unless the planner's own plan has more
LONG = 2048  # items; shorter rows are not worth splitting over blocks or copying ahead

Grid = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The candidates of one strategy."""

    fits: Callable[[ScanSpec, Target, bool], bool]  # whether the strategy's plans for a spec are worth a measurement
    plan: Callable[[ScanSpec, Target, bool], Plan]  # the strategy's own plan, to start from
    grids: tuple[Grid, ...]  # fields that vary together, with their values


POWERS = tuple(2**k for k in range(6))
BLOCKS = (128, 256, 512, 1024)

FAMILIES: dict[str, Family] = {
    "warp": Family(
        fits=lambda spec, target, few: spec.inner == 1 and warp.fits(spec),
        plan=warp.plan,
        grids=({"threads": (64, 128, 256, 512), "lanes": POWERS},),
    ),
    "staged": Family(
        fits=lambda spec, target, few: staged.fits(spec),
        plan=staged.plan,
        grids=({"threads": (32, 64, 128, 256), "rows": tuple(2**k for k in range(10)), "lanes": POWERS},),
    ),
    "block": Family(
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= WARP and block.fits(spec, target),
        plan=block.plan,
        grids=({"threads": tuple(range(32, 1025, 32)), "vectors": tuple(range(1, 17))},),
    ),
    "split": Family(
        fits=lambda spec, target, few: spec.inner == 1 and few and spec.capacity >= LONG,
        plan=split.plan,
        grids=({"threads": BLOCKS, "vectors": (1, 2, 3, 4, 6, 8, 12, 16)},),
    ),
    "wave": Family(
        fits=lambda spec, target, few: spec.inner == 1 and spec.capacity >= LONG,
        plan=wave.plan,
        grids=(
            {"threads": (256, 384, 512, 768, 1024), "vectors": tuple(range(1, 13))},
            {"stages": (2, 3, 4, 5, 6), "ahead": (1, 2, 3)},
            {"blocks": (1, 2), "vectors": (1, 2, 3, 4, 6)},
        ),
    ),
    "transposed": Family(
        fits=lambda spec, target, few: transposed.fits(spec),
        plan=transposed.plan,
        grids=(
            {"threads": (32, 64, 128, 256, 512), "items": (4, 8, 16, 32)},
            {"threads": (64, 128, 256), "stages": (2, 3, 4, 5), "streams": (False, True)},
            {"vector": (1, 2, 4), "items": (8, 16, 32), "threads": (64, 128, 256)},
        ),
    ),
    "columns": Family(
        fits=lambda spec, target, few: spec.inner > 1,
        plan=columns.plan,
        grids=(
            {"threads": (64, 128, 256, 512, 1024), "items": (1, 2, 4, 6, 8, 12, 16)},
            {"threads": (128, 256, 512), "stages": (0, 2, 3, 4, 5)},
            {"columns": tuple(2**k for k in range(1, 9)), "threads": (128, 256, 512)},
        ),
    ),
    "panels": Family(
        fits=lambda spec, target, few: spec.inner > 1 and spec.capacity >= WARP,
        plan=panels.plan,
        grids=(
            {"threads": (128, 256, 512), "items": (4, 6, 8, 12, 16, 20)},
            {"columns": tuple(2**k for k in range(1, 9)), "items": (8, 16)},
            {"blocks": (1, 2, 3, 4), "items": (4, 8, 16)},
            {"group": (1, 8, 32), "stretch": (1, 8, 32)},
            {"abreast": tuple(2**k for k in range(11))},
        ),
    ),
}


def candidates(spec: ScanSpec, target: str, few: bool = False) -> Iterator[Plan]:
    """Yield the planner's plan, then up to 47 alternatives, those of its own strategy first.

    A pure function: nothing is built or measured. Raises UnsupportedRequest for an unknown target.
    """
    own = make_plan(spec, target, few)
    yield own
    if spec.takes_length:
        return  # a kernel for any length has one shape
    seen = {_unnamed(own)}
    ranked: list[list[Plan]] = []  # of the planner's strategy first, then of others, each by distance from its start
    for start in _starts(own):
        others = {_unnamed(plan): _distance(start, plan) for plan in _neighbours(start)}
        ranked.append([plan for plan in sorted(others, key=lambda plan: others[plan]) if plan not in seen])
        seen |= others.keys()
    left = max(MOST - 1 - OWN, MOST - 1 - len(ranked[0]))
    kept = [plan for turn in itertools.zip_longest(*ranked[1:]) for plan in turn if plan is not None][:left]
    yield from (_named(plan) for plan in [*ranked[0][: MOST - 1 - len(kept)], *kept])


def restored(spec: ScanSpec, target: str, strategy: str, numbers: Mapping[str, object], few: bool = False) -> Plan:
    """Return the plan with these numbers. Raises UnsupportedRequest unless it is a candidate of this version.

    The numbers come from a file and are not trusted: whatever the values, only plans that ``candidates`` could have
    proposed are accepted, and only those are computed.
    """
    row = target_named(target)
    family = FAMILIES.get(strategy)
    if family is None or spec.takes_length or not family.fits(spec, row, few):
        raise _gone(spec, f"a strategy that serves it: {', '.join(_serving(spec, row, few))}", repr(strategy))
    start = replace(family.plan(spec, row, few), few=few)
    known = start.numbers()
    if known.keys() != numbers.keys():
        wrong = sorted(map(str, known.keys() ^ numbers.keys()))
        raise _gone(spec, f"for {strategy}: {', '.join(known)}", f"{', '.join(wrong)} unknown or left out")
    other_types = [name for name, value in numbers.items() if type(value) is not type(known[name])]
    if other_types:
        value = ", ".join(f"{name}={shown(numbers[name])}" for name in other_types)
        raise _gone(spec, f"numbers like {start.describe()}", value)
    plan = _with_numbers(start, numbers)
    if plan is None:
        text = ", ".join(f"{name} {shown(value)}" for name, value in numbers.items())
        raise _gone(spec, "numbers that a candidate of this version has", f"{strategy}: {text}")
    check_plan(plan)
    return replace(plan, why=_reason(plan))


def _with_numbers(start: Plan, numbers: Mapping[str, Any]) -> Plan | None:
    """The candidate with these numbers: ``start`` itself, or what one grid of its family makes of it; else None."""
    if start.numbers() == numbers:
        return start
    for grid in FAMILIES[start.strategy].grids:
        if not (grid.keys() <= numbers.keys() and all(numbers[name] in values for name, values in grid.items())):
            continue
        try:
            plan = rebuilt(start, **{name: numbers[name] for name in grid})
            if plan.numbers() == numbers and _possible(plan):
                return plan
        except (UnsupportedRequest, ValueError, ArithmeticError):
            continue  # a division by zero or a negative size: no kernel has these numbers
    return None


def _gone(spec: ScanSpec, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a plan for {spec} is no candidate of this version",
        allowed=allowed,
        value=value,
        hint=f"measure again: scanops tune {spec}",
    )


def _serving(spec: ScanSpec, target: Target, few: bool) -> list[str]:
    if spec.again:  # one strategy recomputes the forward scan of a tile
        return [make_plan(spec, target.name).strategy]
    return [name for name, family in FAMILIES.items() if family.fits(spec, target, few)]


def _starts(own: Plan) -> Iterator[Plan]:
    """The planner's plan, then the plans of the other strategies that serve the spec."""
    yield own
    for name in _serving(own.spec, own.target, own.few):
        if name != own.strategy:
            try:
                other = replace(FAMILIES[name].plan(own.spec, own.target, own.few), few=own.few)
            except UnsupportedRequest:
                continue  # no kernel of this strategy
            if _possible(other):
                yield other


def _neighbours(start: Plan) -> Iterator[Plan]:
    """``start``, then the plans that the grids of its strategy make of it."""
    yield start
    family = FAMILIES.get(start.strategy)
    idle = max(IDLE, _idle(start))
    for grid in family.grids if family else ():
        if not grid.keys() <= start.numbers().keys():
            continue
        for values in itertools.product(*grid.values()):
            try:
                other = rebuilt(start, **dict(zip(grid, values, strict=True)))
                if _possible(other) and _idle(other) <= idle:
                    yield other
            except (UnsupportedRequest, ValueError, ArithmeticError):
                continue  # no plan, or numbers that divide nothing


def _possible(plan: Plan) -> bool:
    """Whether a plan is worth a measurement: correct, and of blocks that are resident on an SM, by estimate."""
    if broken_rule(plan) or (isinstance(plan, StagedPlan) and plan.rows * plan.lanes > MOST_TURNS * WARP):
        return False
    declared = DECLARED_BYTES if plan.shared_bytes else 0
    if plan.shared_bytes + declared > plan.target.block_shared_bytes:
        return False
    return residents(plan, expected_registers(plan), declared).blocks >= int(getattr(plan, "blocks", 1))


def _idle(plan: Plan) -> float:
    """The fraction of a line's length by which its tiles reach past its end."""
    return max(0.0, plan.tile * plan.tiles / plan.spec.capacity - 1)


def _distance(start: Plan, other: Plan) -> float:
    """The distance of a candidate from its start: the sum over its numbers of the doublings between them."""
    before: Mapping[str, Any] = start.numbers()
    after: Mapping[str, Any] = other.numbers()
    return sum(abs(math.log2((int(before[name]) + 1) / (int(after[name]) + 1))) for name in after if name != "tiles")


def _unnamed(plan: Plan) -> Plan:
    return replace(plan, why="")


def _named(plan: Plan) -> Plan:
    return replace(plan, why=_reason(plan))


def _reason(plan: Plan) -> str:
    """The reason printed in the kernel's banner; it names no machine or time, so that the text is reproducible."""
    along = "one tile" if plan.tiles == 1 else f"{plan.tiles} tiles"
    return f"measured among others: a line of {plan.spec.capacity} in {along} of {plan.tile}"
