"""What else a plan could be: neighbours of the planner's choice, which a measurement may prefer.

One table: for each strategy the numbers that may vary, over which values. What follows from them (tiles along a line,
lanes a row) is computed again, and what no kernel could be is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scanops.codegen.figures import expected_registers, residents
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.registers import fills_registers
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.strategies.widths import can_stage
from scanops.codegen.targets import Target, target_named
from scanops.errors import UnsupportedRequest

__all__ = ["FAMILIES", "candidates", "rebuilt", "restored"]

MOST = 48  # candidates of a spec
OWN = 28  # of them, at least, of the planner's strategy, as far as there are so many
DECLARED_BYTES = 4096  # of shared memory, kept for what a kernel declares beside what it asks for at the launch
IDLE = 0.15  # of a line that may lie past its end, unless the planner's own plan has more
LONG = 2048  # items; below it no row is worth splitting or copying ahead

Grid = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A strategy as a source of candidates."""

    fits: Callable[[ScanSpec, Target], bool]  # whether its plans for a spec are worth a measurement
    plan: Callable[[ScanSpec, Target], Plan]  # the one to start from
    grids: tuple[Grid, ...]  # each is a set of fields that vary together


POWERS = tuple(2**k for k in range(6))
BLOCKS = (128, 256, 512, 1024)

