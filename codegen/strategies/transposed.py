"""Transposed: the input's unit stride is along another dimension than the output's; warps transpose tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.layouts import is_worth_transposing
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Constant, Launch, Plan, Result, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.base import is_power_of_two as _power

COPY_BYTES = (16, 8, 4)  # bytes that one cp.async can copy
MOST_ITEMS = 64  # of a thread in a tile: all unrolled
MOST_PIECES = 8  # 16-byte pieces of a lane's part of a line: the swizzle spreads these over the banks


class Slab(NamedTuple):
    """A warp's part of a tile of one operand or output, and how lanes move it between global and shared memory."""

    name: str  # of the kernel's parameter
    type: str  # of an item in C
    pointer: str  # C name of a thread's part
    bytes: int  # of an item
    order: Literal["Along", "Across"]  # contiguous are items of a line, or those of neighbouring lines
    access: int  # items that a lane moves at once
    has_own_memory: bool  # it does not overwrite that of the input


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedPlan(Plan):
    """A block scans neighbouring lines tile by tile; a lane scans ``items`` positions of ``vector`` lines.

    Copies bring a warp's part of a tile into shared memory in the layout of global memory. Where items of a line are
    contiguous there, lanes read them as pieces; results along lines are stored the same way.
    """

    strategy: ClassVar[str] = "transposed"
    template: ClassVar[str] = "transposed.cu.j2"
    lanes: ClassVar[int] = WARP  # threads side by side across the lines

    vector: int  # adjacent lines per lane
    stages: int  # stages of the ring in shared memory, most of them in flight
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds

    def __post_init__(self) -> None:
        """Check that lanes divide a tile into whole accesses, and that the ring fits."""
        Plan.__post_init__(self)
        require(self, _power(self.items) and _power(self.vector), "powers of two of items and lines")
        require(self, self.vector * self.items <= MOST_ITEMS, f"at most {MOST_ITEMS} items a thread")
        widest = max(slab.bytes for slab in (*self.slabs, *self.result_slabs) if slab.order == "Along")
        pieces = ceil_div(self.items * widest, ACCESS_BYTES)
        require(self, pieces <= MOST_PIECES, f"at most {MOST_PIECES} pieces an access")
        require(self, 1 <= self.stages <= self.tiles, "no more stages than tiles")
        fits = self.shared_bytes <= self.target.block_shared_bytes
        require(self, fits, "shared memory that a block of the target has")

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names; numbers that follow from them are constants of the text itself."""
        whole = self.vector == 1 or self.to_rows or (self.spec.aligned and self.spec.inner % self.vector == 0)
        return (
            Constant("kToRows", self.to_rows, "results are contiguous along a line, else across lines"),
            Constant("kInner", self.spec.inner, "lines side by side in the output"),
            Constant("kBlocksPerSm", self.blocks, "least resident blocks per multiprocessor"),
            Constant("kRunItems", self.items, "positions per thread and tile"),
            Constant("kThreadColumns", self.vector, "adjacent lines per thread"),
            Constant("kLanes", self.lanes, "threads side by side across the lines"),
            Constant("kPartialColumns", True, "the last column tile may have fewer lines"),
            Constant("kStridedColumns", not whole, "a thread's lines are kLanes apart, and stored one by one"),
            Constant("kRealigns", False, "lines start between the boundaries of vector loads"),
            Constant("kExchangesRows", True, "lanes exchange items in shared memory"),
            Constant("kLoops", self.tiles > 1, "a line has several tiles"),
            Constant("kStages", self.stages, "tiles in the ring in shared memory"),
        )

    @property
    def launch(self) -> Launch:
        """What a launch follows from: blocks take the neighbours of a dimension that the host chooses."""
        return self._launch("neighbours", adjacent=0, width=self.lines)

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        return self.warps * self.items

    @property
    def lines(self) -> int:
        """Number of lines per block."""
        return WARP * self.vector

    @property
    def to_rows(self) -> bool:
        """Whether results are contiguous along a line; otherwise those of neighbouring lines are."""
        return self.spec.inner == 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: the ring."""
        return self.threads * self.vector * self.items * _item_bytes(self.spec, self.stages)

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """The slabs of the operands that are read."""
        return tuple(
            # Rows of a larger tensor may be misaligned.
            self._slab(source, source.dtype.bytes, along(self.spec, source), source.layout != "rows")
            for source in self.spec.sources
        )

    def layout_of(self, source: Source) -> str:
        """Arguments of OperandLayout: how an operand lies in memory, and how lanes copy it."""
        slab = self.slabs[self.spec.sources.index(source)]
        order = " | kAlongLine" if slab.order == "Along" else ""
        flags, rest = Plan.layout_of(self, source).split(",", 1)
        return f"{flags}{order},{rest}, {slab.access}"

    @property
    def result_slabs(self) -> tuple[Slab, ...]:
        """The slabs of the outputs. Those without memory of their own overwrite the input's."""
        pairs = zip(self.results, self.spec.result_bytes, strict=True)
        first = self.to_rows and not _overwrites(self.spec)
        return tuple(
            self._slab(out, size, self.to_rows, own=self.to_rows if at else first)
            for at, (out, size) in enumerate(pairs)
        )

    def _slab(self, item: Source | Result, size: int, along: bool, aligned: bool = True, own: bool = True) -> Slab:
        """Return a slab of items of ``size`` bytes, accessed as widely as copies, runs and alignment allow."""
        run, spec = self.items if along else self.lines, self.spec
        sizes = [wide // size for wide in COPY_BYTES if size <= wide <= run * size]
        fitting = (
            items
            for items in sizes
            if aligned
            and spec.aligned
            and WARP * items <= self.lines * self.items  # lanes stay inside the slab
            and (spec.divides(items) if along else spec.inner == 1 or spec.inner % items == 0)
        )
        return Slab(
            name=item.name,
            type=item.type,
            pointer=item.pointer,
            bytes=size,
            order="Along" if along else "Across",
            access=next(fitting, 1),
            has_own_memory=own,
        )


# H200, estimated from columns and rows: few threads with many items, 16 KB per tile, two tiles in flight.
WARPS, RESIDENT = 8, 512  # 256 x 1024 x 1024, fp32: 0.95, with 4 warps 0.91; threads that registers are promised for
SMALL_WARPS, SMALL_RESIDENT = 4, 384  # where items of less than 4 bytes take more registers
STAGES = 3
RUN_BYTES = 128  # of a line, by a warp
STATE_BYTES = 256  # of states a thread
DECLARED_BYTES = 4096  # of shared memory, at most, beside the ring


def fits(spec: ScanSpec) -> bool:
    """Whether the input is transposed, and every other operand as well or as the output."""
    if spec.input_layout != "transposed" or spec.looks_ahead:
        return False
    others = {source.layout for source in spec.sources[1:]}
    if others & {"strided", "line"} or ("rows" in others and spec.inner > 1):
        return False  # gathered with the input
    line_bytes = (spec.input if spec.inner > 1 else spec.out).bytes * spec.capacity
    return is_worth_transposing(line_bytes, spec.out.bytes * spec.inner if spec.inner > 1 else line_bytes)


def plan(key: KernelKey) -> TransposedPlan:
    """Plan runs of 128 bytes along a line where registers hold as many items, and of 128 or more across lines."""
    spec, target = key.spec, key.architecture
    to_rows = spec.inner == 1
    vector = max(1, 4 // (spec.input if to_rows else spec.out).bytes)
    small = min(spec.out.bytes, *(source.dtype.bytes for source in spec.sources)) < min(COPY_BYTES)
    crowded = small and (spec.doubled or not spec.aligned)  # such items pass through registers, or go out twice
    room = STATE_BYTES // 2 if crowded else STATE_BYTES
    held = max(1, room // (vector * fragments(spec).held_bytes))
    run = RUN_BYTES if spec.alone and spec.aligned else RUN_BYTES // 2  # addresses take registers, too
    along_bytes = [source.dtype.bytes for source in spec.sources if along(spec, source)]
    widest = max([*along_bytes, *(spec.result_bytes if to_rows else ())])
    items = min(run // widest, 1 << held.bit_length() - 1, power_of_two_above(spec.capacity))
    most, resident = (SMALL_WARPS, SMALL_RESIDENT) if small else (WARPS, RESIDENT)
    threads = WARP * min(most, ceil_div(spec.capacity, items))
    stages = min(ceil_div(spec.capacity, threads // WARP * items), STAGES) if target.copies_async else 1
    available = target.block_shared_bytes - DECLARED_BYTES
    while stages > 1 and threads * vector * items * _item_bytes(spec, stages) > available:
        stages -= 1
    while items > 1 and threads * vector * items * _item_bytes(spec, stages) > available:
        items //= 2
    fitting = target.shared_bytes // (threads * vector * items * _item_bytes(spec, stages) + DECLARED_BYTES)
    return TransposedPlan(
        spec=spec,
        target=target,
        why=f"lines of {spec.items_text} are {'strided' if to_rows else 'contiguous'} in the input, "
        f"{'contiguous' if to_rows else 'strided'} in the output: tiles are transposed in shared memory",
        threads=threads,
        items=items,
        vector=vector,
        stages=stages,
        blocks=max(1, min(resident // threads, fitting)),
    )


def along(spec: ScanSpec, source: Source) -> bool:
    """Whether an operand's items are contiguous along a line: dense as the output is, or transposed."""
    return (spec.inner == 1) is not (source.layout == "transposed")


def _overwrites(spec: ScanSpec) -> bool:
    """Whether results overwrite the input's tile in shared memory."""
    return spec.inner == 1 and spec.input.bytes == spec.out.bytes


def _item_bytes(spec: ScanSpec, stages: int) -> int:
    """Shared memory per item of a tile in bytes: the ring of the operands, and results along lines."""
    results = spec.result_bytes[_overwrites(spec) :] if spec.inner == 1 else ()
    return spec.read_bytes * stages + sum(results)
