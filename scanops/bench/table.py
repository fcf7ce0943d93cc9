"""The table: the cells that are named one by one, with the floor and the goal of each; and the floors of other rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scanops.bench.cells import Cell, Shape, rows_of

__all__ = ["LENGTHS", "row_floor", "table"]

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
LENGTHS = frozenset(length for _, lengths, _, _ in _ROWS for length in lengths)
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


def table() -> Iterator[Cell]:
    """Every cell of it."""
    for cell in _cells():
        yield replace(cell, quick=cell.name in _QUICK, compiled=cell.name in _COMPILED)


def _cells() -> Iterator[Cell]:
    group = "table"
    for family, lengths, floor, goal in _ROWS:
        for length in lengths:
            yield Cell(group=group, family=family, variant="sum", shape=rows_of(length), floor=floor, goal=goal)
    for family, shape, dim, floor, goal in _SHAPES:
        yield Cell(group=group, family=family, variant="sum", shape=shape, dim=dim, floor=floor, goal=goal)
    for family, variants, length, floor, goal in _TYPES:
        for variant in variants:
            yield Cell(group=group, family=family, variant=variant, shape=rows_of(length), floor=floor, goal=goal)
    for variant, dim, floor_ms, goal_ms in _ORIGIN:
        shape = (32768, 32768)
        yield Cell(
            group=group, family="origin problems", variant=variant, shape=shape, dim=dim,
            floor_ms=floor_ms, goal_ms=goal_ms,
        )  # fmt: skip
    for shape, floor_us in _SMALL:
        yield Cell(
            group=group, family="small inputs", variant="sum", shape=shape,
            floor_ms=floor_us / 1e3, goal_over_copy_ms=_SMALL_GOAL_MS,
        )  # fmt: skip


# What the table does not name is held to its class:
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
