"""The invariant of plans that strategies do not state at construction: ``check_plan`` raises where it is broken."""

from __future__ import annotations

from scanops.codegen.strategies.base import Plan, require

__all__ = ["broken_rule", "check_plan"]


def check_plan(plan: Plan) -> None:
    """Raise UnsupportedRequest, naming the rule, if no correct kernel can be rendered from ``plan``."""
    broken = broken_rule(plan)
    require(plan, not broken, broken)


def broken_rule(plan: Plan) -> str:
    """The rule that ``plan`` breaks, in words; empty if a correct kernel can be rendered."""
    fits = plan.shared_bytes <= plan.target.block_shared_bytes
    return "" if fits else "shared memory that a block of the target has"
