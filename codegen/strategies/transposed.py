"""Transposed: the input's unit stride is along another dimension than the output's; warps transpose tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.lines import WHOLE_BYTES
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec, Source
from scanops.codegen.strategies.base import WARP, Plan, ceil_div, power_of_two_above
from scanops.codegen.targets import Target

__all__ = ["Slab", "TransposedPlan", "fits", "plan"]

COPY_BYTES = (16, 8, 4)  # bytes that one cp.async can copy
BANK_ACCESSES = 8  # lanes with 16-byte accesses that shared memory serves at once


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
    lines: int
    positions: int
    vector: int  # lines a lane scans

    @property
    def items(self) -> int:
        """Number of items in the slab."""
        return self.lines * self.positions

    @property
    def access_bytes(self) -> int:
        """Bytes that a lane moves at once."""
        return self.access * self.bytes

    @property
    def piece(self) -> int:
        """Items of one line that the scanning lane reads or writes at once in shared memory."""
        return min(ACCESS_BYTES // self.bytes, self.positions)

    @property
    def pieces(self) -> tuple[int, ...]:
        """Offsets of the pieces of a line."""
        return tuple(range(0, self.positions, self.piece))

    @property
    def spread(self) -> int:
        """Number of pieces after which the swizzle repeats: 8 lanes that read a piece each use all banks."""
        return BANK_ACCESSES * max(1, self.vector * len(self.pieces) // BANK_ACCESSES)

    @property
    def run(self) -> int:
        """Number of contiguous items in global memory."""
        return self.positions if self.along else self.lines

    @property
    def lanes(self) -> int:
        """Number of lanes that move a run together."""
        return min(WARP, self.run // self.access)

    @property
    def first_run(self) -> str:
        """Index of the first run of a lane, in C."""
        return f"lane / {self.lanes}" if self.lanes < WARP else "0"

    @property
    def first_place(self) -> str:
        """Offset of the lane's part in its first run, in C."""
        return ("lane" if self.lanes == WARP else f"lane % {self.lanes}") + (
            f" * {self.access}" if self.access > 1 else ""
        )

    @property
    def share(self) -> str:
        """Which runs a lane takes part in, in words."""
        return f"one in {WARP // self.lanes}" if self.lanes < WARP else "each"

    @property
    def in_parts(self) -> bool:
        """Whether a lane moves only some items of a piece at once."""
        return self.access not in (1, self.piece)

    @property
    def access_type(self) -> str:
        """C type of what a lane moves at once."""
        whole = f"{self.type}Piece" if self.access == self.piece else f"{self.type}Access"
        return self.type if self.access == 1 else whole

    @property
    def runs(self) -> tuple[int, ...]:
        """Offsets of the runs that a lane takes part in, from its first."""
        return tuple(range(0, self.items // self.run, WARP // self.lanes))

    @property
    def parts(self) -> tuple[int, ...]:
        """Offsets of a lane's parts of a run, from its first."""
        return tuple(range(0, self.run, self.lanes * self.access))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedPlan(Plan):
    """A block scans neighbouring lines tile by tile; a lane scans ``items`` positions of ``vector`` lines.

    Copies bring a warp's part of a tile into shared memory in the layout of global memory. Where items of a line are
    contiguous there, lanes read them as pieces; results along lines are stored the same way.
    """

    strategy: ClassVar[str] = "transposed"
    template: ClassVar[str] = "transposed.cu.j2"

    vector: int  # adjacent lines per lane
    stages: int  # stages of the ring in shared memory, most of them in flight
    blocks: int  # resident blocks per multiprocessor promised by the launch bounds
    streams: bool  # 16-byte copies bypass L1

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
    def lanes(self) -> int:
        """Number of threads side by side across the lines."""
        return WARP

    @property
    def rows(self) -> tuple[int, ...]:
        """Positions of a lane in a tile, in scan order."""
        return tuple(range(self.items))

    @property
    def across(self) -> tuple[int, ...]:
        """Indices of the lines of a lane."""
        return tuple(range(self.vector))

    @property
    def crosses_lanes(self) -> bool:
        """Whether a warp holds several parts of the same line."""
        return False

    @property
    def begins_empty(self) -> bool:
        """Whether some fold starts from the identity of every line."""
        return True

    @property
    def takes_neighbours(self) -> bool:
        """Whether a block scans lines that are adjacent in a dimension chosen by the host."""
        return True

    # ---- carries

    @property
    def own_line(self) -> str:
        """Number of a lane's first line, in C."""
        return f"(line + lane * {self.vector}{' * neighbours.lines' if self.to_rows else ''})"

    @property
    def line_step(self) -> str:
        """Difference between the numbers of adjacent lines, in C."""
        return "neighbours.lines" if self.to_rows else "1"

    @property
    def column_spacing(self) -> int:
        """Adjacent lines from one line of a lane to its next."""
        return 1

    @property
    def there(self) -> str:
        """Number of a lane's lines that exist, in C."""
        return f"lines - lane * {self.vector}"

    @property
    def begins_lines(self) -> bool:
        """Whether a lane applies the carry-in of all its lines itself."""
        return True

    @property
    def begin_each(self) -> str:
        """The carry-in of a lane's lines as States, in C."""
        if not self.spec.initial:
            return "identities()"
        step = "carry_in_step" + (" * neighbours.lines" if self.to_rows else "")
        return f"begin_lines(carry_in + {self.own_line} * carry_in_step, {step}, {self.there})"

    @property
    def scanned_first(self) -> str:
        """The scan position of the first item that a lane scans, in C."""
        return "first"

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
            for source in self.sources
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
        return Slab(
            name=name,
            type=kind,
            pointer=pointer,
            bytes=size,
            along=along,
            access=next((items for items in sizes if aligned and reach(items)), 1),
            lines=self.lines,
            positions=self.items,
            vector=self.vector,
        )

    def _divides_columns(self, items: int) -> bool:
        return self.spec.inner % items == 0

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
    def stage(self) -> str:
        """The stage of a tile in the ring, in C."""
        return f"tile % {self.stages}" if self.stages > 1 else "0"

    @property
    def live(self) -> str:
        """Positions from a warp's first in a tile to the end of the line, in C."""
        return f"live - tile * {self.tile}"

    @property
    def lead(self) -> int:
        """Number of tiles whose copies are issued before a tile is scanned."""
        return self.stages - 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: the ring."""
        staged = sum(slab.items * slab.bytes for slab in self.slabs) * self.stages
        return self.warps * (staged + sum(slab.items * slab.bytes for slab in self.apart))

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Macros of intrinsics.cuh.j2 the kernel calls."""
        streams = any(self.copy_of(slab) == "copy_stream_16" for slab in self.slabs)
        return (*self.code.intrinsics, "dynamic", "copies", *(("streams",) if streams else ()))

    def copy_of(self, slab: Slab) -> str:
        """Name of the asynchronous copy of an access of an operand; empty where it passes through a register."""
        if slab.access_bytes not in COPY_BYTES:
            return ""
        streams = self.streams and slab.access_bytes == ACCESS_BYTES
        return "copy_stream_16" if streams else f"copy_async_{slab.access_bytes}"

    @property
    def alignments(self) -> dict[str, int]:
        """Alignment in bytes of the items of a lane's lines, by C type."""
        sizes = {source.type: source.dtype.bytes for source in self.sources}
        sizes |= {out.type: size for out, size in zip(self.results, self.spec.result_bytes, strict=True)}
        return {name: min(ACCESS_BYTES, self.vector * size) for name, size in sizes.items()}

    @property
    def state_alignment(self) -> int:
        """Alignment in bytes of a lane's states in shared memory."""
        size = self.vector * self.code.state_bytes
        return min(ACCESS_BYTES, size & -size)

    @property
    def first_index(self) -> str:
        """Index in memory of the scan position ``first``, in C."""
        return f"({self._from_end(1)} - first)" if self.spec.reverse else "first"

    @property
    def run_index(self) -> str:
        """Lowest index in memory of the positions from ``first`` that a lane scans, in C."""
        return f"({self._from_end(self.items)} - first)" if self.spec.reverse else "first"

    def _from_end(self, items: int) -> str:
        return f"length - {items}" if self.spec.length is None else str(self.spec.length - items)

    def held(self, slab: Slab, place: int) -> int:
        """Position, in scan order, of the item at this place of a lane's part of a line."""
        return slab.positions - 1 - place if self.spec.reverse else place


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
        tiles=tiles,
        vector=vector,
        stages=min(tiles, STAGES) if target.copies_async else 1,
        blocks=max(1, resident // (WARP * warps)),
        streams=True,
    )
    while made.stages > 1 and made.shared_bytes + DECLARED_BYTES > target.block_shared_bytes:
        made = replace(made, stages=made.stages - 1)
    while made.items > 1 and made.shared_bytes + DECLARED_BYTES > target.block_shared_bytes:
        made = replace(made, items=made.items // 2, tiles=ceil_div(spec.capacity, warps * made.items // 2))
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
