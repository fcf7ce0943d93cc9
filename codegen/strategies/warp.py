"""Short rows within a warp: several rows per warp, and shuffles as the only communication between lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import LINE_BYTES
from scanops.codegen.spec import ACCESS_BYTES, ScanSpec
from scanops.codegen.strategies.base import (
    WARP,
    Launch,
    ceil_div,
    count_of,
    is_power_of_two,
    power_of_two_above,
    require,
)
from scanops.codegen.strategies.rows import RowPlan, boundary_of, reads_wide, vector_width

# H200, fraction of a copy: fp32 rows of 256 have 1.00 with 128 threads and 0.98 with 256, 4 and 64 have 1.01 with both;
# rows of 3, 7 and 31, read item by item, have 0.47, 0.51, 0.53 with 256 threads and 0.30, 0.35, 0.39 with 128; rows of
# 500 and 512, with 4 accesses a lane, 0.988 and 0.998 with 64 threads, 0.985 and 0.993 with 128.
THREADS_LONG, THREADS_WIDE, THREADS_NARROW = 64, 128, 256  # several accesses of 16 bytes, few, and narrower ones
LONG = 3  # accesses per lane
LINES_FROM = 300  # items; longer rows keep to boundaries of 128 bytes: 383 has 0.989, 0.978 with 16; 257 loses by it
MAX_VECTORS, HALF_MAX_VECTORS = 5, 3  # accesses per lane; 1024 bfloat16 has 0.988 with 4, 1.00 as a block of 64 threads
LANES_UP_TO = 128  # misaligned rows use narrower accesses up to this length, and a whole warp beyond

# Where a row's accesses are three times a power of two, a quarter of the lanes that hold one each would be idle.
# Recurrences of 248293 x 48, a gate for each line: 1.07 by 4 lanes with 3 accesses, 0.88 by 12 of 16 lanes (H200).
FULL_ACCESSES, FEWEST_LANES = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpPlan(RowPlan):
    """``lanes`` threads scan a row; a block holds ``threads / lanes`` rows and never synchronises."""

    strategy: ClassVar[str] = "warp"
    spans_block: ClassVar[bool] = False
    one_block_per_sm: ClassVar[bool] = (
        False  # a block is small: it never has the registers of a multiprocessor to itself
    )

    lanes: int  # threads per row, a power of two up to 32; where the length is an argument: at most

    def __post_init__(self) -> None:
        """Check that a row lies within its lanes."""
        RowPlan.__post_init__(self)
        require(self, is_power_of_two(self.lanes) and self.lanes <= WARP, "lanes that are a power of two up to 32")
        require(self, self.tiles == 1, "one tile")
        require(self, self.lanes == WARP or not self.boundary, "a whole warp for rows that are shifted")

    @property
    def template(self) -> str:  # type: ignore[override]
        """A row that is one vector load of each operand, which lies as the output, needs none of what others do."""
        spec, single = self.spec, self.lanes == self.vectors == 1 and not self.spec.takes_length
        plain = not (spec.strided or self.locates_items or spec.per_segment or spec.complete)
        return "thread_rows.cu.j2" if single and plain else "registers.cu.j2"

    @property
    def tile(self) -> int:
        """Number of items that the lanes of a row hold."""
        return self.lanes * self.vectors * self.items

    @property
    def launch(self) -> Launch:
        """What a launch follows from: a block takes as many rows as it has lanes for."""
        chosen = () if self.boundary else ("lane_bits",)
        width, room = self.threads // self.lanes, self.vectors * self.items
        return self._launch("lines", adjacent=0, width=width, chosen=chosen, room=room)

    @property
    def _reads_on(self) -> bool:
        """Whether the last lane's items may extend into an access after those of all lanes."""
        reach = self.spec.capacity + self._lead + self.items - 1  # to the end of the last access
        return bool(self.launch.chosen) or self.tile < reach


def fits(spec: ScanSpec) -> bool:
    """Whether a row is short enough for a warp."""
    return _shape(spec)[2] <= (HALF_MAX_VECTORS if spec.keeps_bytes and spec.out.bytes == 2 else MAX_VECTORS)


def _shape(spec: ScanSpec) -> tuple[int, int, int, int]:
    """(items per access, lanes, accesses per lane, boundary in items)."""
    items, length = vector_width(spec), spec.capacity
    if items < spec.access_items and (length > LANES_UP_TO or spec.takes_length):
        items = spec.access_items
        boundary = boundary_of(spec, items, LINE_BYTES if length >= LINES_FROM else ACCESS_BYTES)
        return items, WARP, ceil_div(length + boundary - 1, WARP * items), boundary
    accesses = ceil_div(length, items)
    lanes = min(WARP, power_of_two_above(accesses))
    full = lanes // 4  # lanes, none of which is idle
    if full >= FEWEST_LANES and accesses == FULL_ACCESSES * full and not spec.takes_length:
        lanes = full
    return items, lanes, ceil_div(length, lanes * items), 0


def plan(key: KernelKey) -> WarpPlan:
    """Plan the fewest lanes that hold the row with one access each; a whole warp with several accesses for longer
    rows.
    """
    spec, target = key.spec, key.architecture
    items, lanes, vectors, boundary = _shape(spec)
    wide = THREADS_LONG if vectors >= LONG else THREADS_WIDE
    return WarpPlan(
        spec=spec,
        target=target,
        why=f"a row of {count_of(spec.items_text, 'item')} fits in {count_of(lanes, 'lane')}, "
        f"each with {count_of(vectors, 'vector load')} of {count_of(items, 'item')}",
        threads=wide if reads_wide(spec, items) else THREADS_NARROW,
        items=items,
        vectors=vectors,
        boundary=boundary,
        lanes=lanes,
    )
