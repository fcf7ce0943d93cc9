"""What is measured, and the floor and the goal of each cell: the one definition of the grid.

No torch here: programs that only plan or build walk the same cells.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from scanops.codegen.dtypes import DType, dtype_named, scan_result
from scanops.errors import UnsupportedRequest

__all__ = ["GROUPS", "ITEMS", "VARIANTS", "Cell", "Variant", "cells", "row_floor", "select"]

ITEMS = 2**28  # of a large tensor: 1 GiB of float32, some twenty times an L2
RANDOM_LENGTHS = 200
LONGEST_RANDOM = 200_000
SLACK = 0.02  # below its class's floor, for what the table does not name
WORST_RANDOM = 0.90  # of a copy: the least that any length may have
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is computed, apart from the shape."""

    op: str = "sum"
    dtype: str = "float32"
    masked: bool = False  # by a bool mask
    reverse: bool = False
    exclusive: bool = False

    @property
    def input(self) -> DType:
        """The input's row of the dtype table."""
        return dtype_named(self.dtype)

    @property
    def output(self) -> DType:
        """The output's: what torch's cumsum gives."""
        return scan_result(self.input)

    @property
    def item_bytes(self) -> int:
        """Read and written for each item."""
        return self.input.bytes + self.output.bytes + self.masked

    @property
    def plain(self) -> bool:
        """Forward, inclusive, not masked."""
        return not (self.masked or self.reverse or self.exclusive)


