"""The grid: every cell, in groups, with the floor and the goal of each as fractions of a copy.

``table`` holds the cells that are named one by one; ``random`` row lengths drawn by a seed; ``variants`` sums and
products by direction, inclusiveness and mask; ``offsets`` inputs off the 16-byte boundary; ``views`` strided inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from benchmarks.cells import Cell, Shape, rows_of
from scanops.errors import UnsupportedRequest

__all__ = ["GROUPS", "RANDOM_LENGTHS", "SLACK", "cells", "row_floor", "select"]

RANDOM_LENGTHS = 200
LONGEST_RANDOM = 200_000
SLACK = 0.02  # what unnamed shapes, offsets and views may lose below the floor of their class


def _rows(family: str, floor: float, goal: float, *lengths: int, variants: tuple[str, ...] = ("sum",)) -> list[Cell]:
    """Return a cell for each length of large rows and each variant."""
    return [
        Cell(group="table", family=family, variant=variant, shape=rows_of(length), floor=floor, goal=goal)
        for length in lengths
        for variant in variants
    ]


def _shapes(family: str, goal: float, shapes: dict[Shape, float]) -> list[Cell]:
    """Return a cell for each shape, scanned along dimension 1, with its floor."""
    return [
        Cell(group="table", family=family, variant="sum", shape=shape, floor=floor, goal=goal)
        for shape, floor in shapes.items()
    ]


_HALVES, _WIDE, _NARROW = ("sum_bf16", "sum_f16"), ("sum_f64", "sum_i64"), ("sum_i8", "sum_b8")
_SUMS = (  # float32 sums along rows
    *_rows("rows of 4 to 256, powers of two", 0.99, 1.00, 4, 16, 64, 128, 256),
    *_rows("rows of 1 to 100", 0.98, 1.00, 1, 2, 3, 5, 7, 31, 100),
    *_rows("rows of 127 to 500", 0.97, 0.99, 127, 255, 257),
    *_rows("rows of 127 to 500", 0.985, 0.99, 200, 383, 500),
    *_rows("rows of 512 to 8192", 0.99, 1.00, 512, 1000, 1001, 1024, 2048, 4096, 8192),
    *_rows("rows of 16384 to 65536", 0.975, 0.99, 16384),
    *_rows("rows of 16384 to 65536", 0.98, 0.99, 32768),
    *_rows("rows of 16384 to 65536", 0.97, 0.99, 65536),
    *_rows("odd rows of 4097 to 65535", 0.98, 0.99, 4097),
    *_rows("odd rows of 4097 to 65535", 0.985, 0.99, 8191),
    *_rows("odd rows of 4097 to 65535", 0.965, 0.98, 32767),
    *_rows("odd rows of 4097 to 65535", 0.95, 0.98, 65535),
)
LENGTHS = {cell.length: cell for cell in _SUMS}
_ORIGIN = {"sum": (2.04, 2.02), "prod": (2.04, 2.02), "reverse": (2.04, 2.02), "exclusive": (2.04, 2.02)}
_ORIGIN["masked"] = (2.29, 2.27)  # floor and goal in ms: float32, 32768 x 32768
_SMALL = {  # shape: floor in microseconds; the goal is a copy and 2 us
    **{(1, 2**16): 7.2, (1, 2**18): 8.3, (1, 2**20): 10.4, (1, 2**22): 17.6, (1, 2**24): 45.0},
    **{(64, 65536): 16.6, (8, 1048576): 28.0},
}
_SMALL_GOAL_MS = 0.002
_CELLS = (
    *_SUMS,
    *_shapes("rows split over blocks", 0.985, {(256, 1048576): 0.975, (16, 16777216): 0.975, (1, 2**29): 0.975}),
    *_shapes("middle dims", 0.975, {(1, 32768, 8192): 0.945, (64, 4096, 1024): 0.95, (1024, 4096, 64): 0.955}),
    *_shapes("middle dims", 0.975, {(4096, 4096, 16): 0.96}),
    *_shapes("middle dims", 0.98, {(16384, 4096, 4): 0.965, (256, 1024, 1024): 0.97}),
    *_shapes("middle dims", 0.95, {(1, 4194304, 64): 0.88}),
    *_rows("rows of half types", 0.99, 1.00, 1024, variants=_HALVES),
    *_rows("rows of half types", 0.97, 0.985, 32768, variants=_HALVES),
    *_rows("rows of 64-bit types", 0.99, 1.00, 1024, variants=_WIDE),
    *_rows("rows of 64-bit types", 0.97, 0.985, 32768, variants=_WIDE),
    *_rows("int8 and bool to int64", 0.95, 0.98, 1024, 32768, variants=_NARROW),
    *_rows("masked rows", 0.985, 0.99, 32768, variants=("masked",)),
    *(
        Cell(
            group="table",
            family="origin problems",
            variant=variant,
            shape=(32768, 32768),
            floor_ms=floor_ms,
            goal_ms=goal_ms,
        )
        for variant, (floor_ms, goal_ms) in _ORIGIN.items()
    ),
    *(
        Cell(
            group="table",
            family="small inputs",
            variant="sum",
            shape=shape,
            floor_ms=floor_us / 1e3,
            goal_over_copy_ms=_SMALL_GOAL_MS,
        )
        for shape, floor_us in _SMALL.items()
    ),
)
# One or two of each family, measured in about a minute.
_QUICK = frozenset(
    {
        *("sum 67108864x4 dim 1", "sum 8659208x31 dim 1", "sum 1044495x257 dim 1", "sum 262144x1024 dim 1"),
        *("sum 65520x4097 dim 1", "sum 8192x32768 dim 1", "sum 256x1048576 dim 1", "sum 64x4096x1024 dim 1"),
        *("sum 1024x4096x64 dim 1", "sum_bf16 262144x1024 dim 1", "sum_i8 8192x32768 dim 1"),
        *("sum 32768x32768 dim 1", "masked 32768x32768 dim 1", "sum 1x65536 dim 1", "sum 64x65536 dim 1"),
    }
)
# Measured under torch.compile too: each family, at the lengths where its generated code differs.
_COMPILED = frozenset(
    {
        *("sum 67108864x4 dim 1", "sum 4194304x64 dim 1", "sum 1044495x257 dim 1", "sum 262144x1024 dim 1"),
        *("sum 32768x8192 dim 1", "sum 65520x4097 dim 1", "sum 8192x32768 dim 1", "sum 4096x65536 dim 1"),
        *("sum 256x1048576 dim 1", "sum 1x536870912 dim 1", "sum 64x4096x1024 dim 1", "sum 256x1024x1024 dim 1"),
        *("sum_bf16 8192x32768 dim 1", "sum_f64 8192x32768 dim 1", "sum_i8 8192x32768 dim 1"),
        *("masked 8192x32768 dim 1", "sum 1x1048576 dim 1", "sum 1x16777216 dim 1", "sum 64x65536 dim 1"),
        *(f"{variant} 32768x32768 dim 1" for variant in _ORIGIN),
    }
)


def _table(_: int = 0) -> Iterator[Cell]:
    """Yield the cells that are named one by one."""
    for cell in _CELLS:
        yield replace(cell, quick=cell.name in _QUICK, compiled=cell.name in _COMPILED)


# Lengths that the table does not name are held to their class:
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
    """Return the floor of rows of ``length``: the table's, else that of their class."""
    if length in LENGTHS and (floor := LENGTHS[length].floor):
        return floor
    for longest, whole, ragged in _CLASSES:
        if length <= longest:
            return ragged if length % 4 else whole
    raise AssertionError(length)


