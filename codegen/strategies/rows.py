"""Plans for rows: how misaligned rows are read and written by full vectorised accesses, and what registers hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from scanops.codegen.dtypes import late_field, set_derived
from scanops.codegen.fragments import fragments
from scanops.codegen.lines import LINE_BYTES
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Constant, Plan, ceil_div, is_power_of_two, require
from scanops.codegen.strategies.forward_prefix import ForwardPrefix, forward_prefix_of

BANK_ACCESSES = 8  # lanes with 16-byte accesses that shared memory serves at once

# Registers of a thread, estimated closely enough that ptxas need not spill.
REGISTER_BYTES = 384  # of the 512 a thread has with 512 threads and one block; the rest is addresses and temporaries
REGISTERS = 65536  # of a multiprocessor, on every target
SPARE_REGISTERS = 24  # a thread's addresses, guards and temporaries
MASK_REGISTERS = 8  # the address and guards of a mask, a gate or flags
GATHERED_REGISTERS = 20  # addresses and guards of items that are read one by one
SHIFTED_MASK_REGISTERS = 16  # guards of items at the ends of a row
STRIDED_BYTES = 64  # of them for pointers and strides of operands that are not dense
LENGTH_BYTES, NARROW_LENGTH_BYTES = 32, 96  # for a length that is an argument, and values derived from it


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan(Plan):
    """A plan for lines that are contiguous in the output: accesses are vectors along the line.

    One access of all lanes of a row is a stripe of it. A thread makes ``vectors`` accesses, one to each stripe.
    """

    copies_shifted: ClassVar[bool] = False  # copies to shared memory bring items that are read further on
    spans_block: ClassVar[bool] = True  # all warps of a block scan the same row
    splits_stores: ClassVar[bool] = False  # the results of one load may take several stores

    vectors: int  # accesses of a thread per tile
    boundary: int = 0  # items; misaligned rows are accessed at multiples of this, 0: rows start on accesses
    # The operands whose rows are contiguous, but aligned differently from the output's: accesses to them are aligned to
    # boundaries of their own, and items are shifted into place. Where ``copies_shifted``, so are those read further on.
    shifted: tuple[Source, ...] = late_field()
    forward_prefix: ForwardPrefix | None = (
        late_field()
    )  # the forward scan that a gradient recomputes; None where its results were saved

    def __post_init__(self) -> None:
        """Check that accesses are aligned: misaligned rows keep to a boundary of at most one line of memory."""
        Plan.__post_init__(self)
        smallest = min(*(source.dtype.bytes for source in self.spec.sources), *self.spec.result_bytes)
        aligned = self.boundary % self.items == 0 and self.boundary * smallest <= LINE_BYTES
        sizes = [*(source.dtype.bytes for source in self.spec.streams)]
        sizes += [] if self.splits_stores else self.spec.result_bytes
        whole = self.items == 1 or self.boundary > 0 or (self.spec.aligned and self.spec.divides(self.items))
        require(self, is_power_of_two(self.items), "items of an access that are a power of two")
        require(self, self.items * max(sizes) <= ACCESS_BYTES, f"accesses of at most {ACCESS_BYTES} bytes")
        require(self, aligned, f"a boundary of whole accesses, at most {LINE_BYTES} bytes")
        require(self, self.boundary <= WARP * self.items, "a boundary that the first access of a warp covers")
        require(self, whole, "a boundary for rows that are not a whole number of aligned accesses")
        contiguous = (each for each in self.spec.streams if is_shifted(self.spec, each, self.copies_shifted))
        set_derived(
            self,
            shifted=tuple(contiguous) if self.items > 1 else (),
            forward_prefix=forward_prefix_of(self.spec) if self.spec.recomputes else None,
        )

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the kernel's text names, in the order in which it declares them."""
        lanes = getattr(self, "lanes", WARP)  # a whole warp, unless rows share one
        out_items = min(self.items, ACCESS_BYTES // self.spec.out.bytes)
        return (
            Constant("kLanes", lanes, "neighbouring threads of a warp that scan a row"),
            Constant("kItemsPerLoad", self.items, "items per vector load"),
            Constant("kThreadLoads", self.vectors, "vector loads per thread"),
            Constant(
                "kThreadReads", self.vectors + self._reads_on, "vector loads per thread from rows of another alignment"
            ),
            Constant("kRunItems", self.run, "consecutive items that a thread scans serially"),
            Constant("kThreadRuns", 1 if self.in_runs else self.vectors, "runs per thread"),
            Constant("kItemsPerStore", out_items, "items per vector store"),
            Constant(
                "kBankPeriod",
                gcd(self.vectors, BANK_ACCESSES),
                "vector loads of a run after which shared memory banks repeat",
            ),
            Constant(
                "kStripeItems", lanes * self.items, "items that the lanes of a row load with one vector load each"
            ),
            Constant("kLaneBits", lanes.bit_length() - 1, "log2 of the lanes per row"),
            Constant("kStripes", self.vectors, "vector loads per lane of a warp"),
            Constant("kWarpItems", lanes * self.items * self.vectors, "items per warp and tile"),
            Constant("kTileItems", self.tile, "items per tile"),
            Constant(
                "kBoundaryItems", self.boundary, "items; vector loads of misaligned rows start at multiples of this"
            ),
            Constant("kMaxLead", self._lead, "most items by which a vector load starts before its row"),
            Constant("kChecksEnd", self.guarded and not self.boundary, "vector loads may lie past the end of a row"),
            Constant("kGuards", self.boundary > 0 or self.spec.complete, "vector loads may reach past a row's ends"),
            Constant("kInRuns", self.in_runs, "lanes exchange vectors, so that a thread's items are consecutive"),
            Constant("kExchangedBytes", self._exchanged_bytes, "bytes of the widest vector that lanes exchange"),
        )

    @property
    def _exchanged_bytes(self) -> int:
        return self.items * max(*(source.dtype.bytes for source in self.spec.streams), *self.spec.result_bytes)

    @property
    def visited(self) -> tuple[Source, ...]:
        """In a block that fills the registers, the input is realigned last: else its accesses live beside its items."""
        full = self.boundary and not hasattr(self, "stages") and getattr(self, "one_block_per_sm", False)
        return self.spec.streams[::-1] if full else self.spec.streams

    @property
    def least_blocks(self) -> int:
        """The resident blocks that launch bounds ask for; 0 for no such bound."""
        return int(getattr(self, "one_block_per_sm", False) or self.spec.views)

    @property
    def looks_early(self) -> bool:
        """Whether a linked block reads what it waits for while its row is loaded: that takes registers."""
        return False

    @property
    def _reads_on(self) -> bool:
        """Whether the last lane's items may extend into an access after those of all lanes."""
        return True

    @property
    def _lead(self) -> int:
        """Number of items by which the first tile may begin before its row."""
        return max(0, self.boundary - 1)

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        return self.threads * self.vectors * self.items

    @property
    def guarded(self) -> bool:
        """Whether some tile reaches past the end of its line."""
        return self.boundary > 0 or self.tile * self.tiles != self.spec.length

    @property
    def in_runs(self) -> bool:
        """Whether lanes exchange accesses, so that a thread's items are consecutive."""
        return False

    @property
    def run(self) -> int:
        """Number of consecutive items that a thread scans serially: of one access, or of all."""
        return self.items * self.vectors if self.in_runs else self.items


def vector_width(spec: ScanSpec) -> int:
    """Items per access of a thread: at most 16 bytes for every operand, all rows on the same boundary."""
    width = spec.access_items if spec.aligned else 1
    while not spec.divides(width):
        width //= 2
    return width


def begins_anywhere(spec: ScanSpec, layout: str) -> bool:
    """Whether items of a row are contiguous but may start off the boundary of an access."""
    return layout == "rows" or (layout == "dense" and (spec.complete or not spec.aligned))


def is_shifted(spec: ScanSpec, source: Source, copied: bool) -> bool:
    """Whether items of an operand are contiguous along a row, but off the output's accesses."""
    return begins_anywhere(spec, source.layout) or (copied and source.shift > 0 and source.layout == "dense")


def gathers(spec: ScanSpec) -> bool:
    """Whether items of some operand are strided, and read one by one."""
    return not spec.layouts <= {"dense", "rows", "line"}


def boundary_of(spec: ScanSpec, items: int, to: int = LINE_BYTES) -> int:
    """Number of items whose multiples accesses are aligned to: ``to`` bytes of output; 0 if every row is aligned."""
    if spec.aligned and spec.divides(items):
        return 0
    # At most what a warp accesses at once: only a thread's first access may start before the row.
    return max(items, min(to // max(spec.result_bytes), WARP * items))


def runs_pay(spec: ScanSpec, vectors: int = 2, twice: bool = False) -> bool:
    """Whether the accesses of a thread had better be consecutive: combine is expensive, or a fused scan's items are
    scanned ``twice``; and rows start on them.
    """
    items, operator = spec.access_items, spec.operator
    bound = vectors > 1 and (operator.append or spec.segments or operator.indices or (twice and spec.fusion))
    misaligned = boundary_of(spec, items) or (items > 1 and "rows" in spec.layouts)
    marked = spec.by_offsets and items * vectors > WARP  # more bits than two words are sure to hold
    own = operator.own and not (twice and spec.fusion)
    return bool(bound) and not (misaligned or marked or spec.takes_length or own or fragments(spec).calls)


def row_of(spec: ScanSpec, items: int = 0) -> tuple[int, int, int]:
    """(items per access, boundary in items, accesses of a row from the boundary before it to its end)."""
    items = items or spec.access_items
    boundary = boundary_of(spec, items)
    return items, boundary, ceil_div(spec.capacity + max(0, boundary - 1), items)


def reads_wide(spec: ScanSpec, items: int) -> bool:
    """Whether an access of so many items takes 16 bytes of the input or of the output."""
    return items * max(spec.input.bytes, *spec.result_bytes) == ACCESS_BYTES


def fills_registers(spec: ScanSpec, items: int, vectors: int, threads: int) -> bool:
    """Whether a block takes more than half of a multiprocessor's registers.

    ptxas must be told by launch bounds of one block, or it spills to make room for a second. For lighter blocks the
    bound does harm: ptxas then takes the registers of a third block, and 4097 fp32 falls from 0.91 to 0.75 of a copy
    (H200).
    """
    return 2 * threads * registers_of(spec, items, vectors) > REGISTERS


def registers_of(spec: ScanSpec, items: int, vectors: int) -> int:
    """Estimated registers of a thread for its part of a tile: states take the place of loaded items."""
    each = max(_load_bytes(spec, items), (items + 1) * fragments(spec).held_bytes)
    spare = SPARE_REGISTERS + (GATHERED_REGISTERS if gathers(spec) else 0)
    for source in spec.streams[1:]:
        if not begins_anywhere(spec, source.layout):  # otherwise it is read with the items of the input's access
            spare += MASK_REGISTERS + (SHIFTED_MASK_REGISTERS if boundary_of(spec, items) else 0)
    return vectors * each // 4 + spare


def vectors_in_registers(spec: ScanSpec, items: int) -> int:
    """Number of accesses whose items fit in registers as states, with one prefix each and a temporary one."""
    each = max(_load_bytes(spec, items), (items + 2) * fragments(spec).held_bytes)
    taken = STRIDED_BYTES if gathers(spec) else 0
    if spec.takes_length:
        taken += NARROW_LENGTH_BYTES if min(spec.input.bytes, spec.out.bytes) < 4 else LENGTH_BYTES
    return max(1, (REGISTER_BYTES - taken) // each)


def _load_bytes(spec: ScanSpec, items: int) -> int:
    """Register bytes that one access of every operand takes, in 4-byte registers."""
    return sum(max(4, items * source.dtype.bytes) for source in spec.streams)
