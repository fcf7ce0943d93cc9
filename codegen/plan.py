"""The planner: the strategy and the shape of the kernel for a spec on a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scanops.codegen.lines import SPLIT_LENGTH
from scanops.codegen.measured import measured_plan
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, Target, target_named

__all__ = ["Plan", "make_plan"]

Rule = tuple[Callable[[ScanSpec, Target, bool], bool], Callable[[ScanSpec, Target, bool], Plan]]

# The first rule whose condition holds makes the plan.
RULES: tuple[Rule, ...] = (
    (lambda spec, target, few: spec.again, block.plan),  # the one strategy that scans a tile twice
    (lambda spec, target, few: transposed.fits(spec), transposed.plan),
    (panels.fits, panels.plan),
    (lambda spec, target, few: spec.inner > 1, columns.plan),
    (lambda spec, target, few: staged.fits(spec), staged.plan),
    (lambda spec, target, few: warp.fits(spec), warp.plan),
    (lambda spec, target, few: few and spec.capacity >= SPLIT_LENGTH, split.plan),
    (lambda spec, target, few: block.fits(spec, target), block.plan),
    (lambda spec, target, few: True, wave.plan),
)


def make_plan(spec: ScanSpec, target: str = DEFAULT_TARGET, few: bool = False) -> Plan:
    """Return the plan for ``spec`` on ``target``: a measured one, else that of the first rule in ``RULES`` that holds.

    ``few``: for so few lines that one block per line would leave the GPU idle (``lines.are_few``). Needs no GPU.

    Raises:
        UnsupportedRequest: ``spec`` is no ScanSpec, or the target is not in the table.

    Example:
        >>> print(make_plan(ScanSpec(op="sum", dtype="float32", length=4)).describe())
        warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
    """
    check_spec(spec)
    row = target_named(target)
    plan = measured_plan(spec, row, few) or next(make(spec, row, few) for holds, make in RULES if holds(spec, row, few))
    return replace(plan, few=True) if few else plan
