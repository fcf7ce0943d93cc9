"""What is measured: the groups of cells, the one definition of the grid.

No torch here: programs that only plan or build walk the same cells.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from scanops.bench.cells import Cell, Shape, rows_of
from scanops.bench.table import LENGTHS, row_floor, table
from scanops.errors import UnsupportedRequest

__all__ = ["GROUPS", "RANDOM_LENGTHS", "SLACK", "cells", "select"]

RANDOM_LENGTHS = 200
LONGEST_RANDOM = 200_000
SLACK = 0.02  # below its class's floor, for what the table does not name


def _table(_: int) -> Iterator[Cell]:
    return table()


def _random(seed: int) -> Iterator[Cell]:
    free = [length for length in range(1, LONGEST_RANDOM + 1) if length not in LENGTHS]
    lengths = random.Random(seed).sample(free, RANDOM_LENGTHS)
    for length in sorted(lengths):
        floor = row_floor(length) - SLACK
        yield Cell(group="random", family="rows of random lengths", variant="sum", shape=rows_of(length), floor=floor)


# (shape, dim, class's floor): one of each strategy
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
    """Sum and product, forward and reverse, inclusive and exclusive, masked or not: held to the plain sum's floor."""
    listed = {(cell.variant, cell.shape, cell.dim) for cell in table()}
    for variant, family in _ALIKE.items():
        for shape, dim, floor in _REPRESENTATIVE:
            if (variant, shape, dim) not in listed:
                yield Cell(group="variants", family=family, variant=variant, shape=shape, dim=dim, floor=floor)


def _offsets(_: int) -> Iterator[Cell]:
    """The input starts 1 to 3 elements behind a 16-byte boundary."""
    # (variant, shape, dim, class's floor, offset)
    placed = [("sum", *shaped, place % 3 + 1) for place, shaped in enumerate(_REPRESENTATIVE)]
    placed += [("sum", rows_of(1000), 1, row_floor(1000), offset) for offset in (1, 2, 3)]
    placed += [("sum_bf16", rows_of(1024), 1, 0.99, 1), ("sum_f64", rows_of(1024), 1, 0.99, 1)]
    placed += [("masked", rows_of(32768), 1, 0.985, 1)]
    for variant, shape, dim, floor, offset in placed:
        yield Cell(
            group="offsets", family="storage offsets of 1 to 3", variant=variant, shape=shape, dim=dim,
            floor=floor - SLACK, offset=offset,
        )  # fmt: skip


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
        yield Cell(
            group="views", family="transposed and sliced inputs", variant="sum", shape=shape, dim=dim,
            floor=floor - SLACK, strides=strides, view=view,
        )  # fmt: skip


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