FAMILIES: dict[str, Family] = {
    "warp": Family(
        fits=lambda spec, target: spec.inner == 1 and warp.fits(spec),
        plan=warp.plan,
        grids=({"threads": (64, 128, 256, 512), "lanes": POWERS},),
    ),
    "staged": Family(
        fits=lambda spec, target: staged.fits(spec),
        plan=staged.plan,
        grids=({"threads": (32, 64, 128, 256), "rows": tuple(2**k for k in range(10)), "lanes": POWERS},),
    ),
    "block": Family(
        fits=lambda spec, target: spec.inner == 1 and spec.capacity >= WARP and block.fits(spec, target),
        plan=block.plan,
        grids=({"threads": tuple(range(32, 1025, 32)), "vectors": tuple(range(1, 17))},),
    ),
    "split": Family(
        fits=lambda spec, target: spec.inner == 1 and spec.lines == "few" and spec.capacity >= LONG,
        plan=split.plan,
        grids=({"threads": BLOCKS, "vectors": (1, 2, 3, 4, 6, 8, 12, 16)},),
    ),
    "wave": Family(
        fits=lambda spec, target: spec.inner == 1 and spec.capacity >= LONG,
        plan=wave.plan,
        grids=(
            {"threads": (256, 384, 512, 768, 1024), "vectors": tuple(range(1, 13))},
            {"stages": (2, 3, 4, 5, 6), "ahead": (1, 2, 3)},
            {"blocks": (1, 2), "vectors": (1, 2, 3, 4, 6)},
        ),
    ),
    "transposed": Family(
        fits=transposed.fits,
        plan=transposed.plan,
        grids=(
            {"threads": (32, 64, 128, 256, 512), "items": (4, 8, 16, 32)},
            {"threads": (64, 128, 256), "stages": (2, 3, 4, 5), "streams": (False, True)},
            {"vector": (1, 2, 4), "items": (8, 16, 32), "threads": (64, 128, 256)},
        ),
    ),
    "columns": Family(
        fits=lambda spec, target: spec.inner > 1,
        plan=columns.plan,
        grids=(
            {"threads": (64, 128, 256, 512, 1024), "items": (1, 2, 4, 6, 8, 12, 16)},
            {"threads": (128, 256, 512), "stages": (0, 2, 3, 4, 5)},
            {"columns": tuple(2**k for k in range(1, 9)), "threads": (128, 256, 512)},
        ),
    ),
    "panels": Family(
        fits=lambda spec, target: spec.inner > 1 and spec.capacity >= WARP,
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


def candidates(spec: ScanSpec, target: str) -> Iterator[Plan]:
    """The planner's own plan, then at most 47 others, of its strategy first. Pure: nothing is built or measured.

    Raises UnsupportedRequest for a target that is not in the table.
    """
    own = make_plan(spec, target)
    yield own
    if spec.takes_length:
        return  # a length that is an argument leaves nothing to fit
    seen = {_unnamed(own)}
    ranked: list[list[Plan]] = []  # of the planner's strategy first, then of others, each nearest first
    for start in _starts(own):
        others = {_unnamed(plan): _distance(start, plan) for plan in _neighbours(start)}
        ranked.append([plan for plan in sorted(others, key=lambda plan: others[plan]) if plan not in seen])
        seen |= others.keys()
    left = max(MOST - 1 - OWN, MOST - 1 - len(ranked[0]))
    kept = [plan for turn in itertools.zip_longest(*ranked[1:]) for plan in turn if plan is not None][:left]
    yield from (_named(plan) for plan in [*ranked[0][: MOST - 1 - len(kept)], *kept])


def rebuilt(plan: Plan, **changes: object) -> Plan:
    """``plan`` with some of its numbers changed, and those that follow from them computed again."""
    changed: Any = changes
    if isinstance(plan, StagedPlan):
        shape = {name: getattr(plan, name) for name in ("threads", "rows", "lanes", "items")}
        shape |= {name: value for name, value in changed.items() if name in (*shape, "unroll")}
        return staged.shaped(plan.spec, plan.target, **shape)
    result = dataclasses.replace(plan, **changed)
    fields = {field.name for field in dataclasses.fields(result)}
    lines = result.spec.capacity + max(0, int(getattr(result, "boundary", 0)) - 1)
    follows: Any = {}
    if "lanes" in changes and "vectors" in fields:  # a row lies within its lanes
        follows["vectors"] = ceil_div(lines, changed["lanes"] * result.items)
    if "blocks" in fields and "threads" in changes and "blocks" not in changes:
        follows["blocks"] = max(1, plan.threads * int(getattr(plan, "blocks", 1)) // result.threads)
    result = dataclasses.replace(result, **follows)
    result = dataclasses.replace(result, tiles=max(1, ceil_div(lines, result.tile)))
    if "alone" in fields and "alone" not in changes:
        vectors = int(getattr(result, "vectors", 1))
        alone: Any = fills_registers(result.spec, result.items, vectors, result.threads)
        result = dataclasses.replace(result, **{"alone": alone})
    return result


def restored(spec: ScanSpec, target: str, strategy: str, numbers: Mapping[str, object]) -> Plan:
    """The plan that these numbers describe. Raises UnsupportedRequest where no candidate of today has them."""
    row = target_named(target)
    family = FAMILIES.get(strategy)
    if family is None or spec.takes_length or not family.fits(spec, row):
        raise _gone(spec, f"a strategy that serves it: {', '.join(_serving(spec, row))}", strategy)
    start = family.plan(spec, row)
    known = start.numbers()
    if known.keys() != numbers.keys():
        wrong = sorted(known.keys() ^ numbers.keys())
        raise _gone(spec, f"for {strategy}: {', '.join(known)}", f"{', '.join(wrong)} unknown or left out")
    other_types = [name for name, value in numbers.items() if type(value) is not type(known[name])]
    if other_types:
        value = ", ".join(f"{name}={numbers[name]!r}" for name in other_types)
        raise _gone(spec, f"numbers like {start.describe()}", value)
    changes = {name: value for name, value in numbers.items() if name != "tiles"}
    try:
        plan = rebuilt(start, **changes)
        sound = plan.numbers() == dict(numbers) and _possible(plan)
    except (ValueError, ArithmeticError):
        sound = False
    if not sound:
        raise _gone(spec, "numbers that fit together, the spec and the target", _text(strategy, numbers))
    return dataclasses.replace(plan, why=_reason(plan))


def _gone(spec: ScanSpec, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"a given plan for {spec}", allowed=allowed, value=value, hint=f"measure again: scanops tune {spec}"
    )


def _text(strategy: str, numbers: Mapping[str, object]) -> str:
    return f"{strategy}: " + ", ".join(f"{name} {value}" for name, value in numbers.items())


def _serving(spec: ScanSpec, target: Target) -> list[str]:
    if spec.again:  # one strategy scans a tile twice
        return [make_plan(spec, target.name).strategy]
    return [name for name, family in FAMILIES.items() if family.fits(spec, target)]


def _starts(own: Plan) -> Iterator[Plan]:
    """The planner's plan, and what other strategies would make of the spec."""
    yield own
    for name in _serving(own.spec, own.target):
        if name != own.strategy:
            other = FAMILIES[name].plan(own.spec, own.target)
            if _possible(other):
                yield other


def _neighbours(start: Plan) -> Iterator[Plan]:
    """``start``, and what the table makes of it."""
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
            except (ValueError, ArithmeticError):
                continue  # numbers that divide nothing


def _possible(plan: Plan) -> bool:
    """Whether a kernel can be made of a plan: what templates take for granted holds, and a block fits."""
    if plan.threads % WARP or not WARP <= plan.threads <= plan.target.block_threads:
        return False
    if not all(rule(plan) for rule in _RULES.get(plan.strategy, ())):
        return False
    held = residents(plan, expected_registers(plan), DECLARED_BYTES if plan.shared_bytes else 0)
    return held.blocks >= int(getattr(plan, "blocks", 1))


Rule = Callable[[Any], bool]


def _power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


_RULES: dict[str, tuple[Rule, ...]] = {
    "warp": (
        lambda plan: _power(plan.lanes) and plan.lanes <= WARP,
        lambda plan: plan.tiles == 1 and plan.vectors <= 16,
        lambda plan: plan.lanes == WARP or not plan.boundary,
    ),
    "staged": (
        lambda plan: _power(plan.lanes) and plan.lanes <= WARP,
        lambda plan: plan.rows % plan.at_once == 0 and plan.turns <= 8,
        lambda plan: plan.piece < plan.spec.capacity + plan.items * plan.lanes,
        lambda plan: plan.declared_bytes <= 48 * 1024,  # without opting in
    ),
    "block": (lambda plan: plan.tiles == 1 and plan.vectors <= 16,),  # it has no loop
    "split": (lambda plan: plan.vectors <= 16,),
    "wave": (lambda plan: 1 <= plan.ahead < plan.stages,),
    "transposed": (
        lambda plan: _power(plan.items) and _power(plan.vector) and plan.vector * plan.items <= 64,
        lambda plan: all(len(slab.pieces) <= 8 for slab in (*plan.slabs, *plan.result_slabs) if slab.along),
        lambda plan: plan.stages == 1 or 1 < plan.stages <= plan.tiles,
        lambda plan: plan.shared_bytes + DECLARED_BYTES <= plan.target.block_shared_bytes,
    ),
    "columns": (
        lambda plan: plan.columns % plan.vector == 0 and _power(plan.lanes) and plan.lanes <= WARP,
        lambda plan: plan.columns < 2 * max(plan.spec.inner, plan.vector),
        lambda plan: plan.threads % plan.lanes == 0,
        lambda plan: plan.stages == 0 or (plan.stages > 1 and plan.tiles > 1),
        lambda plan: plan.stages == 0 or can_stage(plan.spec, plan.target, plan.vector),
        lambda plan: plan.stages == 0 or plan.spec.aligned or (plan.exchanged and not plan.gap),
    ),
    "panels": (
        lambda plan: plan.columns % plan.vector == 0 and _power(plan.lanes) and plan.lanes <= WARP,
        lambda plan: plan.columns < 2 * max(plan.spec.inner, plan.vector),
        lambda plan: plan.threads % plan.lanes == 0 and plan.columns <= plan.threads,
        lambda plan: plan.fold_columns <= WARP and plan.abreast >= 1,
        lambda plan: all(_power(number) and number <= WARP for number in (plan.group, plan.stretch)),
    ),
}


def _idle(plan: Plan) -> float:
    """How much of the lines' length the tiles reach past their end."""
    return max(0.0, plan.tile * plan.tiles / plan.spec.capacity - 1)


def _distance(start: Plan, other: Plan) -> float:
    """How far a candidate lies from where it began: in doublings, over its numbers."""
    before: Mapping[str, Any] = start.numbers()
    after: Mapping[str, Any] = other.numbers()
    return sum(abs(math.log2((int(before[name]) + 1) / (int(after[name]) + 1))) for name in after if name != "tiles")


def _unnamed(plan: Plan) -> Plan:
    return dataclasses.replace(plan, why="")


def _named(plan: Plan) -> Plan:
    return dataclasses.replace(plan, why=_reason(plan))


def _reason(plan: Plan) -> str:
    """Why this plan; the text of a kernel holds it, so that it says nothing of who measured or when."""
    along = "one tile" if plan.tiles == 1 else f"{plan.tiles} tiles"
    return f"measured among others: a line of {plan.spec.capacity} in {along} of {plan.tile}"
