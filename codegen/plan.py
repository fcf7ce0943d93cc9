"""The planner: which strategy serves a spec on a target."""

from __future__ import annotations

from collections.abc import Callable

from scanops.codegen.lines import SPLIT_LENGTH
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, split, warp
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, Target, target_named

__all__ = ["Plan", "make_plan"]

Rule = tuple[Callable[[ScanSpec], bool], Callable[[ScanSpec, Target], Plan]]

# The first rule whose condition holds makes the plan.
RULES: tuple[Rule, ...] = (
    (lambda spec: spec.inner > 1, columns.plan),
    (warp.fits, warp.plan),
    (lambda spec: spec.lines == "few" and spec.length > SPLIT_LENGTH, split.plan),
    (lambda spec: True, block.plan),
)


def make_plan(spec: ScanSpec, target: str = DEFAULT_TARGET) -> Plan:
    """The plan for ``spec`` on ``target``. Raises UnsupportedRequest for a target that is not in the table."""
    row = target_named(target)
    return next(make(spec, row) for holds, make in RULES if holds(spec))
