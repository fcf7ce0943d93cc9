"""The planner: the strategy and the shape of the kernel for a spec on a target."""

from __future__ import annotations

from dataclasses import replace

from scanops.codegen.lines import SPLIT_LENGTH
from scanops.codegen.measured import measured_plan
from scanops.codegen.spec import ScanSpec, check_spec
from scanops.codegen.strategies import block, panels, staged, transposed, warp
from scanops.codegen.strategies.base import Plan
from scanops.codegen.strategies.table import STRATEGIES
from scanops.codegen.targets import DEFAULT_TARGET, Target, target_named

__all__ = ["Plan", "make_plan", "strategy_of"]


def make_plan(spec: ScanSpec, target: str = DEFAULT_TARGET, few: bool = False) -> Plan:
    """Return the plan for ``spec`` on ``target``: a measured one, else that of the strategy that fits.

    ``few``: for so few lines that one block per line would leave the GPU idle (``lines.are_few``). Needs no GPU.

    Raises:
        UnsupportedRequest: ``spec`` is no ScanSpec, or the target is not in the table.

    Example:
        >>> print(make_plan(ScanSpec(op="sum", dtype="float32", length=4)).describe())
        warp: threads 128, items 4, tiles 1, vectors 1, boundary 0, lanes 1
    """
    check_spec(spec)
    row = target_named(target)
    plan = measured_plan(spec, row, few) or STRATEGIES[strategy_of(spec, row, few)].plan(spec, row, few)
    return replace(plan, few=True) if few else plan


def strategy_of(spec: ScanSpec, target: Target, few: bool) -> str:
    """Return the name of the strategy whose rule makes the plan where none was measured."""
    if spec.again:
        return "block"  # the one strategy that scans a tile twice
    if spec.input_layout == "transposed" and transposed.fits(spec):
        return "transposed"
    if spec.inner > 1:
        return "panels" if panels.fits(spec, target, few) else "columns"
    if staged.fits(spec):
        return "staged"
    if warp.fits(spec):
        return "warp"
    if few and spec.capacity >= SPLIT_LENGTH:
        return "split"
    return "block" if block.fits(spec, target) else "wave"
