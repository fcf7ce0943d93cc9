"""The forward scan's prefix before each item, recomputed by a gradient kernel."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.dtypes import accumulator_of
from scanops.codegen.fragments import Fragments, fragments
from scanops.codegen.spec import ScanSpec, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPrefix:
    """The forward scan over the operands of its gradient: exclusive, and not narrowed to the output dtype.

    The names are those of a plan, for the text of operators.
    """

    spec: ScanSpec
    code: Fragments
    lifted: tuple[Source, ...]  # the gradient's operands that its items are lifted from
    item: str  # the operator's C++ expression of an item, of a gate g and a mask m
    element: str  # the expression that makes the state of an item
    serial: bool = True
    uses_select: bool = False
    extends: bool = False
    quick: bool = False
    within: bool = False
    compensates: bool = False  # the products with the prefix are rounded once in any case


def forward_prefix_of(gradient: ScanSpec) -> ForwardPrefix:
    """Return the forward scan that the kernel of a gradient recomputes, from its gate and its mask."""
    wide = accumulator_of(gradient.accumulator).name
    op, item = gradient.operator.before
    lifted = tuple(source for source in gradient.sources if source.pointer in ("g", "m"))
    gate = next(source for source in lifted if source.pointer == "g").dtype.read.format(x="g")
    spec = ScanSpec(op=op, dtype=wide, length=gradient.length, at_most=gradient.at_most)
    element = f"lift(forward_item((Value)({gate}), {'m' if gradient.mask else 'true'}))"
    return ForwardPrefix(spec=spec, code=fragments(spec), lifted=lifted, item=item, element=element)
