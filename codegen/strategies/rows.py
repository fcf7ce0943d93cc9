"""Properties of plans for rows: how misaligned rows are read and written by full vectorised accesses."""

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

BANK_ACCESSES = 8  # lanes with 16-byte accesses that shared memory serves at once
LINE_BYTES = 128  # bytes of a memory sector group that is fetched together


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan(Plan):
    """A plan for lines that are contiguous in the output: accesses are vectors along the line."""

    vectors: int  # accesses of a thread per tile
    boundary: int = 0  # items; misaligned rows are accessed at multiples of this, 0: rows start on accesses

    @property
    def shifted(self) -> bool:
        """Whether a row may start and end inside an access."""
        return self.boundary > 0

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.shifted or self.tile * self.tiles != self.spec.length

    @property
    def tiles_of_length(self) -> str:
        """Number of tiles in a row of ``length`` items, in C, for any alignment."""
        return f"(int)((length + {self.tile + max(0, self.boundary - 1) - 1}{self.wide}) / {self.tile})"

    @property
    def accesses_of_length(self) -> str:
        """Number of accesses in a row of ``length`` items, in C, for any alignment."""
        return f"(int)((length + {self.items + max(0, self.boundary - 1) - 1}{self.wide}) / {self.items})"

    @property
    def unsigned(self) -> str:
        """The unsigned type as wide as a position: one unsigned comparison checks both ends of a row."""
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
        """Items between an access boundary and the first item of the row, in C; negative for a reverse scan."""
        row = f"(line + 1) * {self.length}" if self.spec.reverse else f"line * {self.length}"
        row += "" if self.spec.aligned else " + (long long)((size_t)output / sizeof(Output))"
        return f"-({row})" if self.spec.reverse else f"({row})"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, in the order of the kernel's parameters."""
        return tuple(self._operand(source) for source in self.sources)

    @property
    def extends(self) -> bool:
        """Whether a thread's total is first computed with fewer instructions. In columns that saves nothing."""
        dear = self.segmented or fragments(self.spec).calls
        return bool(self.spec.operator.extend) and self.items > 1 and not dear

    @property
    def may_run(self) -> bool:
        """Whether consecutive items per thread pay off: combine is expensive, and rows start on accesses."""
        plain = not (self.shifted or self.realigns or self.segmented or self.takes_place or self.spec.takes_length)
        return bool(self.selected) and plain and self.vectors > 1 and not self.spec.operator.own

    @property
    def run_turns(self) -> int:
        """Number of bank conflicts per access if lanes read runs of accesses without a swizzle."""
        return gcd(self.vectors, BANK_ACCESSES)

    @property
    def turns_runs(self) -> bool:
        """Whether runs need a swizzle to avoid bank conflicts."""
        return self.run_turns > 1

    @property
    def accesses_scanned(self) -> tuple[str, ...]:
        """The accesses that a thread scans at once, in C."""
        return tuple(f"s{v}" for v in range(self.vectors)) if self.in_runs else ("s",)

    @property
    def run_places(self) -> tuple[str, ...]:
        """Destinations of the results of the accesses that a thread scans at once, in C, in scan order."""
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
        """Whether some operand is aligned differently from the output."""
        return any(operand.realigned for operand in self.operands)

    def words(self, name: str) -> int:
        """Number of 32-bit words that an access of an operand is split into; 0: it is not split."""
        packed = (operand for operand in self.operands if operand.realigned and operand.packed > 1)
        return next((len(operand.parts) for operand in packed if operand.name == name), 0)

    @property
    def reads_on(self) -> bool:
        """Whether the last lane's items may extend into an access after those of all lanes."""
        return True

    def reads(self, operand: Operand) -> tuple[tuple[int, int | str], ...]:
        """(number, offset) of a thread's accesses of an operand, by rising address.

        Where items are shifted, the first lane also reads the access after the last lane's.
        """
        if not (operand.realigned and self.reads_on):
            return self.accesses
        further = (self.vectors, self.offset_of(self.vectors))
        return (further, *self.accesses) if self.spec.reverse else (*self.accesses, further)

    def reads_if(self, operand: Operand, number: int) -> str:
        """C condition for a thread to make this access of an operand whose items are shifted; empty: always."""
        return f"lane == 0 && {operand.skew} > 0" if number == self.vectors else ""

    @property
    def exchanges(self) -> bool:
        """Whether lanes pass accesses to one another; otherwise one thread holds the row."""
        return True

    def reads_after(self, number: int) -> bool:
        """C condition for a thread to make the access after the one of this number, where items are shifted."""
        return number + 1 < self.vectors or self.reads_on

    @property
    def next_lanes(self) -> str:
        """Number of lanes among which accesses move to the previous lane, as an additional argument."""
        return ""

    @property
    def row_a_warp(self) -> bool:
        """Whether all lanes of a warp scan the same row."""
        return True

    @property
    def narrows_segments(self) -> bool:
        """Whether a warp first narrows the offsets to its part of a tile.

        256 x 1M, segments of 100: 0.24 of a copy where each thread searches for each of its accesses (H200).
        """
        return self.spec.by_offsets and self.row_a_warp

    @property
    def reach(self) -> str:
        """Bounds of a warp's part of a tile in memory, in C: two arguments."""
        begin = f"(first - lane * {self.items})"
        covered = self.stripe * self.vectors
        if self.spec.reverse:
            return f"{self.length} - {begin} - {covered}LL, {self.length} - {begin}"
        return f"{begin}, {begin} + {covered}LL"

    @property
    def stripe(self) -> int:
        """Number of items in one access of all lanes of a row."""
        return self.width * self.items

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def offsets(self) -> tuple[int | str, ...]:
        """Offsets of a thread's accesses from its first one, in items: numbers, or C."""
        return tuple(self.offset_of(number) for number in range(self.vectors))

    def offset_of(self, number: int) -> int | str:
        """Offset of the access of this number from a thread's first one, in items."""
        return self.stripe * number

    @property
    def accesses(self) -> tuple[tuple[int, int | str], ...]:
        """(number, offset) of a thread's accesses, by rising address: 32768 fp32 in reverse reach 0.87 of a copy when
        loads descend through memory, and 0.98 this way (H200).
        """
        numbered = tuple(enumerate(self.offsets))
        return numbered[::-1] if self.spec.reverse else numbered

    @property
    def first_index(self) -> str:
        """Index in memory of the first access of the thread whose scan position is ``first``."""
        return self.index_of("first", self.items)

    def index_of(self, position: str, items: int) -> str:
        """Index in memory of an access of so many items at a scan position, in C."""
        last = f"length - {items}" if self.spec.length is None else self.spec.length - items
        return f"({last} - {position})" if self.spec.reverse else position

    @property
    def warp_items(self) -> str:
        """Items from a warp's first to the next warp's first, in C."""
        return str(self.stripe * self.vectors)

    @property
    def warp_count(self) -> str:
        """Warps per block, in C."""
        return str(self.warps)

    @property
    def last_lane(self) -> str:
        """The lane that holds the last access of this lane's row, in C; empty: the same one for all lanes."""
        return ""

    @property
    def end(self) -> str:
        """End of the items that a thread may access, in C."""
        return self.length

    @property
    def end_passed(self) -> str:
        """That end as an additional argument of functions of an access."""
        return f", {self.end}" if self.spec.takes_length else ""

    @property
    def narrow(self) -> str:
        """A cast that makes the division of a tile index cheaper, where only the launch knows the divisor."""
        return "(int)" if self.spec.takes_length else ""

    def used(self, number: int) -> str:
        """C condition that a warp holds the stripe of this number; empty: always."""
        return ""


