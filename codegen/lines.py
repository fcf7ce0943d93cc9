"""Many lines or few, and which lengths share a kernel: what of a tensor's shape a spec keeps.

Apart from the planner, so that a call on a kernel that is already built loads no plan.
"""

from __future__ import annotations

from dataclasses import replace

from scanops.codegen.spec import ScanSpec

WARP = 32  # lanes
WHOLE_BYTES = 64  # that lie side by side: what memory reads at once

PANEL_LINES = 32  # neighbouring lines that a block scans where the input is transposed

__all__ = [
    "BUCKETS",
    "COLUMN_LENGTH",
    "FEW_BUCKETS",
    "FEW_ITEMS",
    "PANEL_LINES",
    "SPLIT_LENGTH",
    "WHOLE_BYTES",
    "any_length",
    "are_few",
    "fill_panels",
]

SPLIT_LENGTH = 8192  # a row below this is read by one block in less time than blocks take to exchange totals
COLUMN_LENGTH = 1024  # a column up to here is a few tiles of a block, which walks them alone
FEW_ITEMS = 2**22  # of all rows together: beyond it tiles walked by persistent blocks win, 17 us as against 21 (H200)


def are_few(lines: int, length: int, inner: int, multiprocessors: int) -> bool:
    """Whether this many lines leave a GPU idle when each is one block's, or one of 64 columns of a block.

    False where no plan would differ, so that one kernel serves.
    """
    if inner > 1:
        # A chain down each panel of 64 columns leaves 16 of them, 1 x 262144 x 1024, at 0.73 of a copy where totals of
        # groups have 0.82; 32 of them, 8 x 131072 x 256, at 0.87 and 0.88 (H200).
        return length > COLUMN_LENGTH and lines // inner * -(-inner // 64) <= max(1, multiprocessors // 4)
    return length >= SPLIT_LENGTH and lines < multiprocessors and lines * length <= FEW_ITEMS


def fill_panels(lines: int, multiprocessors: int) -> bool:
    """Whether panels of neighbouring lines keep half of a GPU busy: a transposed input is walked panel by panel."""
    return lines >= PANEL_LINES * multiprocessors // 2


# The longest lines of kernels that take their length: one shape of a strategy serves all up to there.
BUCKETS = (
    128,  # an access a lane, in as many lanes as hold the row
    256,  # two
    512,  # four
    1024,  # up to 4 accesses a thread of a block: small blocks, many of them
    2048,  # likewise, where masked rows that are longer want 11
    8192,  # up to 11
    32768,  # the most that the registers of a block hold
    2**30,  # tiles of rows, positions of 32 bits
)
FILLED = 0.75  # of the lanes a row: 100 has 0.95 of what its own kernel has, 36, where 9 lanes of 16 read, 0.87
FEW_BUCKETS = (65536, 2**30)  # small tiles, large ones


def any_length(spec: ScanSpec) -> ScanSpec:
    """The spec of the kernel that takes the length of ``spec`` with others, as an argument.

    >>> any_length(ScanSpec(op="sum", dtype="float32", length=1000)).slug
    'sum-f32-any-le1024-by4'

    What is scanned twice is one tile of a block, made for its length: that spec is its own.
    """
    if spec.again:
        return spec
    length = spec.capacity
    buckets = FEW_BUCKETS if spec.lines == "few" and spec.inner == 1 else BUCKETS
    return replace(
        spec,
        length=None,
        at_most=next((bucket for bucket in buckets if length <= bucket), None),
        # Rows that all begin on the boundary of an access need fewer questions asked; so do rows that do not.
        multiple=spec.access_items if _on_accesses(spec) else 1,
    )


def _on_accesses(spec: ScanSpec) -> bool:
    """Whether rows begin on accesses and, when short, fill the lanes that make them."""
    accesses, rest = divmod(spec.capacity, spec.access_items)
    if rest or not spec.aligned:
        return False
    if spec.inner > 1:
        return spec.input_layout == "transposed"  # its columns are what lies together
    return accesses > WARP or accesses >= FILLED * (1 << (accesses - 1).bit_length())
