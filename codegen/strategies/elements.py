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

    @property
    def plain_state(self) -> str:
        """C type of the operator's own state; a segmented scan's state also holds head flags."""
        return "Plain" if self.segmented else "State"

    @property
    def plain(self) -> str:
        """Prefix of the names of the operator's own functions, in C."""
        return "plain_" if self.segmented else ""

    @property
    def nothing(self) -> str:
        """The operator's identity, in C."""
        return f"{self.plain}identity()"

    @property
    def element_given(self) -> str:
        """Parameters of the function that lifts an item."""
        parts = [f"{source.type} {source.pointer}" for source in self.lifted]
        parts += ["bool b"] if self.spec.by_offsets else []
        return ", ".join([*parts, *(["int i"] if self.places_items else [])])

    @property
    def element(self) -> str:
        """The C expression that lifts an item to a state."""
        parts = [self.code.element, self.code.gate, "f" if self.spec.again else self.code.saved]
        parts += [("m" if self.spec.mask else "true") if self.spec.operator.masked else ""]
        parts += ["i" if self.places_items else ""]
        lifted = f"lift({', '.join(part for part in parts if part)})"
        plain = f"m ? {lifted} : {self.nothing}" if self.selects else lifted
        return f"{{{plain}, b ? {2 if self.spec.reverse else 3} : 0}}" if self.segmented else plain

    # ---- its position

    @property
    def places_items(self) -> bool:
        """Whether lift reads the item's index in the line."""
        return self.spec.operator.places_items

    @property
    def takes_place(self) -> bool:
        """Whether lifting needs the item's position: for its index or its segment."""
        return self.places_items or self.spec.by_offsets

    @property
    def place_given(self) -> str:
        """The position of the first of several items, as additional parameters."""
        return (", int i" if self.takes_place else "") + (", const Segments& segments" if self.spec.by_offsets else "")

    def places_passed(self, position: str, segments: str = "segments") -> str:
        """The position of the first of several items, as additional arguments, from its scan position."""
        place = f", {self.place_of(position)}" if self.takes_place else ""
        return place + (f", {segments}" if self.spec.by_offsets else "")

    def place_passed(self, k: int) -> str:
        """The position of item k after the first one, as additional arguments."""
        bit = self.items - 1 - k if self.spec.reverse else k
        starts = f", starts{f' >> {bit}' if bit else ''} & 1" if self.spec.by_offsets else ""
        return starts + (f", i{f' {self.sign} {k}' if k else ''}" if self.places_items else "")

    @property
    def row_place_given(self) -> str:
        """The position of one row of neighbouring lines, as additional parameters."""
        return (", bool b" if self.spec.by_offsets else "") + (", int i" if self.places_items else "")

    @property
    def row_place_passed(self) -> str:
        """The position of one row of neighbouring lines, as additional arguments."""
        return (", b" if self.spec.by_offsets else "") + (", i" if self.places_items else "")

    def place_of(self, position: str) -> str:
        """The index in its line of the item at a scan position, in C, as an int: the longest line has 2^31 items."""
        if self.spec.reverse:
            inner = f"({position})" if " " in position else position
            position = f"{'length' if self.spec.length is None else self.spec.length} - 1 - {inner}"
        if self.position == "int":
            return position
        return f"(int)({position})"

    @property
    def position(self) -> str:
        """The C type that holds any position in a line, one tile past its end included."""
        raise NotImplementedError

    @property
    def sign(self) -> str:
        """Sign of a step along the line in memory: "-" for a reverse scan."""
        return "-" if self.spec.reverse else "+"

    # ---- segments

    @property
    def segmented(self) -> bool:
        """Whether the scan restarts within a line."""
        return self.spec.segments is not None

    @property
    def narrows_segments(self) -> bool:
        """Whether a warp first narrows the offsets to its part of a tile, so that each access searches fewer."""
        return False

    @property
    def bits(self) -> str:
        """The C type with a bit for each of a thread's consecutive items."""
        return "unsigned" if self.items <= WORD_BITS else "unsigned long long"

    @property
    def lowest_place(self) -> str:
        """Index of the item of a thread's consecutive items that is lowest in memory, in C."""
        return f"(long long)i - {self.items - 1}" if self.spec.reverse and self.items > 1 else "i"

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

    @property
    def moves_before(self) -> bool:
        """Whether the prefix advances before the result is taken (inclusive scan)."""
        return self.serial and not self.spec.exclusive

    @property
    def moves_after(self) -> bool:
        """Whether the prefix advances after the result is taken (exclusive scan)."""
        return self.serial and self.spec.exclusive

    @property
    def row_items(self) -> tuple[str, ...]:
        """The rows of a thread, in C."""
        return tuple(f"s.row[{k}]" for k in range(self.items))

    @property
    def prefix_given(self) -> str:
        """The prefix before a thread's rows, as a parameter: by value where it advances."""
        return "States prefix" if self.serial else "const States& prefix"

    def advance(self, item: str, each: str = "") -> str:
        """The C statement that advances `prefix` past an item, for serial results."""
        return f"prefix = {self.joins}{each}(prefix, {item});"

    def scanned(self, items: tuple[str, ...], k: int, each: str = "") -> str:
        """The state of result k, in C, from `prefix` and the items; an exclusive scan leaves item k out."""
        if self.serial:
            return f"within{each}(prefix, {items[k]})" if self.looks_within else "prefix"
        if not self.spec.exclusive:
            return f"combine{each}(prefix, {items[k]})"
        return f"combine{each}(prefix, {items[k - 1]})" if k else "prefix"

    def sum_of(self, k: int) -> str:
        """The name of the total that precedes result k, in C; empty: none."""
        before = k - 1 if self.spec.exclusive else k
        return f"sum{before}" if before >= 0 else ""

    # ---- carries

    @property
    def carries(self) -> bool:
        """Whether the scan has a carry-in or a carry-out."""
        return self.spec.initial or self.spec.final

    def after(self, begin: str, state: str) -> str:
        """A state combined with the carry-in on its left, in C."""
        return f"combine({begin}, {state})" if self.spec.initial else state

    def begin(self, line: str, there: str = "") -> str:
        """The carry-in of a line as a state, in C.

        there: a C condition that the line exists, where that is not certain.
        """
        if not self.spec.initial:
            return "identity()"
        line = f"({line})" if " " in line else line
        begun = f"begin_line(carry_in + {line} * carry_in_step)"
        return f"{there} ? {begun} : identity()" if there else begun
