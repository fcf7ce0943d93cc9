"""Measured plans: the planner's thresholds, in one file for each target that was measured.

codegen/measured/sm_90.json lists, for some hundred specs, the fastest plan that was found on a GPU of that target. It
has the format of the files of ``scanops tune``; ``python -m benchmarks plans`` writes it. A spec takes the plan of an
entry of its own class, ``class_of``: that of the nearest length not too far away, or of the longest row measured where
that one is split into tiles. Numbers that follow from the length are recomputed. Specs of a class that
nobody measured, and targets without a file, take the plan of their strategy's own rule.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.fragments import fragments
from scanops.codegen.plan_rules import broken_rule
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, panels, split, staged, warp, wave
from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.registers import fills_registers
from scanops.codegen.strategies.rows import row_of
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import Target
from scanops.errors import UnsupportedRequest

__all__ = ["class_of", "measured_plan", "rebuilt"]

NEAR = 2.0  # factor between a length of several tiles and the measured one whose plan it takes
NEAR_TILE = 1.42  # the same for lengths of one tile

# The numbers of a plan that an entry gives; the others follow from them and from the spec.
FREE: Mapping[str, tuple[str, ...]] = {
    "warp": ("threads", "lanes"),
    "staged": ("threads", "rows", "lanes"),
    "block": ("vectors",),
    "split": ("threads", "vectors"),
    "wave": ("threads", "vectors", "stages", "ahead", "blocks"),
    "columns": ("threads", "items", "columns", "vector", "stages", "blocks"),
    "panels": ("threads", "items", "columns", "vector", "stages", "blocks", "abreast", "group", "stretch"),
}
_STARTS = {
    "warp": warp.plan,
    "staged": staged.plan,
    "block": block.plan,
    "split": split.plan,
    "wave": wave.plan,
    "columns": columns.plan,
    "panels": panels.plan,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One entry of a file: the plan that was fastest for a length."""

    length: int
    strategy: str
    numbers: Mapping[str, Any]
    tiles: int
    faster: bool  # than the plan of the strategy's rule


def class_of(spec: ScanSpec, few: bool) -> tuple[object, ...] | None:
    """Return what the best shape depends on besides the length; None where plans are not measured.

    Directions, exclusive scans and carries do not count. Operators count by their state, so that one of a user's takes
    the plans of a built-in operator like it.
    """
    if spec.takes_length or spec.again or spec.saved or spec.strided or not spec.aligned:
        return None
    operator = spec.operator
    combine = (operator.costly, operator.ordered, bool(operator.append), bool(operator.loss))
    state = (*combine, fragments(spec).state_bytes, len(operator.fields), spec.indexed)
    mask = dtype_named(spec.mask).bytes if spec.mask else 0
    operands = (spec.input.bytes, mask, spec.mask == "bool", spec.gate and spec.term.bytes, spec.result_bytes)
    columns = spec.inner.bit_length()  # of as many columns, up to a factor of 2
    whole = spec.inner > 1 or spec.divides(spec.access_items)
    return (state, spec.accumulator.bytes, operands, spec.segments, columns, whole, few)


def measured_plan(spec: ScanSpec, target: Target, few: bool) -> Plan | None:
    """Return the measured plan for ``spec``, or None where no entry near it gives one."""
    kind = class_of(spec, few)
    entries = _table(target.name).get(kind, ()) if kind else ()
    for entry in sorted(entries, key=lambda entry: abs(math.log2(spec.capacity / entry.length))):
        factor, most = spec.capacity / entry.length, NEAR if entry.tiles > 1 else NEAR_TILE
        beyond = spec.inner == 1 and entry.tiles > 1 and entry.length == max(each.length for each in entries)
        if 1 / most <= factor <= (math.inf if beyond else most):
            plan = _carried(spec, target, few, entry) if entry.faster else None
            if plan is not None or not entry.faster:
                return plan
    return None


def _carried(spec: ScanSpec, target: Target, few: bool, entry: Measured) -> Plan | None:
    """The plan of an entry for a spec of its class, or None where it does not serve that length."""
    numbers = {name: entry.numbers[name] for name in FREE[entry.strategy]}
    if entry.strategy == "block":
        warps = ceil_div(row_of(spec)[2], WARP * numbers["vectors"])
        numbers["threads"] = WARP * warps if spec.capacity != entry.length else entry.numbers["threads"]
    try:
        start = _STARTS[entry.strategy](spec, target, few)
        plan = rebuilt(start, **numbers)
    except (UnsupportedRequest, ValueError, ArithmeticError, StopIteration):
        return None  # the strategy has no plan for this length to start from
    return None if broken_rule(plan) else plan


def rebuilt(plan: Plan, **changes: Any) -> Plan:
    """Return ``plan`` with some of its numbers changed and those that follow from them recomputed."""
    if isinstance(plan, StagedPlan):
        shape = {name: getattr(plan, name) for name in ("threads", "rows", "lanes", "items")}
        shape |= {name: value for name, value in changes.items() if name in (*shape, "unroll")}
        return replace(staged.shaped(plan.spec, plan.target, **shape), few=plan.few)
    numbers: dict[str, Any] = {**plan.numbers(), **changes}
    numbers.pop("tiles")  # follows
    length = plan.spec.capacity + max(0, numbers.get("boundary", 0) - 1)
    if "lanes" in changes and "vectors" in numbers:  # a row lies within its lanes
        numbers["vectors"] = ceil_div(length, changes["lanes"] * numbers["items"])
    if "blocks" in numbers and "threads" in changes and "blocks" not in changes:
        numbers["blocks"] = max(1, plan.threads * numbers["blocks"] // numbers["threads"])
    if "alone" in numbers and "alone" not in changes:
        numbers["alone"] = fills_registers(plan.spec, *(numbers[name] for name in ("items", "vectors", "threads")))
    return replace(plan, **numbers)


@functools.cache
def _table(target: str) -> Mapping[tuple[object, ...], tuple[Measured, ...]]:
    """The entries measured on a GPU of this target, by class."""
    file = resources.files("scanops.codegen") / "measured" / f"{target}.json"
    if not file.is_file():
        return {}
    found: dict[tuple[object, ...], list[Measured]] = {}
    for entry in json.loads(file.read_text(encoding="utf-8"))["entries"]:
        spec, times, numbers = ScanSpec.parse(entry["spec"]), entry["measured"], entry["plan"]
        kind = class_of(spec, entry["few"])
        if kind:
            faster = times["tuned_us"] < times["default_us"]
            found.setdefault(kind, []).append(
                Measured(spec.capacity, entry["strategy"], numbers, numbers["tiles"], faster)
            )
    return {kind: tuple(entries) for kind, entries in found.items()}