def vector_width(spec: ScanSpec) -> int:
    """Items per access of a thread: at most 16 bytes for every operand, all rows on the same boundary."""
    width = spec.access_items if spec.aligned else 1
    while not spec.divides(width):
        width //= 2
    return width


def begins_anywhere(spec: ScanSpec, layout: str) -> bool:
    """Whether items of a row are contiguous but may start off the boundary of an access."""
    return layout == "rows" or (layout == "dense" and not spec.aligned)


def gathers(spec: ScanSpec) -> bool:
    """Whether items of some operand are strided, and read one by one."""
    return not spec.layouts <= {"dense", "rows"}


def boundary_of(spec: ScanSpec, items: int, to: int = LINE_BYTES) -> int:
    """Number of items whose multiples accesses are aligned to: ``to`` bytes of output; 0 if every row is aligned."""
    if spec.aligned and spec.divides(items):
        return 0
    # At most what a warp accesses at once: only a thread's first access may start before the row.
    return max(items, min(to // max(spec.result_bytes), WARP * items))


def row_of(spec: ScanSpec, items: int = 0) -> tuple[int, int, int]:
    """(items per access, boundary in items, accesses of a row from the boundary before it to its end)."""
    items = items or spec.access_items
    boundary = boundary_of(spec, items)
    return items, boundary, ceil_div(spec.capacity + max(0, boundary - 1), items)


def reads_wide(spec: ScanSpec, items: int) -> bool:
    """Whether an access of so many items takes 16 bytes of the input or of the output."""
    return items * max(spec.input.bytes, *spec.result_bytes) == ACCESS_BYTES
