"""Short rows: a row lies within a warp, several rows share one, nothing but shuffles between lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import WARP, RowPlan, ceil_div, power_of_two_above, reads_wide, vector_width
from scanops.codegen.targets import Target

__all__ = ["WarpPlan", "fits", "plan"]

# H200, fraction of a copy: fp32 rows of 256 have 1.00 with 128 threads and 0.98 with 256, 4 and 64 have 1.01 with both;
# rows of 3, 7 and 31, read item by item, have 0.47, 0.51, 0.53 with 256 threads and 0.30, 0.35, 0.39 with 128.
THREADS_WIDE, THREADS_NARROW = 128, 256  # for accesses of 16 bytes, and for narrower ones
MAX_VECTORS = 4  # 16-byte accesses a lane: a row of 1024 reaches 0.97 with 8 and 1.00 as a block of 128 threads
MAX_ITEMS = 32  # items a lane when accesses are narrower: each costs a scan across the warp


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpPlan(RowPlan):
    """``lanes`` threads scan a row; a block holds ``threads / lanes`` rows and never synchronises."""

    strategy: ClassVar[str] = "warp"
    template: ClassVar[str] = "warp_rows.cu.j2"

    lanes: int  # threads a row, a power of two up to 32

    @property
    def counts_lines(self) -> bool:
        """Whether the kernel needs the number of lines: blocks do not match lines one to one."""
        return True

    @property
    def width(self) -> int:
        """Lanes a shuffle stays within: those of one row."""
        return self.lanes

    @property
    def tile(self) -> int:
        """Items a row's lanes hold."""
        return self.lanes * self.vectors * self.items

    @property
    def rows(self) -> int:
        """Rows a block."""
        return self.threads // self.lanes

    @property
    def steps(self) -> tuple[int, ...]:
        """Distances, in lanes, of the shuffles of a scan across a row's lanes."""
        return tuple(2**k for k in range(self.lanes.bit_length() - 1))

    @property
    def crosses_lanes(self) -> bool:
        """Whether a row is more than one thread's."""
        return self.lanes > 1


def fits(spec: ScanSpec) -> bool:
    """Whether a row is short enough for a warp."""
    return ceil_div(spec.length, WARP * vector_width(spec)) <= max_vectors(vector_width(spec))


def max_vectors(width: int) -> int:
    """Accesses a lane may make, given the items of each."""
    return max(MAX_VECTORS, MAX_ITEMS // width)


def plan(spec: ScanSpec, target: Target) -> WarpPlan:
    """As few lanes as hold the row with one access each; a whole warp with several when it is longer."""
    items = vector_width(spec)
    lanes = min(WARP, power_of_two_above(ceil_div(spec.length, items)))
    vectors = ceil_div(spec.length, lanes * items)
    return WarpPlan(
        spec=spec,
        target=target,
        why=f"a row of {spec.length} fits in {lanes} lane(s), {vectors} access(es) of {items} item(s) each",
        threads=THREADS_WIDE if reads_wide(spec, items) else THREADS_NARROW,
        items=items,
        tiles=1,
        vectors=vectors,
        lanes=lanes,
    )
