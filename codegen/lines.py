"""Which tensors count as few lines, and which lengths share a kernel.

Separate from the planner, so that a call on a built kernel imports no planner.
"""

from __future__ import annotations

from dataclasses import replace

from scanops.codegen.kernel_key import FEW, MANY, KernelKey, Variant
from scanops.codegen.layouts import ADJACENT
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import WARP
from scanops.errors import UnsupportedRequest

PANEL_LINES = 32  # adjacent lines per block where tiles are transposed
SPLIT_LENGTH = 8192  # below this one block scans a row in less time than blocks take to exchange totals
# Up to so many items, too, where a block's registers hold them. H200, us by one block a row and by several: sum,
# 100 x 8192, 5.3 and 6.9, 100 x 16384, 7.2 and 8.4; 1 x 16384, 5.1 and 5.2; 1 x 32768, 7.2 and 5.3.
ONE_BLOCK = 16384
LINE_BYTES = 128  # of a cache line, which is fetched together
COLUMN_LENGTH = 1024  # up to this length a column is a few tiles, which one block walks
THREAD_STATES = 4  # of a line in a thread
FEW_THREADS = 384  # of a multiprocessor: a scan with states that has fewer is planned for few lines
# In all rows, and in rows of more than LONG items: above it persistent blocks are faster. H200, us by them and by a
# block for each tile: sum, 100 x 65536, 19.7 and 17.6, 30 x 262144, 21.3 and 20.9, 6 x 1048576, 21.0 and 18.9;
# recurrences in bfloat16 18.9 and 16.9, 19.3 and 21.1, 20.2 and 18.8; with gradients, 1 x 4402295, 53 and 73.
FEW_ITEMS, FEW_LONG_ITEMS, LONG = 2**23, 2**22, 2**20


def choose_variant(spec: ScanSpec, lines: int, multiprocessors: int) -> Variant:
    """Return the variant of the kernel for so many lines.

    Lines are few if they would leave the GPU idle with one block per line, or per 64 columns. Transposed ones are if
    their column tiles would leave half of it idle, so that items are read one by one instead. Where no plan would
    differ they are many, so that one kernel serves both; but for rows of SPLIT_LENGTH to ONE_BLOCK items, of which only
    the registers of a block decide whether few have another. Where the length is an argument, lines are few if those
    of some length are.
    """
    return FEW if _are_few(spec, lines, multiprocessors) else MANY


def _are_few(spec: ScanSpec, lines: int, multiprocessors: int) -> bool:
    if spec.ragged:
        return False
    if spec.states:
        return lines * lanes_of(spec.states) < multiprocessors * FEW_THREADS
    if spec.input_layout == "transposed":
        return lines < PANEL_LINES * multiprocessors // 2
    if spec.inner > 1:
        # Short columns: 1 x 91 x 4096 by 128 small blocks has 0.25, by as many of all threads 0.37 (H200). Long ones: a
        # chain down each tile of 64 columns leaves 16 of them, 1 x 262144 x 1024, at 0.73 of a copy where totals of
        # groups have 0.82; 32 of them, 8 x 131072 x 256, at 0.87 and 0.88. Halves, a block of which holds up to 128
        # columns, leave the GPU idle longer: 13 x 9805 x 520 with offsets has 0.17 by a loop, 0.64 in tiles; narrow
        # ones, a block each, 35 x 5496 x 32, 0.65 and 0.80. Expressions and wide recurrences have as much by a loop;
        # logcumsumexp of float16, 91 x 4096 x 104, has 0.49 by a loop, 0.28 in tiles.
        halves = spec.out.bytes < 4 and not (spec.fusion or spec.operator.costly)
        narrow = spec.inner * spec.out.bytes < LINE_BYTES
        quarters = 4 if halves and narrow else 8 if halves and not spec.gate else 1  # of the multiprocessors
        quarters = 2 if spec.capacity <= COLUMN_LENGTH else quarters
        full = quarters * multiprocessors // 4
        column_tiles = lines // spec.inner * -(-spec.inner // 64)
        return column_tiles <= max(1, full) and spec.layouts <= ADJACENT
    length = spec.length or min(spec.capacity, SPLIT_LENGTH)
    most = FEW_ITEMS if length <= LONG else FEW_LONG_ITEMS
    return length >= SPLIT_LENGTH and lines < multiprocessors and lines * length <= most


