"""The forward scan's prefix before each item, recomputed by a gradient kernel: the text of its items."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import accumulator_of
from scanops.codegen.spec import ScanSpec, Source
from scanops.codegen.strategies.elements import Elements

__all__ = ["Before", "before_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Before(Elements):
    """The forward scan over the operands of its gradient: exclusive, and not narrowed to the output dtype."""

    of: ScanSpec  # spec of the gradient

    @property
    def sources(self) -> tuple[Source, ...]:
        """The gradient's operands that the forward scan's items are lifted from."""
        read = " ".join(self.of.operator.before[1:])
        return tuple(source for source in self.of.sources if re.search(rf"\b{source.pointer}\b", read))

    @property
    def regains(self) -> bool:
        """Always False: the products with the prefix are rounded once in any case."""
        return False

    @property
    def element(self) -> str:
        """The C expression that lifts an item of the forward scan from the gradient's operands."""
        names = {source.pointer: f"(Value)({source.dtype.read.format(x=source.pointer)})" for source in self.sources}
        names["m"] = "m" if self.of.mask else "true"
        parts = (re.sub(r"\b[mgv]\b", lambda found: names[found[0]], text) for text in self.of.operator.before[1:])
        return f"lift({', '.join(parts)})"


def before_of(plan: Elements) -> Before:
    """The forward scan that a plan's gradient kernel recomputes."""
    spec = plan.spec
    wide = accumulator_of(spec.accumulator).name
    op, *parts = spec.operator.before
    return Before(
        spec=ScanSpec(
            op=op, dtype=wide, gate=wide if len(parts) > 1 else None, length=spec.length, at_most=spec.at_most
        ),
        of=spec,
        target=plan.target,
        why=plan.why,
        threads=plan.threads,
        items=plan.items,
        tiles=plan.tiles,
    )
