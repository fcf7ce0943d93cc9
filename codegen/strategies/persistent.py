"""Long rows over persistent blocks: tiles claimed in order, prefetched through a ring, with totals published early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.shapes import Shape, find_shape
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec
from scanops.codegen.strategies import rows
from scanops.codegen.strategies.base import MOST, WARP, Constant, Launch, ceil_div, power_of_two_above, require
from scanops.codegen.strategies.rows import RowPlan
from scanops.codegen.targets import Target

THREADS = 512  # threads per block, at most
# The same where a thread's items are consecutive: with more of them, fewer instructions an item scan across lanes.
RUN_THREADS = 256
# Of a gate and a value, to which two operations append. H200, 32768: 0.99 with 352 threads, 0.95 with 224.
PAIR_THREADS = 416
RUN_BYTES = 256  # register bytes of a thread for its items and their partial totals
RING_KB = 192  # KB of shared memory, at most: more would shrink L1
FEWER, MORE = 2, 1  # warps fewer or more than fill such a tile, so that tiles end where rows do
IDLE_COST = 0.1  # loss if all of a row's accesses lay past its end. 125588: 0.970 with 0.01 of them, 0.951 with 0.08
FEWER_COST = 0.1  # loss if fewer warps left out all of a tile's accesses
POWER_COST = 0.005  # of 512 threads. 256 x 1M, masked: 0.946, where 448 and 576 have 0.987
REGISTER_BYTES = 320  # register bytes of a thread for prefixes of scanned tiles and the items of one tile
SKEW_BYTES = 4  # bytes that a warp keeps per tile of an operand whose items are shifted
WIDENED_ITEMS = 8  # items per access that widen: a lane scans them all before lanes exchange totals
DECLARED_BYTES = 2048  # bytes of shared memory besides the ring, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentPlan(RowPlan):
    """Persistent blocks with a multistage ring of tiles in shared memory."""

    strategy: ClassVar[str] = "persistent"
    template: ClassVar[str] = "persistent_rows.cu.j2"
    splits_stores: ClassVar[bool] = True
    copies_shifted: ClassVar[bool] = True

    stages: int  # tiles in the ring
    ahead: int  # steps from a tile's scan, when its total is published, to its store
    blocks: int  # resident blocks per multiprocessor

    def __post_init__(self) -> None:
        """Check that the ring holds the tiles between a tile's load and its store."""
        RowPlan.__post_init__(self)
        require(self, self.ahead < self.stages, "fewer steps ahead than stages")

    def constants(self) -> tuple[Constant, ...]:
        """The numbers that the kernel's text names, in the order in which it declares them."""
        pieces = max(1, self.items * self.spec.out.bytes // ACCESS_BYTES)
        groups = self.warps if self.spec.takes_length or self.tiles > WARP else 1
        return (
            *RowPlan.constants(self),
            Constant("kStoresPerLoad", pieces, "stores for the results of one vector load"),
            Constant("kStages", self.stages, "tiles in the ring"),
            Constant("kAhead", self.ahead, "steps from a tile's scan, when its total is published, to its store"),
            Constant("kBlocksPerSm", self.blocks, "resident blocks per multiprocessor"),
            Constant(
                "kLookBackGroups", groups, "groups of 32 tiles whose totals a block reads in one step of its look-back"
            ),
            Constant("kLanesShare", bool(self.shifted or self.in_runs), "lanes read what others of the warp copied"),
            Constant("kSerial", self.serial, "each result of a vector load is computed from the one before it"),
        )

    @property
    def launch(self) -> Launch:
        """What a launch follows from: resident blocks claim the tiles of all rows."""
        takes, lead, tile = ("lines", "workspace"), self._lead, self.tile
        return self._launch(*takes, lead=lead, tile=tile, resident=self.blocks, statuses=(1,))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: the ring, and the pieces that lanes exchange."""
        pieces = self.threads * self.items * self.spec.out.bytes if self.in_pieces else 0
        beside = self.warps * _beside_bytes(self.spec, self.items)
        marks = self.tile // 8 * self.spec.by_offsets * (1 + self.spec.looks_on)  # a bit an item
        return self.stages * (self.tile * self.spec.read_bytes + marks + beside) + pieces

    @property
    def in_pieces(self) -> bool:
        """Whether a load takes several stores, which lanes exchange so that they are coalesced."""
        return self.items * self.spec.out.bytes > ACCESS_BYTES

    @property
    def in_runs(self) -> bool:
        """Whether lanes exchange accesses in the ring, so that a thread's items are consecutive."""
        return _in_runs(self.spec, self.vectors)


def _beside_bytes(spec: ScanSpec, items: int) -> int:
    """Shared memory of a warp's stage beside its items: one more access and the skew of shifted operands; a word."""
    shifted = (source for source in spec.streams if items > 1 and rows.is_shifted(spec, source, copied=True))
    marks = spec.by_offsets * (1 + spec.looks_on)
    return sum(items * source.dtype.bytes + SKEW_BYTES for source in shifted) + SKEW_BYTES * marks


def plan(key: KernelKey) -> PersistentPlan:
    """Plan as large a ring of tiles as shared memory and a thread's registers allow."""
    spec, target = key.spec, key.architecture
    items, boundary, accesses = rows.row_of(spec, _items(spec, target))
    shape = (
        _two_blocks(spec, target, items, accesses)
        or _one_tile(spec, target, items, accesses)
        or _several_tiles(spec, target, items, accesses)
    )
    why = f"rows of {spec.items_text}: persistent blocks claim the tiles of all rows in order"
    return PersistentPlan(spec=spec, target=target, why=why, items=items, boundary=boundary, **shape)


def _items(spec: ScanSpec, target: Target) -> int:
    """Items per access: by the width of the output, or of the input where that is narrower."""
    if spec.input.bytes >= min(spec.out.bytes, 4) or spec.views or not spec.aligned or spec.doubled:
        return spec.access_items  # int32 to int64 too: 32768 has 0.94 so, with exchanged pieces 0.65
    items = min(WIDENED_ITEMS, ACCESS_BYTES // max(spec.input.bytes, spec.weight.bytes if spec.weight else 1))
    return items if THREADS * items * spec.out.bytes < target.block_shared_bytes else spec.access_items


def _two_blocks(spec: ScanSpec, target: Target, items: int, accesses: int) -> dict[str, Any] | None:
    """The shape of two blocks per SM for an instruction-bound state, or None where they do not fit."""
    operator, halves = spec.operator, min(spec.input.bytes, spec.out.bytes) < 4
    bound = operator.indices or (operator.costly and not halves)  # 8 halves an access spill
    if not bound or spec.segments or spec.takes_length or not spec.aligned or spec.views or operator.own:
        return None
    if spec.accumulator.bytes > 4 or not target.copies_async:
        return None
    shape = find_shape("persistent two blocks")
    stages, ahead, vectors, blocks = shape.take("stages", "ahead", "vectors", "blocks")
    threads = _fitting(range(THREADS - 4 * WARP, THREADS + 1, WARP), THREADS, vectors, accesses)
    ring = stages * threads * vectors * items * spec.read_bytes + DECLARED_BYTES
    if accesses <= THREADS * vectors or blocks * (ring + target.reserved_bytes) > target.shared_bytes:
        return None
    return _numbers(shape, stages, ahead, threads, vectors, blocks)


def _one_tile(spec: ScanSpec, target: Target, items: int, accesses: int) -> dict[str, Any] | None:
    """The shape of a row that is one tile, or None where it is too long."""
    shape = find_shape("persistent one tile")
    kilobytes, stages, ahead = shape.take("kilobytes", "stages", "ahead")
    threads, vectors = _most_threads(spec), _vectors(spec, target, items, kilobytes, stages, ahead)
    if accesses > threads * vectors or spec.takes_length:
        return None
    return _numbers(shape, stages, ahead, threads, ceil_div(accesses, threads))


def _several_tiles(spec: ScanSpec, target: Target, items: int, accesses: int) -> dict[str, Any]:
    """The shape of a row of several tiles: as many threads as fill a tile, or as leave few idle at a row's end."""
    shape = find_shape("persistent", max(spec.result_bytes))
    kilobytes, stages, ahead = shape.take("kilobytes", "stages", "ahead")
    if items > spec.access_items:
        stages, ahead = find_shape("persistent widened").take("stages", "ahead")
    vectors = _vectors(spec, target, items, kilobytes, stages, ahead)
    full, most = (
        min(_most_threads(spec), _tile_accesses(spec, target, items, size, stages) // vectors // WARP * WARP)
        for size in (kilobytes, RING_KB // stages)
    )
    fitting = range(full - FEWER * WARP, min(most, full + MORE * WARP) + 1, WARP)
    threads = full if spec.takes_length else _fitting(fitting, full, vectors, accesses)
    return _numbers(shape, stages, ahead, threads, vectors)


def _numbers(shape: Shape, stages: int, ahead: int, threads: int, vectors: int, blocks: int = 1) -> dict[str, Any]:
    numbers = {"stages": stages, "ahead": ahead, "threads": threads, "vectors": vectors, "blocks": blocks}
    return {**numbers, "origin": shape.origin}


def _fitting(choices: range, full: int, vectors: int, accesses: int) -> int:
    """The number of threads of the least expected loss, as a fraction of a copy; ``full`` fill a tile."""

    def loss(threads: int) -> float:
        tile = threads * vectors
        idle = ceil_div(accesses, tile) * tile / accesses - 1
        fewer = max(0, full - threads) / full
        return IDLE_COST * idle + FEWER_COST * fewer + POWER_COST * (threads == power_of_two_above(threads))

    return min(choices, key=loss)


def _vectors(spec: ScanSpec, target: Target, items: int, kilobytes: int, stages: int, ahead: int) -> int:
    """Accesses per thread of a tile: as many as it takes with 512 threads, if registers hold them."""
    if _in_runs(spec):
        most = RUN_BYTES // (items * max(spec.accumulator.bytes * 2, spec.read_bytes))
    elif items > spec.access_items:
        most = find_shape("persistent widened").numbers["vectors"]
    else:
        lands = rows.gathers(spec) or items * spec.input.bytes < 4
        held = (ahead + 1 + items) * fragments(spec).held_bytes + lands * max(4, items * spec.read_bytes)
        most = _register_bytes(spec, items) // held
    accesses = _tile_accesses(spec, target, items, kilobytes, stages)
    return max(1, min(ceil_div(accesses, _most_threads(spec)), most, MOST["vectors"]))


def _register_bytes(spec: ScanSpec, items: int) -> int:
    """Register bytes of a thread for prefixes of scanned tiles and the items of one tile."""
    layouts = [source.layout for source in spec.sources]
    shifted = spec.doubled or rows.begins_anywhere(spec, spec.input_layout)
    changes = (
        (32, spec.widens and spec.alone and not shifted),  # int32 to int64, 32768: 0.94, with 64 bytes less 0.86
        (-40, spec.widens and spec.alone and shifted),  # with more, int32 rows of any length spill on sm_120
        (-48, spec.widens and not spec.alone),  # otherwise masked products of int32 spill 20 bytes on sm_80
        (-48, spec.capacity + THREADS * items > 2**30),  # 64-bit positions
        (-80, ACCESS_BYTES in (spec.input.bytes, spec.out.bytes)),  # complex128 spills 4 bytes without
        (-rows.LENGTH_BYTES, spec.takes_length),
        (-rows.LENGTH_BYTES, spec.takes_length and not spec.at_most),  # 64-bit positions take two registers each
        *((-rows.STRIDED_BYTES, each == "strided" or rows.begins_anywhere(spec, each)) for each in layouts),
    )
    return REGISTER_BYTES + sum(change for change, applies in changes if applies)


def _in_runs(spec: ScanSpec, vectors: int = 2) -> bool:
    """Whether a thread's items are consecutive if it makes several accesses."""
    return rows.runs_pay(spec, vectors, twice=True) and spec.keeps_bytes and not spec.looks_ahead


def _most_threads(spec: ScanSpec) -> int:
    """Threads per block, at most."""
    if _in_runs(spec):
        return RUN_THREADS if spec.operator.costly or spec.operator.extend else PAIR_THREADS
    return THREADS


def _tile_accesses(spec: ScanSpec, target: Target, items: int, kilobytes: int, stages: int) -> int:
    """Accesses of a tile of so many kilobytes, or of as many as shared memory holds."""
    wide = items * spec.out.bytes
    pieces = THREADS * wide if wide > ACCESS_BYTES else 0  # bytes that lanes exchange
    beside = THREADS // WARP * _beside_bytes(spec, items) * stages
    most = min(RING_KB * 1024, target.block_shared_bytes - DECLARED_BYTES) - pieces - beside
    marks = spec.by_offsets * (1 + spec.looks_on)
    return min(kilobytes * 1024, most // stages) * 8 // (items * (8 * spec.read_bytes + marks))
