"""What the forward scan had before each item, scanned again by the kernel of its gradient: the text of its elements."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import accumulator_of
from scanops.codegen.spec import ScanSpec, Source
from scanops.codegen.strategies.elements import Elements

__all__ = ["Before", "before_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Before(Elements):
    """The forward scan on the operands of its gradient: exclusive, and not narrowed to what is stored."""

    of: ScanSpec  # of the gradient

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the gradient's operands that its elements are made of."""
        read = " ".join(self.of.operator.before[1:])
        return tuple(source for source in self.of.sources if re.search(rf"\b{source.pointer}\b", read))

    @property
    def regains(self) -> bool:
        """No: what is multiplied by it is rounded once anyway."""
        return False

    @property
    def element(self) -> str:
        """An element, from the gradient's operands."""
        names = {source.pointer: f"(Value)({source.dtype.read.format(x=source.pointer)})" for source in self.sources}
        names["m"] = "m" if self.of.mask else "true"
        parts = (re.sub(r"\b[mgv]\b", lambda found: names[found[0]], text) for text in self.of.operator.before[1:])
        return f"lift({', '.join(parts)})"


def before_of(plan: Elements) -> Before:
    """The forward scan of a plan for its gradient."""
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
