"""How many columns and rows of a panel a thread takes, and by which accesses."""

from __future__ import annotations

from scanops.codegen.fragments import fragments
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies.base import ceil_div, power_of_two_above
from scanops.codegen.strategies.operands import ASYNC_BYTES
from scanops.codegen.strategies.rows import ACCESS_BYTES, LINE_BYTES
from scanops.codegen.targets import Target

__all__ = [
    "ROWS",
    "WIDE_ROW_BYTES",
    "are_neighbours",
    "can_stage",
    "column_width",
    "full_width",
    "is_costly",
    "is_narrow",
    "is_pair",
    "odd_rows",
    "panel_lanes",
    "register_rows",
]


# H200, fp32 sum, fraction of a copy.
ROWS, ROW_BYTES = 16, 256  # bytes per thread: 1 x 32768 x 8192 by panels has 0.97; 12 rows 0.92, 8 rows 0.90
WIDE_STATE, WIDE_ROW_BYTES = 8, 128  # larger states also need large prefixes: 256 bytes of double pairs spill
NARROW_BYTES = 288  # bytes of states per thread


def are_neighbours(spec: ScanSpec) -> bool:
    """Whether neighbouring columns are adjacent in memory, in every operand."""
    return spec.layouts <= {"dense", "columns"}


def column_width(spec: ScanSpec) -> int:
    """Columns per thread: those of one store of at most 16 bytes, at the same alignment in every row."""
    width = full_width(spec) if are_neighbours(spec) else 1
    while spec.inner % width:
        width //= 2
    return width


def full_width(spec: ScanSpec) -> int:
    """Number of columns whose items take 16 bytes of the widest operand."""
    sizes = [source.dtype.bytes for source in spec.sources]
    return ACCESS_BYTES // max(*sizes, *spec.result_bytes)


def panel_lanes(spec: ScanSpec, vector: int, most: int) -> int:
    """Threads side by side across a panel: no more than there are columns for."""
    return min(most, power_of_two_above(ceil_div(spec.inner, vector)))


def can_stage(spec: ScanSpec, target: Target, together: int) -> bool:
    """Whether cp.async can copy the operands: the target has it, for accesses of these sizes; misaligned rows are
    copied as contiguous ranges.
    """
    sizes = [source.dtype.bytes * together for source in spec.sources]
    if not target.copies_async or not (spec.aligned or _is_flat(spec, together)):
        return False
    return all(size in ASYNC_BYTES for size in sizes)


def _is_flat(spec: ScanSpec, together: int) -> bool:
    """Whether a warp's rows are contiguous memory, each shorter than a cache line, with full accesses only."""
    lanes = spec.inner // together
    dense = not spec.strided
    narrow = spec.inner * spec.out.bytes < LINE_BYTES and spec.keeps_bytes
    full = together * spec.input.bytes == ACCESS_BYTES and lanes * together == spec.inner
    return dense and narrow and full and lanes & (lanes - 1) == 0


def is_narrow(spec: ScanSpec, target: Target) -> bool:
    """Whether all columns together are narrower than a cache line, so that lanes exchange rows to read full lines."""
    return spec.keeps_bytes and spec.inner * spec.out.bytes < LINE_BYTES and can_stage(spec, target, column_width(spec))


def register_rows(spec: ScanSpec, vector: int, *, apart: bool = False, few: bool = False) -> int:
    """Rows of a thread that pass through its registers, of which it has 128."""
    sizes = [source.dtype.bytes for source in spec.sources]
    loaded = sum(max(4, size) if apart else size for size in sizes)  # an item that is read alone takes a whole register
    realigned = not spec.aligned and vector > 1 and not apart  # two accesses a row
    loaded = loaded * 5 // 6 if realigned else loaded * 3 // 4
    state_bytes, rows = fragments(spec).held_bytes, ROWS
    most = ROW_BYTES if state_bytes <= WIDE_STATE else WIDE_ROW_BYTES
    while rows * vector * max(state_bytes, loaded) > most:
        rows //= 2
    if not spec.alone and few and not realigned:
        rows -= rows // 4  # status word addresses take registers too: int8 to int64 spills 32 to 88 bytes with 16 rows
    if realigned:
        rows -= (
            rows // 4
        )  # and so do the ends of operands. 64 x 4096 x 1024, 2 items off: 0.90 with 12 rows, with 16 0.50
    return max(1, rows)


def odd_rows(spec: ScanSpec, vector: int, most: int) -> int:
    """Rows of a thread that passes them to its neighbours: odd, to avoid bank conflicts."""
    fitting = NARROW_BYTES // (vector * fragments(spec).held_bytes)
    return min(most, max(1, (fitting - 1) | 1))


def is_pair(spec: ScanSpec) -> bool:
    """Whether a state is a small pair to which an element is appended in two operations, as of a recurrence."""
    operator = spec.operator
    cheap = bool(operator.append) and not (operator.costly or operator.own or operator.extend)
    plain = spec.mask is None and spec.aligned and not spec.by_offsets
    return cheap and plain and spec.keeps_bytes and spec.out.bytes <= 8


def is_costly(spec: ScanSpec) -> bool:
    """Whether a combine takes dozens of instructions, on plain columns of 2 or 4 bytes an item."""
    plain = spec.mask is None and spec.segments is None and spec.aligned and spec.keeps_bytes
    return plain and spec.operator.costly and spec.out.bytes in (2, 4) and not spec.operator.own
