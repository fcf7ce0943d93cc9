"""What items become: states, made of what the operands hold at their place. The text of it that plans share."""

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
    """A spec on a target, and how its elements, its segments and what lines begin and end with read in C."""

    spec: ScanSpec
    target: Target
    why: str  # the reason for the strategy and the shape, in a sentence
    threads: int  # a block
    items: int  # consecutive items a thread scans serially: one access, or a run of a column
    tiles: int  # steps a block takes along a line; 1: the line is one tile and the kernel has no loop

    @property
    def code(self) -> Fragments:
        """The C++ text of types and expressions."""
        return fragments(self.spec, extends=self.extends)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The operands that are read, in the order of the kernel's parameters."""
        return self.spec.sources

    @property
    def lifted(self) -> tuple[Source, ...]:
        """What items are made of: what is read, or in place of what was saved that which is scanned again."""
        if not self.spec.again:
            return self.sources
        former = Source(name="former", type="Former", pointer="f", dtype=self.spec.carry, layout="dense")
        return (*(source for source in self.sources if source.name != "saved"), former)

    @property
    def selects(self) -> bool:
        """Whether the mask is bool: a masked-out element counts as the identity."""
        return self.spec.mask == "bool" and not self.spec.operator.masked

    # ---- an element

    @property
    def plain_state(self) -> str:
        """The C type of the operator's own state; where there are segments, a state is more than that."""
        return "Plain" if self.segmented else "State"

    @property
    def plain(self) -> str:
        """What the names of the operator's own functions begin with, in C."""
        return "plain_" if self.segmented else ""

    @property
    def nothing(self) -> str:
        """Its identity, in C."""
        return f"{self.plain}identity()"

    @property
    def element_given(self) -> str:
        """What an element is made of, as parameters."""
        parts = [f"{source.type} {source.pointer}" for source in self.lifted]
        parts += ["bool b"] if self.spec.by_offsets else []
        return ", ".join([*parts, *(["int i"] if self.places_items else [])])

    @property
    def element(self) -> str:
        """And in an expression."""
        parts = [self.code.element, self.code.gate, "f" if self.spec.again else self.code.saved]
        parts += [("m" if self.spec.mask else "true") if self.spec.operator.masked else ""]
        parts += ["i" if self.places_items else ""]
        lifted = f"lift({', '.join(part for part in parts if part)})"
        plain = f"m ? {lifted} : {self.nothing}" if self.selects else lifted
        return f"{{{plain}, b ? {2 if self.spec.reverse else 3} : 0}}" if self.segmented else plain

    # ---- its place

    @property
    def places_items(self) -> bool:
        """Whether a state is made of an item and of where it is."""
        return self.spec.operator.places_items

    @property
    def takes_place(self) -> bool:
        """Whether items become states by their place in the line."""
        return self.places_items or self.spec.by_offsets

    @property
    def place_given(self) -> str:
        """The place of the first of several items, as further parameters."""
        return (", int i" if self.takes_place else "") + (", const Segments& segments" if self.spec.by_offsets else "")

    def places_passed(self, position: str, segments: str = "segments") -> str:
        """And as further arguments, from its scan position."""
        place = f", {self.place_of(position)}" if self.takes_place else ""
        return place + (f", {segments}" if self.spec.by_offsets else "")

    def place_passed(self, k: int) -> str:
        """The place of item k from there, as further arguments."""
        bit = self.items - 1 - k if self.spec.reverse else k
        starts = f", starts{f' >> {bit}' if bit else ''} & 1" if self.spec.by_offsets else ""
        return starts + (f", i{f' {self.sign} {k}' if k else ''}" if self.places_items else "")

    @property
    def row_place_given(self) -> str:
        """The place of items of neighbouring lines, as further parameters."""
        return (", bool b" if self.spec.by_offsets else "") + (", int i" if self.places_items else "")

    @property
    def row_place_passed(self) -> str:
        """And as further arguments."""
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
        """The direction in which a line is walked in memory."""
        return "-" if self.spec.reverse else "+"

    # ---- segments

    @property
    def segmented(self) -> bool:
        """Whether scans begin anew within a line."""
        return self.spec.segments is not None

    @property
    def narrows_segments(self) -> bool:
        """Whether a warp looks for the segments in its part of a tile once, so that fewer are looked through for each
        access."""
        return False

    @property
    def bits(self) -> str:
        """The C type with a bit for each of a thread's consecutive items."""
        return "unsigned" if self.items <= WORD_BITS else "unsigned long long"

    @property
    def lowest_place(self) -> str:
        """Where the first of them in memory is, in C."""
        return f"(long long)i - {self.items - 1}" if self.spec.reverse and self.items > 1 else "i"

    # ---- the items of a thread

    @property
    def serial(self) -> bool:
        """Whether results follow one from the other, from `prefix` on: where joining states takes some instructions.

        Else items are scanned on their own first, and `prefix` is joined with each: that is one step, not one for each.
        """
        return self.segmented or not self.spec.operator.of_elements

    @property
    def looks_within(self) -> bool:
        """Whether what an item comes after depends on the item itself: on its segment, or by what is its own."""
        return self.spec.exclusive and (self.segmented or bool(self.spec.operator.own))

    @property
    def joins(self) -> str:
        """The C function by which an element joins what is older."""
        return "append" if self.spec.operator.append else "combine"

    @property
    def totals_begin_empty(self) -> bool:
        """Whether the total of a thread's items begins with the identity: append takes a state that has been joined."""
        return self.serial and self.joins == "append"

    @property
    def extends(self) -> bool:
        """Whether the total of a thread's items is tried by shorter steps first."""
        return False

    @property
    def extends_results(self) -> bool:
        """Whether results are, too."""
        return self.extends and bool(self.spec.operator.behind)

    @property
    def selected(self) -> tuple[tuple[str, str], ...]:
        """(C type, name) of the fields of a state that is dear to join; none where it is not, or is more than that."""
        return self.code.fields if self.spec.operator.append and not self.segmented and not self.code.calls else ()

    @property
    def regains(self) -> bool:
        """Whether a thread's total regains what rounding lost on the way. Results in half types round away more."""
        exact = self.spec.accumulator == self.spec.out and self.spec.out.bytes > HALF_BYTES
        loses = bool(self.spec.operator.loss) and self.items > 1 and not self.serial
        return loses and exact and self.spec.out.kind == "float"

    @property
    def moves_before(self) -> bool:
        """Whether `prefix` moves past an item before its result is taken."""
        return self.serial and not self.spec.exclusive

    @property
    def moves_after(self) -> bool:
        """Or after that."""
        return self.serial and self.spec.exclusive

    @property
    def row_items(self) -> tuple[str, ...]:
        """The rows of a thread, in C."""
        return tuple(f"s.row[{k}]" for k in range(self.items))

    @property
    def prefix_given(self) -> str:
        """What precedes the rows of a thread, as a parameter: one of its own where it moves."""
        return "States prefix" if self.serial else "const States& prefix"

    def advance(self, item: str, each: str = "") -> str:
        """The statement that moves `prefix` past an item where results follow one from the other."""
        return f"prefix = {self.joins}{each}(prefix, {item});"

    def scanned(self, items: tuple[str, ...], k: int, each: str = "") -> str:
        """The state whose result item k is, in C, from `prefix` and the items: exclusive ones leave it out."""
        if self.serial:
            return f"within{each}(prefix, {items[k]})" if self.looks_within else "prefix"
        if not self.spec.exclusive:
            return f"combine{each}(prefix, {items[k]})"
        return f"combine{each}(prefix, {items[k - 1]})" if k else "prefix"

    def sum_of(self, k: int) -> str:
        """The total that result k is behind, in C, where results follow from totals; empty: nothing."""
        before = k - 1 if self.spec.exclusive else k
        return f"sum{before}" if before >= 0 else ""

    # ---- what a line begins and ends with

    @property
    def carries(self) -> bool:
        """Whether results are carried into lines or out of them."""
        return self.spec.initial or self.spec.final

    def after(self, begin: str, state: str) -> str:
        """A state behind what its line begins with, in C."""
        return f"combine({begin}, {state})" if self.spec.initial else state

    def begin(self, line: str, there: str = "") -> str:
        """What a line begins with, in C. there: whether it exists, where that is not sure."""
        if not self.spec.initial:
            return "identity()"
        line = f"({line})" if " " in line else line
        begun = f"begin_line(carry_in + {line} * carry_in_step)"
        return f"{there} ? {begun} : identity()" if there else begun
