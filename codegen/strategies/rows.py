"""What plans for rows have: how a row that begins anywhere is read and written by whole accesses."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Plan, ceil_div
from scanops.codegen.strategies.operands import Operand

__all__ = [
    "ACCESS_BYTES",
    "LINE_BYTES",
    "RowPlan",
    "begins_anywhere",
    "boundary_of",
    "gathers",
    "reads_wide",
    "row_of",
    "vector_width",
]

BANK_ACCESSES = 8  # of 16 bytes, that shared memory serves at once
LINE_BYTES = 128  # of memory that is fetched together


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan(Plan):
    """A plan for lines whose items are neighbours in the output: accesses are vectors along the line."""

    vectors: int  # accesses a thread makes in a tile
    boundary: int = 0  # items; rows begin anywhere and accesses keep to multiples of this, 0: rows begin on accesses

    @property
    def shifted(self) -> bool:
        """Whether a row may begin and end inside an access."""
        return self.boundary > 0

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.shifted or self.tile * self.tiles != self.spec.length

    @property
    def tiles_of_length(self) -> str:
        """The tiles of a row of ``length``, in C, wherever it begins."""
        return f"(int)((length + {self.tile + max(0, self.boundary - 1) - 1}{self.wide}) / {self.tile})"

    @property
    def accesses_of_length(self) -> str:
        """Likewise its accesses."""
        return f"(int)((length + {self.items + max(0, self.boundary - 1) - 1}{self.wide}) / {self.items})"

    @property
    def unsigned(self) -> str:
        """The unsigned type as wide as a position: one comparison with it tells both ends of a row."""
        return "unsigned" if self.position == "int" else "unsigned long long"

    @property
    def whole_condition(self) -> str:
        """Whether all items of the access at ``position`` lie in the row, in C."""
        return self.whole(self.items)

    def whole(self, items: int) -> str:
        """Whether so many items from ``position`` on lie in the row, in C."""
        if self.spec.length is None:
            return f"position >= 0 && position <= length - {items}"
        last = self.spec.length - items
        return f"({self.unsigned})position <= {last}" if last >= 0 else "false"

    @property
    def lead(self) -> str:
        """Items from some boundary to the first of the row, in C; negative for a row that is walked from its end."""
        row = f"(line + 1) * {self.length}" if self.spec.reverse else f"line * {self.length}"
        row += "" if self.spec.aligned else " + (long long)((size_t)output / sizeof(Output))"
        return f"-({row})" if self.spec.reverse else f"({row})"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, in the order of the kernel's parameters."""
        return tuple(self._operand(source) for source in self.sources)

    @property
    def extends(self) -> bool:
        """Whether the total of a thread's items is tried by shorter steps first. In columns that saves nothing."""
        dear = self.segmented or fragments(self.spec).calls
        return bool(self.spec.operator.extend) and self.items > 1 and not dear

    @property
    def may_run(self) -> bool:
        """Whether it is worth while that a thread's items follow one another, as joining states is dear; and rows begin
        on accesses."""
        plain = not (self.shifted or self.realigns or self.segmented or self.takes_place or self.spec.takes_length)
        return bool(self.selected) and plain and self.vectors > 1 and not self.spec.operator.own

    @property
    def run_turns(self) -> int:
        """Accesses that would be in the same banks, if lanes that take runs of them met none of each other's."""
        return gcd(self.vectors, BANK_ACCESSES)

    @property
    def turns_runs(self) -> bool:
        """Whether there are any."""
        return self.run_turns > 1

    @property
    def accesses_scanned(self) -> tuple[str, ...]:
        """The accesses that a thread scans at once, in C."""
        return tuple(f"s{v}" for v in range(self.vectors)) if self.in_runs else ("s",)

    @property
    def run_places(self) -> tuple[str, ...]:
        """Where their results go, in C, in scan order."""
        return tuple(place for v in range(self.vectors) for place in self.result_places(self.scan_order, f"y{v}"))

    def _operand(self, source: Source) -> Operand:
        layout = source.layout
        realigned = begins_anywhere(self.spec, layout) and self.items > 1
        return Operand(
            name=source.name,
            type=source.type,
            pointer=source.pointer,
            bytes=source.dtype.bytes,
            pieces=source.dtype.parts,
            scan_order=self.scan_order,
            whole=realigned or (layout == "dense" and self.spec.aligned),
            realigned=realigned,
            placed=None if layout == "dense" else "rows" if layout == "rows" else "strided",
            copies_async=self.target.copies_async,
        )

    @property
    def realigns(self) -> bool:
        """Whether accesses of some operand keep to its own boundaries."""
        return any(operand.realigned for operand in self.operands)

    def words(self, name: str) -> int:
        """32-bit words that an access of an operand is taken apart into, 0: it never is."""
        packed = (operand for operand in self.operands if operand.realigned and operand.packed > 1)
        return next((len(operand.parts) for operand in packed if operand.name == name), 0)

    @property
    def reads_on(self) -> bool:
        """Whether the last lane's places may reach into an access behind those of all lanes."""
        return True

    def reads(self, operand: Operand) -> tuple[tuple[int, int | str], ...]:
        """(number, offset) of a thread's accesses of an operand, by rising address: where items are shifted, the first
        lane reads on for the last one."""
        if not (operand.realigned and self.reads_on):
            return self.accesses
        further = (self.vectors, self.offset_of(self.vectors))
        return (further, *self.accesses) if self.spec.reverse else (*self.accesses, further)

    def reads_if(self, operand: Operand, number: int) -> str:
        """Whether a thread makes this access of an operand whose items are shifted, in C; empty: it always does."""
        return f"lane == 0 && {operand.skew} > 0" if number == self.vectors else ""

    @property
    def exchanges(self) -> bool:
        """Whether lanes hand accesses to one another, or a row is one thread's."""
        return True

    def reads_after(self, number: int) -> bool:
        """Whether a thread makes an access of an operand whose items are shifted after the one of this number."""
        return number + 1 < self.vectors or self.reads_on

    @property
    def next_lanes(self) -> str:
        """The number of lanes among which accesses go to the one before, as a further argument."""
        return ""

    @property
    def row_a_warp(self) -> bool:
        """Whether all lanes of a warp have the same row."""
        return True

    @property
    def narrows_segments(self) -> bool:
        """Whether a warp looks for the segments in its part of a tile once. 256 x 1M, segments of 100: 0.24 of a copy
        where each thread looks for those of its accesses (H200)."""
        return self.spec.by_offsets and self.row_a_warp

    @property
    def reach(self) -> str:
        """Where a warp's part of a tile begins and ends in memory, in C: two arguments."""
        begin = f"(first - lane * {self.items})"
        covered = self.stripe * self.vectors
        if self.spec.reverse:
            return f"{self.length} - {begin} - {covered}LL, {self.length} - {begin}"
        return f"{begin}, {begin} + {covered}LL"

    @property
    def stripe(self) -> int:
        """Items that one access of all the lanes of a row covers."""
        return self.width * self.items

    @property
    def tile(self) -> int:
        """Items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def offsets(self) -> tuple[int | str, ...]:
        """Where a thread's vectors lie after its first one, in items: numbers, or C."""
        return tuple(self.offset_of(number) for number in range(self.vectors))

    def offset_of(self, number: int) -> int | str:
        """Where the vector of this number lies after a thread's first one."""
        return self.stripe * number

    @property
    def accesses(self) -> tuple[tuple[int, int | str], ...]:
        """(number, offset) of a thread's vectors, by rising address: 32768 fp32 in reverse reach 0.87 of a copy when
        loads fall through memory, 0.98 is the forward figure (H200)."""
        numbered = tuple(enumerate(self.offsets))
        return numbered[::-1] if self.spec.reverse else numbered

    @property
    def first_index(self) -> str:
        """The index in memory of the first vector of the thread whose scan position is ``first``."""
        return self.index_of("first", self.items)

    def index_of(self, position: str, items: int) -> str:
        """The index in memory of an access of so many items at a scan position, in C."""
        last = f"length - {items}" if self.spec.length is None else self.spec.length - items
        return f"({last} - {position})" if self.spec.reverse else position

    @property
    def warp_items(self) -> str:
        """Items from a warp's first to those of the next warp, in C."""
        return str(self.stripe * self.vectors)

    @property
    def warp_count(self) -> str:
        """Warps of a block, in C."""
        return str(self.warps)

    @property
    def last_lane(self) -> str:
        """The lane of a warp that has the last access of this lane's row, in C; empty: the same one for all."""
        return ""

    @property
    def end(self) -> str:
        """Where the items end that a thread may touch, in C."""
        return self.length

    @property
    def end_passed(self) -> str:
        """The same as a further argument of functions of an access."""
        return f", {self.end}" if self.spec.takes_length else ""

    @property
    def narrow(self) -> str:
        """A cast that keeps a division cheap: of a tile's number, by tiles that only the launch knows."""
        return "(int)" if self.spec.takes_length else ""

    def used(self, number: int) -> str:
        """Whether a warp has the stripe of this number, in C; empty: it always has."""
        return ""


