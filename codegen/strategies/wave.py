"""Long rows, split over blocks that stay: tiles claimed in order, copied ahead, totals published ahead of need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.strategies.registers import LENGTH_BYTES, STRIDED_BYTES
from scanops.codegen.strategies.rows import begins_anywhere, gathers, row_of
from scanops.codegen.strategies.split import BoardPlan
from scanops.codegen.targets import Target

__all__ = ["WavePlan", "plan"]

THREADS = 512
# (bytes of an item of the output; KB a tile brings to shared memory, tiles there, steps from a tile's scan to its
# store). H200, fraction of a copy:
SHAPES = (
    (2, 48, 4, 2),  # bfloat16, rows of 1M: 6 accesses a thread are 6 % faster than 4
    (4, 48, 4, 2),  # fp32, 1 x 2^28: 0.98; with 40 KB and 5 tiles 0.86, with 64 KB, 3 tiles and 1 step 0.61
    (8, 32, 5, 3),  # fp64, 32768: 0.976; with 48 KB 0.91
)
ONE_TILE = (64, 3, 1)  # where a row is one tile nobody waits: float16, 32768: 20 % faster than with 48 KB
REGISTER_BYTES = 320  # of a thread's registers, for prefixes of the tiles it has scanned and the items of one of them
NARROW_BYTES = 352  # where items widen on their way: int32 to int64, 32768, has 0.94, with 288 bytes 0.86
REALIGNED_NARROW_BYTES = 280  # and are shifted: with more, int32 rows of any length spill on sm_120
SKEW_BYTES = 4  # that a warp keeps of a tile of an operand whose items are shifted
WIDE_BYTES = 48  # of a thread's registers taken by positions of 64 bits
DECLARED_BYTES = 2048  # of shared memory, at most, beside the ring


@dataclass(frozen=True, slots=True, kw_only=True)
class WavePlan(BoardPlan):
    """Persistent blocks with a ring of tiles in shared memory."""

    strategy: ClassVar[str] = "wave"
    template: ClassVar[str] = "wave_rows.cu.j2"

    stages: int  # tiles in the ring
    ahead: int  # steps from a tile's scan, when its total is published, to its store
    blocks: int  # resident on a multiprocessor

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not match lines one to one."""
        return True

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """Blocks exchange words, and copy ahead into more shared memory than a declaration may ask for."""
        return (*self.code.intrinsics, "relaxed", "copies", "dynamic")

    @property
    def shared_bytes(self) -> int:
        """The ring."""
        accesses = self.stages * self.threads * self.vectors * _access_bytes(self.spec, self.items)
        return accesses + self.stages * self.warps * _realigned_bytes(self.spec, self.items)

    @property
    def lands(self) -> bool:
        """Whether some operand passes through registers on its way to the ring."""
        return not all(operand.copied for operand in self.operands)


def _access_bytes(spec: ScanSpec, items: int) -> int:
    """What one access of every operand takes in shared memory."""
    return items * (spec.input.bytes + (spec.mask_dtype.bytes if spec.mask_dtype else 0))


def _realigned_bytes(spec: ScanSpec, items: int) -> int:
    """What a warp has in a stage beside its accesses: one more of an operand whose items are shifted, and its skew."""
    dtypes = ((spec.input, spec.input_layout), (spec.mask_dtype, spec.mask_layout))
    return sum(items * dtype.bytes + SKEW_BYTES for dtype, layout in dtypes if dtype and begins_anywhere(spec, layout))


def plan(spec: ScanSpec, target: Target) -> WavePlan:
    """A ring of tiles as large as shared memory and a thread's registers allow."""
    items, boundary, accesses = row_of(spec)
    shape = next(rest for size, *rest in SHAPES if spec.out.bytes <= size)
    one_tile = _vectors(spec, target, items, *ONE_TILE)
    if accesses <= THREADS * one_tile and not spec.takes_length:
        shape = list(ONE_TILE)
    _, stages, ahead = shape
    vectors = min(_vectors(spec, target, items, *shape), ceil_div(accesses, THREADS))
    return WavePlan(
        spec=spec,
        target=target,
        why=f"rows of {spec.items_text}: tiles of all rows are walked by all blocks in order",
        threads=THREADS,
        items=items,
        tiles=ceil_div(accesses, THREADS * vectors),
        vectors=vectors,
        boundary=boundary,
        stages=stages,
        ahead=ahead,
        blocks=1,
    )


def _vectors(spec: ScanSpec, target: Target, items: int, kilobytes: int, stages: int, ahead: int) -> int:
    """Accesses a thread makes of a tile, as many as shared memory and its registers hold."""
    access = _access_bytes(spec, items)
    shared = min(kilobytes * 1024, (target.block_shared_bytes - DECLARED_BYTES) // stages)
    landing = max(4, access) if gathers(spec) or items * spec.input.bytes < 4 else 0
    held = (ahead + 1 + items) * fragments(spec).state_bytes + landing
    registers = REGISTER_BYTES
    if spec.input.bytes < spec.out.bytes and not spec.mask:
        registers = REALIGNED_NARROW_BYTES if begins_anywhere(spec, spec.input_layout) else NARROW_BYTES
    registers -= WIDE_BYTES if spec.capacity + THREADS * items > 2**30 else 0
    layouts = (spec.input_layout, *([spec.mask_layout] if spec.mask else []))
    registers -= STRIDED_BYTES * sum(layout == "strided" or begins_anywhere(spec, layout) for layout in layouts)
    if spec.takes_length:
        registers -= LENGTH_BYTES * (1 if spec.at_most else 2)  # positions of 64 bits take two registers each
    return max(1, min(shared // access // THREADS, registers // held))
