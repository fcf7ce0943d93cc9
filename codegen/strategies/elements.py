"""Text that plans share: how items are lifted to states, and how segments and carries read in C."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.fragments import Fragments, fragments
from scanops.codegen.spec import ScanSpec, Source
from scanops.codegen.targets import Target

__all__ = ["Elements"]

WORD_BITS = 32
HALF_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """A spec on a target, and how its items, segments and carries read in C."""

    spec: ScanSpec
    target: Target
    why: str  # the reason for the strategy and the shape, in a sentence
    threads: int  # per block
    items: int  # consecutive items that a thread scans serially: one access, or a run of a column
    tiles: int  # steps of a block along a line; 1: the line is one tile and the kernel has no loop
    few: bool = False  # for so few lines that one block per line would leave the GPU idle

    @property
    def code(self) -> Fragments:
        """The C++ text of types and expressions of the spec."""
        return fragments(self.spec, extends=self.extends)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The operands that are read, in the order of the kernel's parameters."""
        return self.spec.sources

    @property
    def lifted(self) -> tuple[Source, ...]:
        """The operands that items are lifted from. A recomputed forward prefix takes the place of the saved tensor."""
        if not self.spec.again:
            return self.sources
        former = Source(name="former", type="Former", pointer="f", dtype=self.spec.carry, layout="dense")
        return (*(source for source in self.sources if source.name != "saved"), former)

    @property
    def selects(self) -> bool:
        """Whether a bool mask selects: a masked-out item counts as the identity."""
        return self.spec.mask == "bool" and not self.spec.operator.masked

    # ---- an item

    # ---- its position

    @property
    def places_items(self) -> bool:
        """Whether lift reads the item's index in the line."""
        return self.spec.operator.places_items

    @property
    def takes_place(self) -> bool:
        """Whether lifting needs the item's position: for its index or its segment."""
        return self.places_items or self.spec.by_offsets

    # ---- segments

    @property
    def segmented(self) -> bool:
        """Whether the scan restarts within a line."""
        return self.spec.segments is not None

    @property
    def marks_segments(self) -> bool:
        """Whether a warp marks the segments that begin among its items, so that no access searches the offsets."""
        return False

    @property
    def bits(self) -> str:
        """The C type with a bit for each of a thread's consecutive items."""
        return "unsigned" if self.items <= WORD_BITS else "unsigned long long"

    # ---- the items of a thread

    @property
    def serial(self) -> bool:
        """Whether a thread's results follow from each other, starting from `prefix`: for a combine of several
        instructions.

        Otherwise items are scanned first and `prefix` is combined with each: one dependent step instead of one per
        item.
        """
        return self.segmented or not self.spec.operator.of_elements

    @property
    def looks_within(self) -> bool:
        """Whether the prefix of an item depends on the item: on its segment, or on its own fields (exclusive scans)."""
        return self.spec.exclusive and (self.segmented or bool(self.spec.operator.own))

    @property
    def joins(self) -> str:
        """Name of the C function that combines a state with a newer item: "append" or "combine"."""
        return "append" if self.spec.operator.append else "combine"

    @property
    def totals_begin_empty(self) -> bool:
        """Whether a thread's total starts from the identity: append takes a combined state on its left."""
        return self.serial and self.joins == "append"

    @property
    def extends(self) -> bool:
        """Whether a thread's total is first computed with fewer instructions, and checked."""
        return False

    @property
    def extends_results(self) -> bool:
        """Whether results are also first computed with fewer instructions."""
        return self.extends and bool(self.spec.operator.behind)

    @property
    def selected(self) -> tuple[tuple[str, str], ...]:
        """(C type, name) of the state fields that lanes select one by one, where combine is expensive; else empty."""
        return self.code.fields if self.spec.operator.append and not self.segmented and not self.code.calls else ()

    @property
    def regains(self) -> bool:
        """Whether the compensation is added to a thread's total. Half types lose more by their final rounding."""
        exact = self.spec.accumulator == self.spec.out and self.spec.out.bytes > HALF_BYTES
        loses = bool(self.spec.operator.loss) and self.items > 1 and not self.serial
        return loses and exact and self.spec.out.kind == "float"

    # ---- carries

    @property
    def carries(self) -> bool:
        """Whether the scan has a carry-in or a carry-out."""
        return self.spec.initial or self.spec.final
