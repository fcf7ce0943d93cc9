"""The planner: which strategy serves a spec on a target."""

from __future__ import annotations

from collections.abc import Callable

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import block, columns, split, warp
from scanops.codegen.strategies.base import Plan
from scanops.codegen.targets import DEFAULT_TARGET, Target, target_named

__all__ = ["Plan", "are_few", "make_plan"]

SPLIT_LENGTH = 65536  # a row below this is read by one block in less time than blocks take to exchange totals

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


def are_few(lines: int, length: int, inner: int, multiprocessors: int) -> bool:
    """Whether this many lines leave a GPU idle when each is one block's, or one of 32 columns of a block.

    False where no plan would differ, so that one kernel serves.
    """
    if inner == 1 and length <= SPLIT_LENGTH:
        return False
    blocks = lines if inner == 1 else lines // inner * -(-inner // 32)
    return blocks < 2 * multiprocessors  # two waves: below it the tail of the last wave is felt