def lanes_of(states: int) -> int:
    """Return the threads that share a line with so many states, each some four: a power of two up to a warp."""
    return min(WARP, 1 << (max(1, states // THREAD_STATES).bit_length() - 1))


def key_for(spec: ScanSpec, target: str, lines: int | None = None) -> KernelKey:
    """Return the key of the kernel for ``lines``; None stands for as many as fill the GPU.

    Raises UnsupportedRequest for an unknown target and for an impossible number of lines.
    """
    key = KernelKey(spec, target)
    if lines is None:
        return key
    check_lines(spec, lines)
    return key._replace(variant=choose_variant(spec, lines, key.architecture.multiprocessors))


def keys_for(spec: ScanSpec, target: str, lines: int | None = None) -> tuple[KernelKey, ...]:
    """Return the keys of the kernels that are built of ``spec``: of that for ``lines``, else one for each variant."""
    key = key_for(spec, target, spec.inner if lines is None else lines)
    return (key._replace(variant=MANY), key) if key.is_few and lines is None else (key,)


def check_lines(spec: ScanSpec, lines: int) -> None:
    """Raise UnsupportedRequest unless ``lines`` is a positive multiple of the adjacent columns of ``spec``."""
    if lines < 1 or lines % spec.inner:
        raise UnsupportedRequest(
            f"{spec} on {lines} lines",
            allowed=f"a positive multiple of {spec.inner}, the number of adjacent columns",
            value=f"lines={lines}",
            hint=f"pass {max(1, lines // spec.inner) * spec.inner} lines",
        )


# The longest lines of kernels that take their length: one shape of a strategy serves all up to there.
BUCKETS = (
    128,  # one access per lane, in as many lanes as hold the row
    256,  # two
    512,  # four
    1024,  # up to 4 accesses per thread: many small blocks
    2048,  # likewise; longer masked rows need 11
    8192,  # up to 11
    32768,  # the most that the registers of a block hold
    2**30,  # tiles of rows, 32-bit positions
)
FILLED = 0.75  # of the lanes per row: 100 has 0.95 of the speed of its own kernel; 36, where 9 of 16 lanes read, 0.87
FEW_BUCKETS = (65536, 2**30)  # small tiles, large ones


def any_length(key: KernelKey) -> KernelKey:
    """Return the key of the variable-length kernel that serves what the kernel of ``key`` does.

    >>> print(any_length(KernelKey(ScanSpec(op="sum", dtype="float32", length=1000), "sm_90")))
    sum-f32-any-le1024-by4 for sm_90

    A gradient that recomputes forward results exists for fixed lengths only: its key is returned as is.
    """
    spec = key.spec
    if spec.recomputes:
        return key
    length = spec.capacity
    buckets = FEW_BUCKETS if key.is_few and spec.inner == 1 and spec.input_layout != "transposed" else BUCKETS
    any_spec = replace(
        spec,
        length=None,
        at_most=next((bucket for bucket in buckets if length <= bucket), None),
        # Rows that all start on an access boundary need fewer guards.
        multiple=spec.access_items if _on_accesses(spec) else 1,
    )
    return key._replace(spec=any_spec)


def _on_accesses(spec: ScanSpec) -> bool:
    """Whether rows start on access boundaries and, if short, fill the lanes that read them."""
    accesses, rest = divmod(spec.capacity, spec.access_items)
    if rest or not spec.aligned:
        return False
    if spec.inner > 1:
        return spec.input_layout == "transposed"  # its columns are contiguous
    return accesses > WARP or accesses >= FILLED * (1 << (accesses - 1).bit_length())
