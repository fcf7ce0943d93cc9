"""Short rows of any length: a warp copies its rows to shared memory, scans them there, and copies them back.

Contiguous rows are one range of memory whatever their length, which the warp reads and writes by coalesced 16-byte
accesses. A lane that read a row of 7 items directly could only load them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.dtypes import late_field, set_derived
from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import (
    WARP,
    Constant,
    Launch,
    Plan,
    Result,
    ceil_div,
    count_of,
    is_power_of_two,
    require,
)
from scanops.codegen.strategies.rows import reads_wide, vector_width
from scanops.codegen.targets import Target

# Fractions of a copy are an H200's, of fp32 sums unless a dtype is named.
# Longest row in items, and in bytes of the wider type. 255, 383, 600: 0.99, 0.99, 1.00; by warp 0.98 each;
# bfloat16, 777: 0.89, by block 0.62, and 1024 off the boundary 0.998 and 0.44.
MAX_LENGTH, MAX_BYTES = 600, 2400
# Bytes that a warp reads and writes. 5 with 5120, 10240, 20480: 1.00, 1.00, 0.94; 511 with 4088, 8176: 0.99, 0.96;
# int32 rows of 31, which widen, with 1488, 2976: 0.58, 0.98.
WARP_BYTES = 5440
BOUNDARY_BYTES = 8320  # where that aligns its rows: fp16 rows of 255 have 1.00, and 0.97 with 4080
WARPS = 1  # per block. 7, 33, 100: 1.01, 1.00, 1.01 with one; 1.01, 1.00, 1.00 with two; 1.00, 0.99, 1.00 with four
WARPS_OF_FEW_BLOCKS, MANY_THREADS = 2, 2048  # where fewer threads are resident there are 16 or 24 blocks, not 32
KEPT_BYTES = 128  # of states per lane. 255, whose lanes otherwise read their items twice: 0.99, not 0.97
# The same where the length is an argument and results do not overwrite items. 31, 257: 0.91 with 5440.
APART_BYTES = 4160
ANY_UNROLL = 4  # where the length is an argument
UNROLL = 16  # steps of a lane's loop along its row: 7 to 129 differ by less than 0.005 with 4 and with all
ISSUE_CYCLES = 4  # of an access besides its banks: fp16 rows of 127 have 1.00 with 17 in 8 lanes, 0.86 with 14 in 16
CLOSE = 1.1  # relative cost below which measurements do not differ
LEAST_ACCESS = 4  # bytes; bool rows of 64, which lanes of a warp would read 2 at a time: 0.96, not 0.89
BANKS, BANK_BYTES = 32, 4
STATIC_BYTES = 48 * 1024  # of declared shared memory per block: more has to be dynamic


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPlan(Plan):
    """A warp holds ``rows`` rows in shared memory; ``lanes`` neighbouring lanes scan a row, ``piece`` items each."""

    strategy: ClassVar[str] = "staged"
    template: ClassVar[str] = "staged_rows.cu.j2"

    rows: int  # rows per warp
    lanes: int  # threads per row, a power of two up to 32
    piece: int  # items of a row that a lane scans, a multiple of `items`
    unroll: int  # accesses of a lane in one step of its loop
    in_place: bool = late_field()  # results overwrite the items that they come from
    kept: bool = late_field()  # a lane keeps the states of its piece in registers while lanes exchange totals
    on_boundary: bool = late_field()  # a warp's rows start and end on a 16-byte boundary in every operand
    room: int = late_field()  # items of a warp's rows

    def __post_init__(self) -> None:
        """Check that lanes share rows evenly, and that the rows of a block fit in static shared memory."""
        Plan.__post_init__(self)
        spec, kept = self.spec, _keeps_states(self.spec, self.lanes, self.piece)
        on_boundary = not spec.takes_length and _on_boundary(spec, self.rows)
        room = _any_room(spec) if spec.length is None else self.rows * spec.length
        set_derived(self, in_place=_in_place(spec), kept=kept, on_boundary=on_boundary, room=room)
        require(self, is_power_of_two(self.lanes) and self.lanes <= WARP, "lanes that are a power of two up to 32")
        require(self, self.tiles == 1 and not self.spec.strided, "one tile of dense operands")
        require(self, self.rows * self.lanes % WARP == 0, "rows that are a multiple of those scanned at once")
        require(self, _width(spec) % self.items == 0, "rows that are a whole number of aligned accesses")
        require(self, self.piece % self.items == 0, "a piece of whole accesses")
        begin = self.piece < self.spec.capacity + self.items * self.lanes
        require(self, begin, "pieces that begin in the row")
        require(self, self.declared_bytes <= STATIC_BYTES, f"at most {STATIC_BYTES} bytes of shared memory")

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the kernel's text names, in the order in which it declares them."""
        turns = 1 if self.spec.takes_length else self.rows * self.lanes // WARP
        chosen = (
            Constant("kRows", self.rows, "rows per warp"),
            Constant("kLaneBits", self.lanes.bit_length() - 1, "log2 of the lanes per row"),
            Constant("kPieceItems", self.piece, "items per lane"),
        )
        return (
            Constant("kLanes", self.lanes, "neighbouring threads of a warp that scan a row"),
            Constant("kItemsPerLoad", self.items, "items per vector load"),
            Constant("kThreadLoads", self.run // self.items, "vector loads per run"),
            Constant("kRunItems", self.run, "consecutive items that a thread scans serially"),
            Constant("kItemsPerStore", self.items, "items per vector store"),
            Constant("kThreadRuns", self.piece // self.run, "runs in a lane's piece of a row"),
            Constant(
                "kUnroll", ceil_div(self.unroll * self.items, self.run), "runs that a lane processes per loop iteration"
            ),
            Constant("kUnrolledRows", turns, "rows that a lane processes per loop iteration"),
            Constant("kRoomItems", self.room, "items of a warp's rows in shared memory"),
            Constant(
                "kSlackBytes",
                0 if self.on_boundary else ACCESS_BYTES,
                "bytes by which rows may start after a 16-byte boundary",
            ),
            Constant("kKeepsItems", self.kept, "a lane keeps its piece in registers while lanes exchange totals"),
            Constant("kInitial", self.spec.initial, "rows have a carry-in"),
            Constant("kSerial", self.serial, "each result of a vector load is computed from the one before it"),
            *(() if self.spec.takes_length else chosen),
        )

    @property
    def staged(self) -> tuple[Source | Result, ...]:
        """The operands and outputs that have shared memory of their own."""
        return (*self.spec.sources[self.in_place :], *self.results[self.in_place :])

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a warp takes as many rows as it has room for."""
        chosen, width = ("rows", "lane_bits", "piece"), self.warps * self.rows
        return self._launch("lines", adjacent=0, width=width, chosen=chosen, room=self.room)

    @property
    def tile(self) -> int:
        """Number of items that the lanes of a row hold."""
        return self.lanes * self.piece

    @property
    def run(self) -> int:
        """Number of consecutive items that a lane scans serially: its piece if their combine is expensive.

        logcumsumexp of 127 fp32 items, access by access: 0.39.
        """
        fits = self.piece * fragments(self.spec).state_bytes <= KEPT_BYTES and not self.spec.takes_length
        return self.piece if fits and self.serial and not self.code.calls else self.items

    @property
    def declared_bytes(self) -> int:
        """Static shared memory of a block in bytes; misaligned rows need one access more."""
        sizes = _sizes(self.spec)
        if self.in_place:
            sizes.remove(self.spec.out.bytes)
        slack = 0 if self.on_boundary else ACCESS_BYTES
        accesses = sum(ceil_div(self.room * size + slack, ACCESS_BYTES) for size in sizes)
        return self.warps * accesses * ACCESS_BYTES


def fits(spec: ScanSpec) -> bool:
    """Whether rows are contiguous and short, and would waste lanes or accesses if lanes read them directly."""
    if spec.inner > 1 or spec.strided:
        return False
    width = _width(spec)
    whole = width == spec.access_items
    if spec.capacity * max(spec.input.bytes, *spec.result_bytes) > MAX_BYTES or (whole and spec.capacity > MAX_LENGTH):
        return False
    wide = reads_wide(spec, width) and width * spec.input.bytes >= LEAST_ACCESS
    accesses = spec.length // width if spec.length else 1
    return not (wide and (is_power_of_two(accesses) or accesses % WARP == 0))  # lanes would share them evenly


def plan(key: KernelKey) -> StagedPlan:
    """Plan as many rows per warp as saturate memory, and as few lanes per row as cost little.

    Where the length is an argument, the plan is for the longest row or the most rows; the launcher derives the numbers
    for a length.
    """
    spec, target = key.spec, key.architecture
    threads = WARP * (WARPS if target.threads >= MANY_THREADS else WARPS_OF_FEW_BLOCKS)
    if spec.takes_length:
        return plan_shape(
            spec, target, threads=threads, rows=1 << (_any_room(spec).bit_length() - 1), lanes=WARP, items=1
        )
    rows = _rows(spec)
    least = WARP // min(WARP, rows)
    choices = [n for n in (1, 2, 4, 8, 16, 32) if n == least or least < n <= spec.capacity]
    cycles = {lanes: _best_piece(spec, lanes, _width(spec))[0] for lanes in choices}
    lanes = next(lanes for lanes in choices if cycles[lanes] <= CLOSE * min(cycles.values()))
    return plan_shape(spec, target, threads=threads, rows=rows, lanes=lanes)


def plan_shape(spec: ScanSpec, target: Target, *, threads: int, rows: int, lanes: int, items: int = 0) -> StagedPlan:
    """Plan with a given shape."""
    items = items or _width(spec)
    together = f"{'rows' if spec.takes_length else count_of(rows, 'row')} of {count_of(spec.items_text, 'item')}"
    piece = ceil_div(_any_room(spec), WARP) | 1 if spec.takes_length else _best_piece(spec, lanes, items)[1]
    return StagedPlan(
        spec=spec,
        target=target,
        why=f"{together}, contiguous in memory: copied coalesced, scanned in shared memory",
        threads=threads,
        items=items,
        rows=rows,
        lanes=lanes,
        piece=piece,
        unroll=min(ANY_UNROLL if spec.takes_length else UNROLL, piece // items),
    )


def _best_piece(spec: ScanSpec, lanes: int, items: int) -> tuple[float, int]:
    """(cycles of a row, items that a lane scans): a little more than its share where that avoids bank conflicts.

    The last lane takes the rest.
    """
    share = ceil_div(ceil_div(spec.capacity, lanes), items)
    pieces = range(share * items, (share if lanes == 1 else 2 * share) * items + 1, items)
    return min((_cycles(spec, lanes, piece, items), piece) for piece in pieces)


def _cycles(spec: ScanSpec, lanes: int, piece: int, items: int) -> float:
    """Estimated cycles of a multiprocessor for the scan of a row: shared memory accesses plus instructions."""
    places = [divmod(lane, lanes) for lane in range(WARP)]
    first = [row * spec.capacity + min(part * piece, spec.capacity - items) for row, part in places]

    def shared(sizes: Iterable[int]) -> int:
        return sum(bank_cycles([index * size for index in first], items * size) for size in sizes)

    reads = shared(source.dtype.bytes for source in spec.sources) + ISSUE_CYCLES
    times = 1 if lanes == 1 or _keeps_states(spec, lanes, piece) else 2
    along = piece // items * (shared(spec.result_bytes) + times * reads)
    across = lanes.bit_length() * len(fragments(spec).parts) if lanes > 1 else 0
    return (along + across) * lanes / WARP


def bank_cycles(addresses: list[int], access: int) -> int:
    """Cycles for one access of so many bytes by each lane of a warp: a bank serves one word per cycle.

    Accesses of 8 and 16 bytes are served to 16 and 8 lanes at a time.
    """
    served = min(WARP, WARP * BANK_BYTES // access)
    total = 0
    for start in range(0, WARP, served):
        lanes = addresses[start : start + served]
        words = {(address + byte) // BANK_BYTES for address in lanes for byte in range(0, access, BANK_BYTES)}
        total += max(Counter(word % BANKS for word in words).values())
    return total


def _keeps_states(spec: ScanSpec, lanes: int, piece: int) -> bool:
    return lanes > 1 and piece * fragments(spec).state_bytes <= KEPT_BYTES


def _width(spec: ScanSpec) -> int:
    """Items of an access: of a complete scan, whose rows of items and of results begin apart, one."""
    return 1 if spec.complete else vector_width(spec)


def _in_place(spec: ScanSpec) -> bool:
    return spec.aligned and spec.input.storage == spec.out.storage and not spec.complete


def _rows(spec: ScanSpec) -> int:
    """Rows per warp: a power of two."""
    moved = spec.capacity * sum(_sizes(spec))
    rows = 1
    while 2 * rows * moved <= WARP_BYTES:
        rows *= 2
    more = next((n for n in (rows, 2 * rows, 4 * rows) if _on_boundary(spec, n)), rows)
    return more if more * moved <= BOUNDARY_BYTES else rows


def _any_room(spec: ScanSpec) -> int:
    """Items that a warp has room for when the length is an argument."""
    return max(spec.capacity, (WARP_BYTES if _in_place(spec) else APART_BYTES) // sum(_sizes(spec)))


def _on_boundary(spec: ScanSpec, rows: int) -> bool:
    lengths = {spec.capacity, spec.capacity - spec.complete}
    return spec.aligned and not any(rows * n * size % ACCESS_BYTES for n in lengths for size in _sizes(spec))


def _sizes(spec: ScanSpec) -> list[int]:
    """Bytes of an item of each operand that is read and each output that is written."""
    return [*(source.dtype.bytes for source in spec.sources), *spec.result_bytes]