def vector_width(spec: ScanSpec) -> int:
    """Items a thread reads with one access: all operands in at most 16 bytes each, every row on the same boundary."""
    width = spec.access_items if spec.aligned else 1
    while not spec.divides(width):
        width //= 2
    return width


def begins_anywhere(spec: ScanSpec, layout: str) -> bool:
    """Whether items of a row are neighbours in memory that may begin off the boundary of an access."""
    return layout == "rows" or (layout == "dense" and not spec.aligned)


def gathers(spec: ScanSpec) -> bool:
    """Whether items of some operand lie apart, and are read one by one."""
    return not spec.layouts <= {"dense", "rows"}


def boundary_of(spec: ScanSpec, items: int, to: int = LINE_BYTES) -> int:
    """Items whose multiples accesses keep to, ``to`` bytes of output; 0 when every row begins on an access already."""
    if spec.aligned and spec.divides(items):
        return 0
    # Not more than a warp accesses at once: only a thread's first access begins ahead of the row.
    return max(items, min(to // max(spec.result_bytes), WARP * items))


def row_of(spec: ScanSpec, items: int = 0) -> tuple[int, int, int]:
    """(items an access, boundary in items, accesses of a row from the boundary ahead of it to its end)."""
    items = items or spec.access_items
    boundary = boundary_of(spec, items)
    return items, boundary, ceil_div(spec.capacity + max(0, boundary - 1), items)


def reads_wide(spec: ScanSpec, items: int) -> bool:
    """Whether an access of so many items takes the full 16 bytes, of the input or of the output."""
    return items * max(spec.input.bytes, *spec.result_bytes) == ACCESS_BYTES
