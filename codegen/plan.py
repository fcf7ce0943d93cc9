"""The planner: the strategy and the shape of the kernel for a spec on a target."""

from __future__ import annotations

from collections.abc import Callable

from scanops.codegen.measured import measured_plan
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.strategies import block, columns, panels, split, staged, transposed, warp, wave
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, Target, target_named

__all__ = ["Plan", "make_plan"]

Rule = tuple[Callable[[ScanSpec, Target], bool], Callable[[ScanSpec, Target], Plan]]

# The first rule whose condition holds makes the plan.
RULES: tuple[Rule, ...] = (
    (lambda spec, target: spec.again, block.plan),  # the one strategy that scans a tile twice
    (transposed.fits, transposed.plan),
    (panels.fits, panels.plan),
    (lambda spec, target: spec.inner > 1, columns.plan),
    (lambda spec, target: staged.fits(spec), staged.plan),
    (lambda spec, target: warp.fits(spec), warp.plan),
    (lambda spec, target: spec.lines == "few", split.plan),
    (block.fits, block.plan),
    (lambda spec, target: True, wave.plan),
)


def make_plan(spec: ScanSpec, target: str = DEFAULT_TARGET) -> Plan:
    """Return the plan for ``spec`` on ``target``: a measured one, else that of the first rule in ``RULES`` that holds.

    Needs no GPU.

    Raises:
        UnsupportedRequest: ``spec`` is no ScanSpec, or the target is not in the table.

    Example:
        >>> print(make_plan(ScanSpec(op="sum", dtype="float32", length=4)).describe())
        warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
    """
    check_spec(spec)
    row = target_named(target)
    measured = measured_plan(spec, row)
    return measured or next(make(spec, row) for holds, make in RULES if holds(spec, row))