VARIANTS: dict[str, Variant] = {
    "sum": Variant(),
    "prod": Variant(op="prod"),
    "reverse": Variant(reverse=True),
    "exclusive": Variant(exclusive=True),
    "masked": Variant(masked=True),
    "prod_masked_reverse_exclusive": Variant(op="prod", masked=True, reverse=True, exclusive=True),
    "sum_bf16": Variant(dtype="bfloat16"),
    "sum_f16": Variant(dtype="float16"),
    "sum_f64": Variant(dtype="float64"),
    "sum_i64": Variant(dtype="int64"),
    "sum_i8": Variant(dtype="int8"),
    "sum_b8": Variant(dtype="bool"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement. Bars are fractions of the time of a copy of the same bytes, or milliseconds."""

    group: str  # a key of GROUPS
    family: str  # the row of the table it stands in, or is held to
    variant: str  # a key of VARIANTS
    shape: Shape
    dim: int
    floor: float | None = None  # fraction of a copy
    goal: float | None = None
    floor_ms: float | None = None  # where the floor is a time
    goal_ms: float | None = None
    goal_over_copy_ms: float | None = None  # where the goal is the copy's time and this much
    strides: Shape | None = None  # of the input, in elements; None: contiguous
    offset: int = 0  # of the input in its storage, elements
    view: str = ""  # the input's layout in words
    quick: bool = False  # measured by --quick
    compiled: bool = False  # measured under torch.compile too, whose builds take seconds each

    @property
    def name(self) -> str:
        """Unique in the grid: ``sum 8192x32768 dim 1``."""
        words = [self.variant, "x".join(map(str, self.shape)), f"dim {self.dim}"]
        words += [f"offset {self.offset}"] if self.offset else []
        words += [self.view] if self.view else []
        return " ".join(words)

    @property
    def what(self) -> Variant:
        """The variant's row."""
        return VARIANTS[self.variant]

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """That a scan has to move: each item read once and written once."""
        return self.items * self.what.item_bytes

    @property
    def outer(self) -> int:
        """Product of the sizes before ``dim``."""
        return math.prod(self.shape[: self.dim])

    @property
    def length(self) -> int:
        """Of a scanned line."""
        return self.shape[self.dim]

    @property
    def inner(self) -> int:
        """Product of the sizes after ``dim``."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def dense(self) -> bool:
        """Whether the input is contiguous."""
        return self.strides is None

    def bars(self, copy_ms: float) -> tuple[float, float | None]:
        """(floor, goal) as fractions of a copy that took this long."""
        floor = self.floor if self.floor is not None else copy_ms / (self.floor_ms or math.inf)
        if self.goal_ms is not None:
            return floor, copy_ms / self.goal_ms
        if self.goal_over_copy_ms is not None:
            return floor, copy_ms / (copy_ms + self.goal_over_copy_ms)
        return floor, self.goal


def _rows(length: int, items: int = ITEMS) -> Shape:
    return (max(1, items // length), length)


# ---- the table ----

# (family, row lengths, floor, goal): float32 sums
_ROWS: tuple[tuple[str, tuple[int, ...], float, float], ...] = (
    ("rows of 4 to 256, powers of two", (4, 16, 64, 128, 256), 0.99, 1.00),
    ("rows of 1 to 100", (1, 2, 3, 5, 7, 31, 100), 0.98, 1.00),
    ("rows of 127 to 500", (127, 255, 257), 0.97, 0.99),
    ("rows of 127 to 500", (200, 383, 500), 0.985, 0.99),
    ("rows of 512 to 8192", (512, 1000, 1001, 1024, 2048, 4096, 8192), 0.99, 1.00),
    ("rows of 16384 to 65536", (16384,), 0.975, 0.99),
    ("rows of 16384 to 65536", (32768,), 0.98, 0.99),
    ("rows of 16384 to 65536", (65536,), 0.97, 0.99),
    ("odd rows of 4097 to 65535", (4097,), 0.98, 0.99),
    ("odd rows of 4097 to 65535", (8191,), 0.985, 0.99),
    ("odd rows of 4097 to 65535", (32767,), 0.965, 0.98),
    ("odd rows of 4097 to 65535", (65535,), 0.95, 0.98),
)
# (family, shape, dim, floor, goal): float32 sums
_SHAPES: tuple[tuple[str, Shape, int, float, float], ...] = (
    ("rows split over blocks", (256, 1048576), 1, 0.975, 0.985),
    ("rows split over blocks", (16, 16777216), 1, 0.975, 0.985),
    ("rows split over blocks", (1, 2**29), 1, 0.975, 0.985),
    ("middle dims", (1, 32768, 8192), 1, 0.945, 0.975),
    ("middle dims", (64, 4096, 1024), 1, 0.95, 0.975),
    ("middle dims", (1024, 4096, 64), 1, 0.955, 0.975),
    ("middle dims", (4096, 4096, 16), 1, 0.96, 0.975),
    ("middle dims", (16384, 4096, 4), 1, 0.965, 0.98),
    ("middle dims", (256, 1024, 1024), 1, 0.97, 0.98),
    ("middle dims", (1, 4194304, 64), 1, 0.88, 0.95),
)
# (family, variants, row length, floor, goal)
_TYPES: tuple[tuple[str, tuple[str, ...], int, float, float], ...] = (
    ("rows of half types", ("sum_bf16", "sum_f16"), 1024, 0.99, 1.00),
    ("rows of half types", ("sum_bf16", "sum_f16"), 32768, 0.97, 0.985),
    ("rows of 64-bit types", ("sum_f64", "sum_i64"), 1024, 0.99, 1.00),
    ("rows of 64-bit types", ("sum_f64", "sum_i64"), 32768, 0.97, 0.985),
    ("int8 and bool to int64", ("sum_i8", "sum_b8"), 1024, 0.95, 0.98),
    ("int8 and bool to int64", ("sum_i8", "sum_b8"), 32768, 0.95, 0.98),
    ("masked rows", ("masked",), 32768, 0.985, 0.99),
)
# (variant, dim, floor in ms, goal in ms): the problems the project began with, at 32768 x 32768
_ORIGIN: tuple[tuple[str, int, float, float], ...] = (
    ("sum", 1, 2.04, 2.02),
    ("prod", 1, 2.04, 2.02),
    ("reverse", 1, 2.04, 2.02),
    ("exclusive", 1, 2.04, 2.02),
    ("masked", 1, 2.29, 2.27),
)
# (shape, floor in microseconds); the goal is a copy and 2 us
_SMALL: tuple[tuple[Shape, float], ...] = (
    ((1, 2**16), 7.2),
    ((1, 2**18), 8.3),
    ((1, 2**20), 10.4),
    ((1, 2**22), 17.6),
    ((1, 2**24), 45.0),
    ((64, 65536), 16.6),
    ((8, 1048576), 28.0),
)
_SMALL_GOAL_MS = 0.002

# One or two of each family: enough to see that all is well in a minute.
_QUICK = frozenset(
    {
        *("sum 67108864x4 dim 1", "sum 8659208x31 dim 1", "sum 1044495x257 dim 1", "sum 262144x1024 dim 1"),
        *("sum 65520x4097 dim 1", "sum 8192x32768 dim 1", "sum 256x1048576 dim 1", "sum 64x4096x1024 dim 1"),
        *("sum 1024x4096x64 dim 1", "sum_bf16 262144x1024 dim 1", "sum_i8 8192x32768 dim 1"),
        *("sum 32768x32768 dim 1", "masked 32768x32768 dim 1", "sum 1x65536 dim 1", "sum 64x65536 dim 1"),
    }
)
# What torch.compile is measured on: each family, at the lengths where its generated code differs.
_COMPILED = frozenset(
    {
        *("sum 67108864x4 dim 1", "sum 4194304x64 dim 1", "sum 1044495x257 dim 1", "sum 262144x1024 dim 1"),
        *("sum 32768x8192 dim 1", "sum 65520x4097 dim 1", "sum 8192x32768 dim 1", "sum 4096x65536 dim 1"),
        *("sum 256x1048576 dim 1", "sum 1x536870912 dim 1", "sum 64x4096x1024 dim 1", "sum 256x1024x1024 dim 1"),
        *("sum_bf16 8192x32768 dim 1", "sum_f64 8192x32768 dim 1", "sum_i8 8192x32768 dim 1"),
        *("masked 8192x32768 dim 1", "sum 1x1048576 dim 1", "sum 1x16777216 dim 1", "sum 64x65536 dim 1"),
        *(f"{variant} 32768x32768 dim 1" for variant, *_ in _ORIGIN),
    }
)


def _table(_: int) -> Iterator[Cell]:
    for family, lengths, floor, goal in _ROWS:
        for length in lengths:
            yield _cell("table", family, "sum", _rows(length), floor=floor, goal=goal)
    for family, shape, dim, floor, goal in _SHAPES:
        yield _cell("table", family, "sum", shape, dim, floor=floor, goal=goal)
    for family, variants, length, floor, goal in _TYPES:
        for variant in variants:
            yield _cell("table", family, variant, _rows(length), floor=floor, goal=goal)
    for variant, dim, floor_ms, goal_ms in _ORIGIN:
        yield _cell("table", "origin problems", variant, (32768, 32768), dim, floor_ms=floor_ms, goal_ms=goal_ms)
    for shape, floor_us in _SMALL:
        yield _cell("table", "small inputs", "sum", shape, floor_ms=floor_us / 1e3, goal_over_copy_ms=_SMALL_GOAL_MS)


def _cell(
    group: str,
    family: str,
    variant: str,
    shape: Shape,
    dim: int = 1,
    *,
    floor: float | None = None,
    goal: float | None = None,
    floor_ms: float | None = None,
    goal_ms: float | None = None,
    goal_over_copy_ms: float | None = None,
    strides: Shape | None = None,
    offset: int = 0,
    view: str = "",
) -> Cell:
    cell = Cell(
        group=group,
        family=family,
        variant=variant,
        shape=shape,
        dim=dim,
        floor=floor,
        goal=goal,
        floor_ms=floor_ms,
        goal_ms=goal_ms,
        goal_over_copy_ms=goal_over_copy_ms,
        strides=strides,
        offset=offset,
        view=view,
    )
    listed = group == "table"
    return replace(cell, quick=listed and cell.name in _QUICK, compiled=listed and cell.name in _COMPILED)


# ---- what the table does not name ----

# (longest row of the class, floor where 16-byte accesses divide a row of 4-byte items, floor where they do not)
_CLASSES: tuple[tuple[int, float, float], ...] = (
    (126, 0.98, 0.98),
    (299, 0.985, 0.97),
    (511, 0.985, 0.985),
    (4096, 0.99, 0.99),
    (8192, 0.99, 0.98),
    (16384, 0.975, 0.965),
    (32768, 0.98, 0.965),
    (65536, 0.97, 0.95),
    (2**31, 0.97, 0.95),
)


def row_floor(length: int) -> float:
    """The floor of the class that rows of ``length`` belong to."""
    for row in _ROWS:
        if length in row[1]:
            return row[2]
    for longest, whole, ragged in _CLASSES:
        if length <= longest:
            return ragged if length % 4 else whole
    raise AssertionError(length)


def _random(seed: int) -> Iterator[Cell]:
    listed = {length for _, lengths, _, _ in _ROWS for length in lengths}
    free = [length for length in range(1, LONGEST_RANDOM + 1) if length not in listed]
    lengths = random.Random(seed).sample(free, RANDOM_LENGTHS)
    for length in sorted(lengths):
        yield _cell("random", "rows of random lengths", "sum", _rows(length), floor=row_floor(length) - SLACK)


# (shape, dim, class's floor): one of each strategy
_REPRESENTATIVE: tuple[tuple[Shape, int, float], ...] = (
    (_rows(4), 1, 0.99),
    (_rows(31), 1, 0.98),
    (_rows(257), 1, 0.97),
    (_rows(1024), 1, 0.99),
    (_rows(4097), 1, 0.98),
    (_rows(8192), 1, 0.99),
    (_rows(32768), 1, 0.98),
    (_rows(65535), 1, 0.95),
    ((256, 1048576), 1, 0.975),
    ((1, 2**29), 1, 0.975),
    ((64, 4096, 1024), 1, 0.95),
    ((4096, 4096, 16), 1, 0.96),
    ((16384, 4096, 4), 1, 0.965),
    ((1, 4194304, 64), 1, 0.88),
)
_ALIKE = {
    "prod": "products",
    "reverse": "reverse sums",
    "exclusive": "exclusive sums",
    "masked": "masked sums",
    "prod_masked_reverse_exclusive": "masked reverse exclusive products",
}


def _variants(_: int) -> Iterator[Cell]:
    """Sum and product, forward and reverse, inclusive and exclusive, masked or not: held to the plain sum's floor."""
    listed = {(cell.variant, cell.shape, cell.dim) for cell in _table(0)}
    for variant, family in _ALIKE.items():
        for shape, dim, floor in _REPRESENTATIVE:
            if (variant, shape, dim) not in listed:
                yield _cell("variants", family, variant, shape, dim, floor=floor)


def _offsets(_: int) -> Iterator[Cell]:
    """The input starts 1 to 3 elements behind a 16-byte boundary."""
    family = "storage offsets of 1 to 3"
    for place, (shape, dim, floor) in enumerate(_REPRESENTATIVE):
        yield _cell("offsets", family, "sum", shape, dim, floor=floor - SLACK, offset=place % 3 + 1)
    for offset in (1, 2, 3):
        yield _cell("offsets", family, "sum", _rows(1000), floor=row_floor(1000) - SLACK, offset=offset)
    for variant, length, floor in (("sum_bf16", 1024, 0.99), ("sum_f64", 1024, 0.99), ("masked", 32768, 0.985)):
        yield _cell("offsets", family, variant, _rows(length), floor=floor - SLACK, offset=1)


def _views(_: int) -> Iterator[Cell]:
    """Transposed and sliced inputs: rows, columns or pieces of them are still runs of 64 bytes or more."""
    # (words, shape, dim, strides of the input, class's floor)
    rows: tuple[tuple[str, Shape, int, Shape, float], ...] = (
        ("every other row", (131072, 1024), 1, (2048, 1), 0.99),
        ("the first 1000 of rows of 1024", (262144, 1000), 1, (1024, 1), 0.99),
        ("the first 16 of rows of 64", (4194304, 16), 1, (64, 1), 0.99),
        ("the first 100 of rows of 127", (2097152, 100), 1, (127, 1), 0.98),
        ("the first 32768 of rows of 40000", (8192, 32768), 1, (40000, 1), 0.98),
        ("half of each of 256 rows", (256, 524288), 1, (1048576, 1), 0.97),
        ("the first 512 of 1024 columns", (64, 4096, 512), 1, (4096 * 1024, 1024, 1), 0.95),
        ("16 of 64 columns", (1024, 4096, 16), 1, (4096 * 64, 64, 1), 0.955),
        ("every other row of each matrix", (64, 2048, 1024), 1, (4096 * 1024, 2048, 1), 0.95),
        ("batches exchanged with rows", (4096, 64, 1024), 1, (1024, 4096 * 1024, 1), 0.97),
        ("transposed, rows become columns", (16384, 16384), 0, (1, 16384), 0.945),
        ("transposed, columns become rows", (16384, 16384), 1, (1, 16384), 0.975),
        ("transposed matrices of 1024", (256, 1024, 1024), 2, (1024 * 1024, 1, 1024), 0.97),
    )
    for view, shape, dim, strides, floor in rows:
        yield _cell(
            "views",
            "transposed and sliced inputs",
            "sum",
            shape,
            dim,
            floor=floor - SLACK,
            strides=strides,
            view=view,
        )


GROUPS = {"table": _table, "random": _random, "variants": _variants, "offsets": _offsets, "views": _views}


def cells(seed: int, groups: Iterable[str] = tuple(GROUPS)) -> list[Cell]:
    """Every cell of these groups; ``seed`` draws the random lengths."""
    asked = list(groups)
    if unknown := [name for name in asked if name not in GROUPS]:
        raise UnsupportedRequest(
            f"to measure the group {unknown[0]!r}",
            allowed=", ".join(GROUPS),
            value=repr(unknown[0]),
            hint="name groups as in --groups table,random",
        )
    return [cell for name in GROUPS if name in asked for cell in GROUPS[name](seed)]


def select(grid: list[Cell], *, text: str = "", quick: bool = False, quick_random: int = 20) -> list[Cell]:
    """The cells whose name or family contains ``text``; with ``quick`` a few of each group."""
    chosen = [cell for cell in grid if text in cell.name or text in cell.family]
    if quick:
        kept: list[Cell] = []
        for name in GROUPS:
            group = [cell for cell in chosen if cell.group == name]
            step = max(1, len(group) // quick_random)
            kept += [cell for cell in group if cell.quick] if name == "table" else group[::step][:quick_random]
        chosen = kept
    if not chosen:
        raise UnsupportedRequest(
            "to measure nothing",
            allowed="a part of the name of a cell or of its family, such as 'x1024 ', 'masked' or 'middle dims'",
            value=repr(text),
            hint="leave --filter out, or choose other --groups",
        )
    return chosen
