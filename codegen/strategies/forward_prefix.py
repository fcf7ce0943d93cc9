"""The forward scan's prefix before each item, recomputed by a gradient kernel."""

from __future__ import annotations

import re
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
    element: str  # the expression that lifts an item from them
    serial: bool = True
    takes_place: bool = False
    uses_select: bool = False
    extends: bool = False
    quick: bool = False
    compensates: bool = False  # the products with the prefix are rounded once in any case


def forward_prefix_of(gradient: ScanSpec) -> ForwardPrefix:
    """Return the forward scan that the kernel of a gradient recomputes."""
    wide = accumulator_of(gradient.accumulator).name
    op, *parts = gradient.operator.before
    parts = [part if gradient.mask else re.sub(r"m \? (.*) : .*", r"\1", part) for part in parts]
    read = " ".join(parts)
    lifted = tuple(source for source in gradient.sources if re.search(rf"\b{source.pointer}\b", read))
    names = {source.pointer: f"(Value)({source.dtype.read.format(x=source.pointer)})" for source in lifted}
    names["m"] = "m"
    items = (re.sub(r"\b[mgv]\b", lambda found: names[found[0]], part) for part in parts)
    gate = wide if len(parts) > 1 else None
    spec = ScanSpec(op=op, dtype=wide, gate=gate, length=gradient.length, at_most=gradient.at_most)
    return ForwardPrefix(spec=spec, code=fragments(spec), lifted=lifted, element=f"lift({', '.join(items)})")
