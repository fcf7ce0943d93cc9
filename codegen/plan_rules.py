"""The invariants that the templates take for granted of a plan: ``check_plan`` raises for the first that does not hold.

Plans made by the planner satisfy them. Candidates of the tuner are filtered by them, and a plan read from a file is
checked against them before it is rendered: a template prints whatever numbers it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from scanops.codegen.strategies.base import WARP, Plan
from scanops.codegen.strategies.rows import LINE_BYTES, RowPlan
from scanops.codegen.strategies.widths import can_stage
from scanops.errors import UnsupportedRequest

__all__ = ["broken_rule", "check_plan"]

STATIC_BYTES = 48 * 1024  # of declared shared memory per block: more has to be dynamic
MOST_VECTORS = 16  # accesses of a thread to a tile, all unrolled
MOST_ITEMS = 64  # items of a thread's access, or rows of a thread: all unrolled
MOST_BLOCKS = 32  # resident blocks per SM
MOST_STAGES = 8  # tiles in a ring
FROM_ZERO = frozenset(("boundary", "stages"))  # numbers of which 0 means that the plan has none

Rule = tuple[str, Callable[[Any], bool]]  # what holds, in words, and a predicate of the plan


def check_plan(plan: Plan) -> None:
    """Raise UnsupportedRequest, naming the rule, if no correct kernel can be rendered from ``plan``."""
    broken = broken_rule(plan)
    if broken:
        raise UnsupportedRequest(
            f"invalid plan for {plan.spec}",
            allowed=broken,
            value=plan.describe(),
            hint=f"use the planner's own plan, or measure again: scanops tune {plan.spec}",
        )


def broken_rule(plan: Plan) -> str:
    """The first rule that ``plan`` breaks, in words; empty if a correct kernel can be rendered."""
    rules = (*_COMMON, *_RULES[plan.strategy], *_RESOURCES)
    return next((words for words, holds in rules if not holds(plan)), "")


def _power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _whole(plan: Plan) -> bool:
    return all(
        type(value) is bool or (type(value) is int and value >= (0 if name in FROM_ZERO else 1) and value < 2**31)
        for name, value in plan.numbers().items()
    )


def _bounded(plan: Any) -> bool:
    limits = {"items": MOST_ITEMS, "vectors": MOST_VECTORS, "blocks": MOST_BLOCKS, "stages": MOST_STAGES}
    return all(getattr(plan, name, 1) <= limit for name, limit in limits.items() if name in plan.numbers())


def _on_boundary(plan: RowPlan) -> bool:
    """Shifted rows keep to a boundary of whole accesses, of at most one line of memory."""
    smallest = min(*(source.dtype.bytes for source in plan.spec.sources), *plan.spec.result_bytes)
    return plan.boundary % plan.items == 0 and plan.boundary * smallest <= LINE_BYTES


_COMMON: tuple[Rule, ...] = (
    ("whole numbers, at least 1 each (boundary and stages at least 0)", _whole),
    ("a block of whole warps that the target takes", lambda plan: plan.threads % WARP == 0),
    ("a block of whole warps that the target takes", lambda plan: WARP <= plan.threads <= plan.target.block_threads),
    (f"at most {MOST_ITEMS} items, {MOST_VECTORS} vectors, {MOST_BLOCKS} blocks and {MOST_STAGES} stages", _bounded),
)
_RESOURCES: tuple[Rule, ...] = (
    ("tiles that cover the line", lambda plan: plan.spec.takes_length or plan.tile * plan.tiles >= plan.spec.length),
    (
        "shared memory that a block of the target has",
        lambda plan: plan.shared_bytes <= plan.target.block_shared_bytes,
    ),
)
_LANES: Rule = ("lanes that are a power of two up to 32", lambda plan: _power(plan.lanes) and plan.lanes <= WARP)
_ROWS: tuple[Rule, ...] = (
    ("items of an access that are a power of two", lambda plan: _power(plan.items)),
    (f"a boundary of whole accesses, at most {LINE_BYTES} bytes", _on_boundary),
)
_COLUMNS: tuple[Rule, ...] = (
    ("columns that are a whole number of accesses", lambda plan: plan.columns % plan.vector == 0),
    _LANES,
    ("columns that the tensor has", lambda plan: plan.columns < 2 * max(plan.spec.inner, plan.vector)),
    ("a power of two of threads, a multiple of the lanes", lambda plan: plan.threads % plan.lanes == 0),
    ("a power of two of threads, a multiple of the lanes", lambda plan: _power(plan.threads)),
)
_RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "warp": (
            *_ROWS,
            _LANES,
            ("one tile", lambda plan: plan.tiles == 1),
            ("a whole warp for rows that are shifted", lambda plan: plan.lanes == WARP or not plan.boundary),
        ),
        "staged": (
            _LANES,
            ("rows that are a multiple of those scanned at once", lambda plan: plan.rows % plan.at_once == 0),
            ("a piece of whole accesses", lambda plan: plan.piece % plan.items == 0),
            (
                "pieces that begin in the row",
                lambda plan: plan.piece < plan.spec.capacity + plan.items * plan.lanes,
            ),
            (f"at most {STATIC_BYTES} bytes of shared memory", lambda plan: plan.declared_bytes <= STATIC_BYTES),
        ),
        "block": (*_ROWS, ("one tile", lambda plan: plan.tiles == 1)),
        "split": _ROWS,
        "wave": (
            *_ROWS,
            ("fewer steps ahead than stages", lambda plan: 1 <= plan.ahead < plan.stages),
            # Items that pass through registers reach the ring one step after their load was issued.
            ("two stages more than steps ahead", lambda plan: plan.stages - plan.ahead >= 2 or not plan.lands),
        ),
        "transposed": (
            ("powers of two of items and lines", lambda plan: _power(plan.items) and _power(plan.vector)),
            (f"at most {MOST_ITEMS} items a thread", lambda plan: plan.vector * plan.items <= MOST_ITEMS),
            ("at most 8 pieces an access", lambda plan: plan.most_pieces <= 8),
            ("no more stages than tiles", lambda plan: 1 <= plan.stages <= plan.tiles),
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
        ),
    }
)
