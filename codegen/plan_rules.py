"""Invariants of plans that strategies do not state at construction: ``check_plan`` raises for the first broken one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from scanops.codegen.strategies.base import WARP, Plan, require
from scanops.codegen.strategies.base import is_power_of_two as _power

__all__ = ["broken_rule", "check_plan"]

<<<<<<< HEAD
STATIC_BYTES = 48 * 1024  # of declared shared memory per block: more has to be dynamic
=======
MOST_ITEMS = 64  # items of a thread's access, or rows of a thread: all unrolled
>>>>>>> walls

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
<<<<<<< HEAD
        "staged": (
            _LANES,
            ("one tile", lambda plan: plan.tiles == 1),
            ("rows that are a multiple of those scanned at once", lambda plan: plan.rows % plan.at_once == 0),
            ("a piece of whole accesses", lambda plan: plan.piece % plan.items == 0),
            (
                "pieces that begin in the row",
                lambda plan: plan.piece < plan.spec.capacity + plan.items * plan.lanes,
            ),
            (f"at most {STATIC_BYTES} bytes of shared memory", lambda plan: plan.declared_bytes <= STATIC_BYTES),
        ),
        "wave": (
            ("fewer steps ahead than stages", lambda plan: 1 <= plan.ahead < plan.stages),
            # Items that pass through registers reach the ring one step after their load was issued.
            ("two stages more than steps ahead", lambda plan: plan.stages - plan.ahead >= 2 or not plan.lands),
        ),
        "columns": (
            *_COLUMNS,
            ("several tiles for several stages", lambda plan: plan.stages == 0 or plan.stages > 1 or plan.tiles == 1),
            ("several tiles for several stages", lambda plan: plan.stages <= 1 or plan.tiles > 1),
            (
                "copies that whole accesses can make",
                lambda plan: plan.stages == 0 or can_stage(plan.spec, plan.target, plan.vector),
            ),
            (
                "aligned columns, or rows exchanged without gaps, for staged tiles",
                lambda plan: plan.stages == 0 or plan.spec.aligned or (plan.exchanged and not plan.gap),
            ),
        ),
        "panels": (
            *_COLUMNS,
            (
                "copies that whole accesses can make",
                lambda plan: plan.stages == 0 or can_stage(plan.spec, plan.target, plan.vector),
            ),
            ("no more columns than threads", lambda plan: plan.columns <= plan.threads),
            ("lanes for every column of a fold", lambda plan: plan.fold_columns <= WARP),
            (
                "groups and stretches that are powers of two up to 32",
                lambda plan: all(_power(number) and number <= WARP for number in (plan.group, plan.stretch)),
            ),
=======
        "transposed": (
            ("powers of two of items and lines", lambda plan: _power(plan.items) and _power(plan.vector)),
            (f"at most {MOST_ITEMS} items a thread", lambda plan: plan.vector * plan.items <= MOST_ITEMS),
            ("at most 8 pieces an access", lambda plan: plan.most_pieces <= 8),
            ("no more stages than tiles", lambda plan: 1 <= plan.stages <= plan.tiles),
>>>>>>> walls
        ),
    }
)
