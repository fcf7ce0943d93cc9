"""Invariants of plans that strategies do not state at construction: ``check_plan`` raises for the first broken one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from scanops.codegen.strategies.base import WARP, Plan, require
from scanops.codegen.strategies.base import is_power_of_two as _power

__all__ = ["broken_rule", "check_plan"]

MOST_ITEMS = 64  # items of a thread's access, or rows of a thread: all unrolled

Rule = tuple[str, Callable[[Any], bool]]  # what holds, in words, and a predicate of the plan


def check_plan(plan: Plan) -> None:
    """Raise UnsupportedRequest, naming the rule, if no correct kernel can be rendered from ``plan``."""
    broken = broken_rule(plan)
    require(plan, not broken, broken)


def broken_rule(plan: Plan) -> str:
    """The first rule that ``plan`` breaks, in words; empty if a correct kernel can be rendered."""
    rules = (*_RULES.get(plan.strategy, ()), _SHARED)
    return next((words for words, holds in rules if not holds(plan)), "")


_SHARED: Rule = (
    "shared memory that a block of the target has",
    lambda plan: plan.shared_bytes <= plan.target.block_shared_bytes,
)
_LANES: Rule = ("lanes that are a power of two up to 32", lambda plan: _power(plan.lanes) and plan.lanes <= WARP)
_RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "transposed": (
            ("powers of two of items and lines", lambda plan: _power(plan.items) and _power(plan.vector)),
            (f"at most {MOST_ITEMS} items a thread", lambda plan: plan.vector * plan.items <= MOST_ITEMS),
            ("at most 8 pieces an access", lambda plan: plan.most_pieces <= 8),
            ("no more stages than tiles", lambda plan: 1 <= plan.stages <= plan.tiles),
        ),
    }
)
