"""Transposed: the input's unit stride is along another dimension than the output's; warps transpose tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.lines import WHOLE_BYTES
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Constant, Plan, ceil_div, power_of_two_above
from scanops.codegen.targets import Target

__all__ = ["Slab", "TransposedPlan", "fits", "plan"]

COPY_BYTES = (16, 8, 4)  # bytes that one cp.async can copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """A warp's part of an operand's tile: its layout, and what a lane moves at once.

    If ``along``, items of a line are contiguous; otherwise those of neighbouring lines are, position by position.
    """

    name: str
    type: str
    pointer: str
    bytes: int  # of an item
    along: bool
    access: int  # items a lane moves at once between global and shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedPlan(Plan):
    """A block scans neighbouring lines tile by tile; a lane scans ``items`` positions of ``vector`` lines.

    Copies bring a warp's part of a tile into shared memory in the layout of global memory. Where items of a line are
    contiguous there, lanes read them as pieces; results along lines are stored the same way.
    """

    strategy: ClassVar[str] = "transposed"
    template: ClassVar[str] = "transposed.cu.j2"
    looks_back: ClassVar[bool] = False

    vector: int  # adjacent lines per lane
    stages: int  # stages of the ring in shared memory, most of them in flight
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds
    streams: bool  # 16-byte copies bypass L1

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the text names; numbers that follow from them are constants of the text itself."""
        return (
            Constant("kReverse", self.spec.reverse, "scan from a line's end to its start"),
            *(() if self.to_rows else (Constant("kInner", self.spec.inner, "lines side by side in the output"),)),
            Constant("kThreads", self.threads, "of a block"),
            Constant("kBlocks", self.blocks, "of a multiprocessor, at least"),
            Constant("kItems", self.items, "positions of a thread in a tile"),
            Constant("kVector", self.vector, "adjacent lines of a thread"),
            Constant("kLanes", WARP, "threads side by side across the lines"),
            Constant("kLoops", self.tiles > 1, "a line has several tiles"),
            Constant("kStages", self.stages, "tiles in the ring in shared memory"),
            Constant("kRingBytes", self.shared_bytes, "of dynamic shared memory"),
        )

    def grid(self, lines: int, multiprocessors: int, neighbours: int | None = None) -> int:
        """Return the number of blocks of a launch for so many lines, which blocks take in groups of neighbours."""
        adjacent = neighbours or lines
        return lines // adjacent * ceil_div(adjacent, self.lines)

    @property
    def tile(self) -> int:
        """Number of items of one line in a tile."""
        return self.warps * self.items

    @property
    def lines(self) -> int:
        """Number of lines per block."""
        return WARP * self.vector

    @property
    def crosses_lanes(self) -> bool:
        """Whether a warp holds several parts of the same line."""
        return False

    @property
    def begins_empty(self) -> bool:
        """Whether some fold starts from the identity of every line."""
        return True

    @property
    def begins_lines(self) -> bool:
        """Whether a lane applies the carry-in of its lines."""
        return self.spec.initial

    @property
    def takes_neighbours(self) -> bool:
        """Whether a block scans lines that are adjacent in a dimension chosen by the host."""
        return True

    # ---- slabs

    @property
    def to_rows(self) -> bool:
        """Whether results are contiguous along a line; otherwise those of neighbouring lines are."""
        return self.spec.inner == 1

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """The slabs of the operands that are read."""
        return tuple(
            self._slab(
                source.name,
                source.type,
                source.pointer,
                source.dtype.bytes,
                along(self.spec, source),
                self.spec.aligned and source.layout != "rows",  # rows of a larger tensor may be misaligned
            )
            for source in self.spec.sources
        )

    @property
    def result_slabs(self) -> tuple[Slab, ...]:
        """The slabs of the outputs."""
        pairs = zip(self.results, self.spec.result_bytes, strict=True)
        return tuple(
            self._slab(out.name, out.type, out.pointer, size, self.to_rows, self.spec.aligned) for out, size in pairs
        )

    def _slab(self, name: str, kind: str, pointer: str, size: int, along: bool, aligned: bool) -> Slab:
        """An operand's slab.

        ``aligned`` has established that full accesses are possible for lines adjacent in the input.
        """
        run = self.items if along else self.lines
        sizes = [bytes_at_once // size for bytes_at_once in COPY_BYTES if size <= bytes_at_once <= run * size]
        sizes = [items for items in sizes if WARP * items <= self.lines * self.items]  # lanes stay inside the slab
        reach = self.spec.divides if along else self._divides_columns if self.spec.inner > 1 else lambda items: True
        access = next((items for items in sizes if aligned and reach(items)), 1)
        return Slab(name=name, type=kind, pointer=pointer, bytes=size, along=along, access=access)

    def _divides_columns(self, items: int) -> bool:
        return self.spec.inner % items == 0

    @property
    def copies_lines(self) -> bool:
        """Whether some operand's items are contiguous along a line."""
        return any(slab.along for slab in self.slabs)

    @property
    def copies_positions(self) -> bool:
        """Whether some operand's items are contiguous across lines."""
        return not all(slab.along for slab in self.slabs)

    @property
    def has_lines(self) -> bool:
        """Whether some slab stores line after line."""
        return self.to_rows or self.copies_lines

    @property
    def most_pieces(self) -> int:
        """Number of 16-byte pieces of a lane's part of a line, the maximum over operands."""
        slabs = [slab for slab in (*self.slabs, *self.result_slabs) if slab.along]
        return max((ceil_div(self.items * slab.bytes, ACCESS_BYTES) for slab in slabs), default=1)

    @property
    def whole(self) -> bool:
        """Whether a lane stores its neighbouring lines by one access."""
        return self.vector == 1 or (self.spec.aligned and self.spec.inner % self.vector == 0)

    @property
    def in_place(self) -> bool:
        """Whether results overwrite the input's tile in shared memory."""
        return self.to_rows and self.spec.input.bytes == self.spec.out.bytes

    @property
    def apart(self) -> tuple[Slab, ...]:
        """The result slabs that have shared memory of their own."""
        return self.result_slabs[1 if self.in_place else 0 :] if self.to_rows else ()

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: the ring."""
        item_bytes = sum(slab.bytes for slab in self.slabs) * self.stages + sum(slab.bytes for slab in self.apart)
        return self.warps * self.lines * self.items * item_bytes


# H200, estimated from columns and rows: few threads with many items, 16 KB per tile, two tiles in flight.
WARPS, RESIDENT = 8, 512  # 256 x 1024 x 1024, fp32: 0.95, with 4 warps 0.91; threads that registers are promised for
SMALL_WARPS, SMALL_RESIDENT = 4, 384  # where items of less than 4 bytes take more registers
STAGES = 3
RUN_BYTES = 128  # of a line, by a warp
STATE_BYTES = 256  # of states a thread
DECLARED_BYTES = 4096  # of shared memory, at most, beside the ring


def fits(spec: ScanSpec, target: Target) -> bool:
    """Whether some operand is transposed, and there are enough lines to fill the GPU."""
    if spec.input_layout != "transposed" or spec.lines == "few":
        return False
    others = {source.layout for source in spec.sources[1:]}
    if "strided" in others or ("rows" in others and spec.inner > 1):
        return False  # gathered with the input
    along = (spec.input if spec.inner > 1 else spec.out).bytes * spec.capacity
    across = spec.out.bytes * spec.inner
    return along >= WHOLE_BYTES and (spec.inner == 1 or across >= WHOLE_BYTES)


def plan(spec: ScanSpec, target: Target) -> TransposedPlan:
    """Plan runs of 128 bytes along a line where registers hold as many items, and of 128 or more across lines."""
    to_rows = spec.inner == 1
    vector = max(1, 4 // (spec.input if to_rows else spec.out).bytes)
    small = min(spec.out.bytes, *(source.dtype.bytes for source in spec.sources)) < min(COPY_BYTES)
    crowded = small and (spec.doubled or not spec.aligned)  # such items pass through registers, or go out twice
    room = STATE_BYTES // 2 if crowded else STATE_BYTES
    held = max(1, room // (vector * fragments(spec).held_bytes))
    run = RUN_BYTES if spec.alone and spec.aligned else RUN_BYTES // 2  # addresses take registers, too
    items = min(run // _widest_along(spec), 1 << held.bit_length() - 1, power_of_two_above(spec.capacity))
    most, resident = (SMALL_WARPS, SMALL_RESIDENT) if small else (WARPS, RESIDENT)
    warps = min(most, ceil_div(spec.capacity, items))
    tiles = ceil_div(spec.capacity, warps * items)
    made = TransposedPlan(
        spec=spec,
        target=target,
        why=f"lines of {spec.items_text} are {'strided' if to_rows else 'contiguous'} in the input, "
        f"{'contiguous' if to_rows else 'strided'} in the output: tiles are transposed in shared memory",
        threads=WARP * warps,
        items=items,
        vector=vector,
        stages=min(tiles, STAGES) if target.copies_async else 1,
        blocks=max(1, resident // (WARP * warps)),
        streams=True,
    )
    while made.stages > 1 and made.shared_bytes + DECLARED_BYTES > target.block_shared_bytes:
        made = replace(made, stages=made.stages - 1)
    while made.items > 1 and made.shared_bytes + DECLARED_BYTES > target.block_shared_bytes:
        made = replace(made, items=made.items // 2)
    fitting = target.shared_bytes // (made.shared_bytes + DECLARED_BYTES)
    return replace(made, blocks=max(1, min(made.blocks, fitting)))


def _widest_along(spec: ScanSpec) -> int:
    """Bytes per item, the maximum over operands whose items are contiguous along a line."""
    to_rows = spec.inner == 1
    sizes = [source.dtype.bytes for source in spec.sources if along(spec, source)]
    return max([*sizes, *(spec.result_bytes if to_rows else ())])


def along(spec: ScanSpec, source: Source) -> bool:
    """Whether an operand's items are contiguous along a line: dense as the output is, or transposed."""
    return (spec.inner == 1) is not (source.layout == "transposed")
