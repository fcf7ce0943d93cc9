"""Alternative plans for the tuner to measure, and the check of plans that come back from its files.

The grids of the table of strategies are tried; plans from which no correct kernel can be rendered are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from scanops.codegen.figures import expected_registers, residents
from scanops.codegen.plan import by_rule, make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import WARP, Plan
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.strategies.table import STRATEGIES, rebuilt
from scanops.codegen.targets import Target, target_named
from scanops.errors import UnsupportedRequest, shown

__all__ = ["MOST", "candidates", "idle_part", "is_resident", "restored"]

MOST = 48  # candidates of a spec
OWN = 28  # of them, at least, of the planner's strategy, as far as there are so many
DECLARED_BYTES = 4096  # of shared memory, reserved for arrays that a kernel declares beside its dynamic ones
MOST_TURNS = 8  # rows that a lane of a staged plan scans one after the other
IDLE = 0.15  # fraction of the tiles that may lie past the end of the line, unless the planner's own plan has more


def candidates(spec: ScanSpec, target: str, few: bool = False) -> Iterator[Plan]:
    """Yield the planner's plan, then up to 47 alternatives, those of its own strategy first.

    A pure function: nothing is built or measured. Raises UnsupportedRequest for an unknown target.
    """
    own = make_plan(spec, target, few)
    yield own
    if spec.takes_length:
        return  # a kernel for any length has one shape
    seen = {replace(own, why="")}
    ranked: list[list[Plan]] = []  # of the planner's strategy first, then of others, each by distance from its start
    for start in _starts(own):
        others = {replace(plan, why=""): _distance(start, plan) for plan in _neighbours(start)}
        ranked.append([plan for plan in sorted(others, key=lambda plan: others[plan]) if plan not in seen])
        seen |= others.keys()
    left = max(MOST - 1 - OWN, MOST - 1 - len(ranked[0]))
    kept = [plan for turn in itertools.zip_longest(*ranked[1:]) for plan in turn if plan is not None][:left]
    yield from (_explained(plan) for plan in [*ranked[0][: MOST - 1 - len(kept)], *kept])


def restored(spec: ScanSpec, target: str, strategy: str, numbers: Mapping[str, object], few: bool = False) -> Plan:
    """Return the plan with these numbers. Raises UnsupportedRequest unless it is a candidate of this version.

    The numbers come from a file and are not trusted: whatever the values, only plans that ``candidates`` could have
    proposed are accepted, and only those are computed.
    """
    row = target_named(target)
    serving = [] if spec.takes_length else _serving(spec, row, few)
    if strategy not in serving:
        raise _gone(spec, f"a strategy that serves it: {', '.join(serving)}", repr(strategy))
    start = by_rule(strategy, spec, row, few)
    own = make_plan(spec, target, few)
    plan = _with_numbers(start, numbers) or (_with_numbers(own, numbers) if own.strategy == strategy else None)
    if plan is None:
        value = ", ".join(f"{shown(name)} {shown(value)}" for name, value in numbers.items())
        raise _gone(spec, f"the numbers of a candidate of this version, as {start.describe()}", f"{strategy}: {value}")
    return _explained(plan)


def _with_numbers(start: Plan, numbers: Mapping[str, Any]) -> Plan | None:
    """The candidate with these numbers: ``start`` itself, or what one grid of its strategy makes of it; else None."""
    if {name: type(value) for name, value in numbers.items()} != _types(start):
        return None
    if start.numbers() == numbers:
        return start  # the rule's own plan needs no estimate of what is resident
    for grid in STRATEGIES[start.strategy].grids:
        if all(numbers[name] in values for name, values in grid.items()):
            plan = _tried(start, {name: numbers[name] for name in grid})
            if plan is not None and plan.numbers() == numbers:
                return plan
    return None


def _types(plan: Plan) -> dict[str, type]:
    return {name: type(value) for name, value in plan.numbers().items()}


def _gone(spec: ScanSpec, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a plan for {spec} is no candidate of this version",
        allowed=allowed,
        value=value,
        hint=f"measure again: scanops tune {spec}",
    )


def _serving(spec: ScanSpec, target: Target, few: bool) -> list[str]:
    """The names of the strategies whose plans for a spec are worth a measurement."""
    if spec.again:  # one strategy recomputes the forward scan of a tile
        return [make_plan(spec, target.name).strategy]
    return [name for name, strategy in STRATEGIES.items() if strategy.fits(spec, target, few)]


def _starts(own: Plan) -> Iterator[Plan]:
    """The planner's plan, then the plans of the other strategies that serve the spec."""
    yield own
    for name in _serving(own.spec, own.target, own.few):
        if name != own.strategy:
            try:
                other = by_rule(name, own.spec, own.target, own.few)
            except UnsupportedRequest:
                continue  # no kernel of this strategy
            if _possible(other):
                yield other


def _neighbours(start: Plan) -> Iterator[Plan]:
    """``start``, then the plans that the grids of its strategy make of it."""
    yield start
    idle = max(IDLE, idle_part(start))
    for grid in STRATEGIES[start.strategy].grids:
        for values in itertools.product(*grid.values()):
            other = _tried(start, dict(zip(grid, values, strict=True)))
            if other is not None and idle_part(other) <= idle:
                yield other


def _tried(start: Plan, numbers: Mapping[str, Any]) -> Plan | None:
    """``start`` with these numbers, if it is worth a measurement; else None."""
    try:
        plan = rebuilt(start, **numbers)
        return plan if _possible(plan) else None
    except (UnsupportedRequest, ValueError, ArithmeticError):
        return None  # no correct kernel, or numbers that divide nothing


def _possible(plan: Plan) -> bool:
    """Whether a plan is worth a measurement."""
    turns = plan.rows * plan.lanes / WARP if isinstance(plan, StagedPlan) else 1
    return turns <= MOST_TURNS and is_resident(plan)


def is_resident(plan: Plan) -> bool:
    """Whether the blocks of a plan are resident on an SM, as many as it promises, by estimate."""
    declared = DECLARED_BYTES if plan.shared_bytes else 0
    if plan.shared_bytes + declared > plan.target.block_shared_bytes:
        return False
    return residents(plan, expected_registers(plan), declared).blocks >= int(getattr(plan, "blocks", 1))


def idle_part(plan: Plan) -> float:
    """The fraction of a line's length by which its tiles reach past its end."""
    return max(0.0, plan.tile * plan.tiles / plan.spec.capacity - 1)


def _distance(start: Plan, other: Plan) -> float:
    """The distance of a candidate from its start: the sum over its numbers of the doublings between them."""
    before: Mapping[str, Any] = start.numbers()
    after: Mapping[str, Any] = other.numbers()
    return sum(abs(math.log2((int(before[name]) + 1) / (int(after[name]) + 1))) for name in after if name != "tiles")


def _explained(plan: Plan) -> Plan:
    """The plan with the reason for its kernel's banner, without a machine or time: the text is reproducible."""
    along = "one tile" if plan.tiles == 1 else f"{plan.tiles} tiles"
    return replace(plan, why=f"measured among others: a line of {plan.spec.capacity} in {along} of {plan.tile}")
