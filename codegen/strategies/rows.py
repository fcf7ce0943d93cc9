"""Properties of plans for rows: how misaligned rows are read and written by full vectorised accesses."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Constant, Plan, ceil_div
from scanops.codegen.strategies.before import Before
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
    """A plan for lines that are contiguous in the output: accesses are vectors along the line.

    One access of all lanes of a row is a stripe of it. A thread makes ``vectors`` accesses, one to each stripe.
    """

    vectors: int  # accesses of a thread per tile
    boundary: int = 0  # items; misaligned rows are accessed at multiples of this, 0: rows start on accesses

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the kernel's text names, in the order in which it declares them."""
        runs, stripe = 1 if self.in_runs else self.vectors, self.width * self.items
        return (
            Constant("kReverse", self.spec.reverse, "scan from the last item to the first"),
            Constant("kThreads", self.threads, "of a block"),
            Constant("kWarps", self.warps, "of a block"),
            Constant("kLanes", self.width, "neighbouring threads of a warp that scan a row"),
            Constant("kRows", 1 if self.spans_block else self.threads // self.width, "of a block"),
            Constant("kItems", self.items, "of an access"),
            Constant("kVectors", self.vectors, "accesses of a thread"),
            Constant("kRun", self.items * self.vectors // runs, "consecutive items that a thread scans serially"),
            Constant("kRuns", runs, "of a thread"),
            Constant("kOutItems", self.out_items, "of a store"),
            Constant("kTurns", gcd(self.vectors, BANK_ACCESSES), "accesses of a run after which banks repeat"),
            *([] if self.chooses_lanes else [Constant("stripe", stripe, "items of one access of all lanes of a row")]),
            Constant("kWarpItems", stripe * self.vectors, "of a warp in a tile"),
            Constant("kTile", self.tile, "items of a tile"),
            Constant("kBoundary", self.boundary, "items; accesses of misaligned rows stay on multiples of this"),
            Constant("kLead", max(0, self.boundary - 1), "items by which accesses begin before a row, at most"),
            *([] if self.spec.takes_length else [Constant("tiles_a_line", self.tiles, "of a row")]),
        )

    def grid(self, lines: int, multiprocessors: int, neighbours: int | None = None) -> int:
        """Return the number of blocks of a launch for so many lines, as the launcher computes it."""
        return lines if self.spans_block else ceil_div(lines, self.threads // self.width)

    @property
    def shifted(self) -> bool:
        """Whether a row may start and end inside an access."""
        return self.boundary > 0

    @property
    def overlaps(self) -> bool:
        """Whether accesses of some operand overlap the ends of a row."""
        return self.shifted or self.realigns

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.shifted or self.tile * self.tiles != self.spec.length

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, in the order of the kernel's parameters."""
        return tuple(self._operand(source) for source in self.sources)

    def _operand(self, source: Source) -> Operand:
        layout = source.layout
        realigned = begins_anywhere(self.spec, layout) and self.items > 1
        return Operand(
            name=source.name,
            type=source.type,
            pointer=source.pointer,
            bytes=source.dtype.bytes,
            items=self.items,
            whole=realigned or (layout == "dense" and self.spec.aligned),
            realigned=realigned,
            placed=None if layout == "dense" else "rows" if layout == "rows" else "strided",
            copies_async=self.target.copies_async,
        )

    @property
    def realigns(self) -> bool:
        """Whether some operand is aligned differently from the output."""
        return any(operand.realigned for operand in self.operands)

    @property
    def reads_on(self) -> bool:
        """Whether the last lane's items may extend into an access after those of all lanes."""
        return True

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
    def crosses_lanes(self) -> bool:
        """Whether several lanes scan a row."""
        return True

    @property
    def spans_block(self) -> bool:
        """Whether all warps of a block scan the same row."""
        return True

    @property
    def chooses_lanes(self) -> bool:
        """Whether the launcher derives the lanes per row from the length."""
        return False

    @property
    def chooses_stripes(self) -> bool:
        """Whether the launcher derives the stripes of a warp from the length."""
        return False

    @property
    def marks_segments(self) -> bool:
        """Whether a warp marks the segments that begin among its items of a tile, once for all accesses.

        256 x 1M, segments of 100: 0.24 of a copy where each thread searches for each of its accesses (H200).
        """
        return self.spec.by_offsets and self.spans_block

    @property
    def before(self) -> Before | None:
        """The forward scan that a gradient kernel recomputes; None where its results were saved."""
        return None


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