def _random(seed: int) -> Iterator[Cell]:
    free = [length for length in range(1, LONGEST_RANDOM + 1) if length not in LENGTHS]
    lengths = random.Random(seed).sample(free, RANDOM_LENGTHS)
    for length in sorted(lengths):
        floor = row_floor(length) - SLACK
        yield Cell(group="random", family="rows of random lengths", variant="sum", shape=rows_of(length), floor=floor)


# (shape, dim, floor of its class): one shape of each strategy
_REPRESENTATIVE: tuple[tuple[Shape, int, float], ...] = (
    (rows_of(4), 1, 0.99),
    (rows_of(31), 1, 0.98),
    (rows_of(257), 1, 0.97),
    (rows_of(1024), 1, 0.99),
    (rows_of(4097), 1, 0.98),
    (rows_of(8192), 1, 0.99),
    (rows_of(32768), 1, 0.98),
    (rows_of(65535), 1, 0.95),
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
    """Yield sums and products of each direction, inclusiveness and mask, held to the floor of the plain sum."""
    listed = {(cell.variant, cell.shape, cell.dim) for cell in _table()}
    for variant, family in _ALIKE.items():
        for shape, dim, floor in _REPRESENTATIVE:
            if (variant, shape, dim) not in listed:
                yield Cell(group="variants", family=family, variant=variant, shape=shape, dim=dim, floor=floor)


def _offsets(_: int) -> Iterator[Cell]:
    """Yield inputs that start 1 to 3 elements behind a 16-byte boundary."""
    # (variant, shape, dim, class's floor, offset)
    placed = [("sum", *shaped, place % 3 + 1) for place, shaped in enumerate(_REPRESENTATIVE)]
    placed += [("sum", rows_of(1000), 1, row_floor(1000), offset) for offset in (1, 2, 3)]
    placed += [("sum_bf16", rows_of(1024), 1, 0.99, 1), ("sum_f64", rows_of(1024), 1, 0.99, 1)]
    placed += [("masked", rows_of(32768), 1, 0.985, 1)]
    for variant, shape, dim, floor, offset in placed:
        yield Cell(
            group="offsets",
            family="storage offsets of 1 to 3",
            variant=variant,
            shape=shape,
            dim=dim,
            floor=floor - SLACK,
            offset=offset,
        )


def _views(_: int) -> Iterator[Cell]:
    """Yield transposed and sliced inputs whose contiguous runs have at least 64 bytes."""
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
        yield Cell(
            group="views",
            family="transposed and sliced inputs",
            variant="sum",
            shape=shape,
            dim=dim,
            floor=floor - SLACK,
            strides=strides,
            view=view,
        )


GROUPS: dict[str, Callable[[int], Iterator[Cell]]] = {
    "table": _table,
    "random": _random,
    "variants": _variants,
    "offsets": _offsets,
    "views": _views,
}


def cells(seed: int, groups: Iterable[str] = tuple(GROUPS)) -> list[Cell]:
    """Return every cell of these groups; ``seed`` draws the random lengths."""
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
    """Return the cells whose name or family contains ``text``; with ``quick`` only a few of each group."""
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
