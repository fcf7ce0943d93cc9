"""Alternative plans to measure, for the tuner and for the planner's table, and the check of plans from files.

They differ from the plan of a strategy in its free numbers; those from which no correct kernel can be rendered are left
out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scanops.codegen.figures import estimate_registers, residents
from scanops.codegen.kernel_key import MANY, KernelKey
from scanops.codegen.planner import STRATEGIES, by_rule, plan_kernel, rebuilt
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import WARP, Plan
from scanops.codegen.strategies.staged import StagedPlan
from scanops.errors import UnsupportedRequest, format_value

MOST = 48  # candidates of a spec
OWN = 28  # of them, at least, of the planner's strategy, as far as there are so many
DECLARED_BYTES = 4096  # of shared memory, reserved for arrays that a kernel declares beside its dynamic ones
MOST_TURNS = 16  # rows that a lane of a staged plan scans one after the other
REACH = 2  # values up or down that two numbers of a plan go together
IDLE = 0.15  # fraction of the tiles that may lie past the end of the line, unless the start has more


def candidates(key: KernelKey) -> Iterator[Plan]:
    """Yield the planner's plan, then up to 47 alternatives, those of its own strategy first.

    A pure function: nothing is built or measured. Raises UnsupportedRequest for an unknown target.
    """
    own = plan_kernel(key)
    yield own
    if key.spec.takes_length:
        return  # a kernel for any length has one shape
    seen = {own}
    ranked: list[list[Plan]] = []  # of the planner's strategy first, then of others, each by distance from its start
    for start in starts(own):
        ranked.append([plan for plan in (start, *neighbours(start)) if plan not in seen])
        seen.update(ranked[-1])
    left = max(MOST - 1 - OWN, MOST - 1 - len(ranked[0]))
    kept = [plan for turn in itertools.zip_longest(*ranked[1:]) for plan in turn if plan is not None][:left]
    yield from map(_explain, [*ranked[0][: MOST - 1 - len(kept)], *kept])


def restore_plan(key: KernelKey, strategy: str, numbers: Mapping[str, object]) -> Plan:
    """Return the plan of a kernel with these numbers. Raises UnsupportedRequest unless this version makes such a plan.

    The numbers come from a file and are not trusted: whatever the values, only the strategy's own plan and plans of
    values worth a try are accepted, and only those are computed.
    """
    spec = key.spec
    serving = [] if spec.takes_length else _serving(key)
    if strategy not in serving:
        raise _gone(spec, f"a strategy that serves it: {', '.join(serving)}", repr(strategy))
    start = by_rule(strategy, key)
    now, free = start.numbers(), STRATEGIES[strategy].free
    if {name: type(value) for name, value in numbers.items()} == {name: type(value) for name, value in now.items()}:
        known = all(numbers[name] in (now[name], *values) for name, values in free.items())
        for plan in (start, make_candidate(start, {name: numbers[name] for name in free}) if known else None):
            if plan is not None and plan.numbers() == numbers:
                return _explain(plan)
    value = ", ".join(f"{format_value(name)} {format_value(value)}" for name, value in numbers.items())
    raise _gone(spec, f"the numbers of a candidate of this version, as {start.describe()}", f"{strategy}: {value}")


def _gone(spec: ScanSpec, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a plan for {spec} is no candidate of this version",
        allowed=allowed,
        value=value,
        hint=f"measure again: scanops tune {spec}",
    )


def _serving(key: KernelKey) -> list[str]:
    """The names of the strategies whose plans for a kernel are worth a measurement."""
    if key.spec.recomputes:  # one strategy scans a tile twice
        return [plan_kernel(key._replace(variant=MANY)).strategy]
    return [name for name, strategy in STRATEGIES.items() if strategy.fits(key)]


def starts(own: Plan) -> Iterator[Plan]:
    """Yield a plan, then the plans of the other strategies that serve its spec, by their rules."""
    yield own
    for name in _serving(own.key):
        other = None if name == own.strategy else _worth(by_rule, name, own.key)
        if other is not None:
            yield other


def neighbours(start: Plan) -> list[Plan]:
    """Return the plans that differ from ``start`` in one free number, or in two by REACH values each; nearest first."""
    free, idle = STRATEGIES[start.strategy].free, max(IDLE, idle_part(start))
    now = {name: getattr(start, name) for name in free}
    near = {name: _beside(now[name], values) for name, values in free.items()}
    changes = [{name: value} for name, values in free.items() for value in values]
    changes += [{a: x, b: y} for a, b in itertools.combinations(free, 2) for x in near[a] for y in near[b]]
    changes.sort(key=lambda change: sum(_doublings(now[name], value) for name, value in change.items()))
    found = dict.fromkeys(make_candidate(start, {**now, **change}) for change in changes)
    return [plan for plan in found if plan is not None and plan != start and idle_part(plan) <= idle]


def _beside(now: int, values: Sequence[int]) -> list[int]:
    """The REACH greatest of some rising values below ``now``, and the least above it."""
    return [*[value for value in values if value < now][-REACH:], *[value for value in values if value > now][:REACH]]


def _doublings(now: int, value: int) -> float:
    return abs(math.log2((now + 1) / (value + 1)))


def make_candidate(start: Plan, numbers: Mapping[str, Any]) -> Plan | None:
    """Return ``start`` with other free numbers, if it is worth a measurement; else None."""
    return _worth(rebuilt, start, **numbers)


def _worth(make: Callable[..., Plan], *arguments: Any, **numbers: Any) -> Plan | None:
    """The plan that a function makes, if its kernel is correct and its blocks are resident; else None."""
    try:
        plan = make(*arguments, **numbers)
    except (UnsupportedRequest, ValueError, ArithmeticError, StopIteration):
        return None  # no correct kernel, or numbers that divide nothing
    turns = plan.rows * plan.lanes / WARP if isinstance(plan, StagedPlan) else 1
    return plan if turns <= MOST_TURNS and _is_resident(plan) else None


def _is_resident(plan: Plan) -> bool:
    """Whether the blocks of a plan are resident on an SM, as many as it promises, by estimate."""
    declared = DECLARED_BYTES if plan.shared_bytes else 0
    if plan.shared_bytes + declared > plan.target.block_shared_bytes:
        return False
    return residents(plan, estimate_registers(plan), declared).blocks >= int(getattr(plan, "blocks", 1))


def idle_part(plan: Plan) -> float:
    """Return the fraction of a line's length by which its tiles reach past its end."""
    return max(0.0, plan.tile * plan.tiles / plan.spec.capacity - 1)


def _explain(plan: Plan) -> Plan:
    """The plan with the reason for its kernel's banner, without a machine or time: the text is reproducible."""
    along = "one tile" if plan.tiles == 1 else f"{plan.tiles} tiles"
    why = f"measured among others: a line of {plan.spec.capacity} in {along} of {plan.tile}"
    return replace(plan, why=why, origin=f"measured: {plan.spec.slug}")
