"""operator x dtype x strategy x direction x inclusive x mask x carry x segments x layout: equal to the sequential scan.

    SCANOPS_MATRIX=6000 pytest tests/numbers/test_matrix.py -m gpu -n 16

Emulated, cells are dealt out so that every two values of any two axes meet in some cell, and every operator that is not
commutative meets every strategy in both directions. On a GPU there are ``SCANOPS_MATRIX`` cells: these, and others that
meet as many threes of values as so many can.
"""

from __future__ import annotations

import itertools
import os
from operator import itemgetter

import pytest
import torch

import scanops
from tests.numbers import matrix, oracle
from tests.numbers.covering import met_by
from tests.numbers.matrix import AXES, Cell

ON_A_GPU = int(os.environ.get("SCANOPS_MATRIX", "1600"))
SMALL = 20_000  # items that PyTorch's operators scan fast


def cells(most: int) -> list[Cell]:
    """As many cells, or those that the pairs take."""
    rows = matrix.covering().rows
    rows = matrix.covering_triples(most).rows if most > len(rows) else rows
    return [Cell(**row) for row in rows]


# Operands that are shifted in a ring, beside items past the end of the row, which decide how the others are computed.
_HELD = {"mask": "bool", "carry": "final", "segments": "none", "layout": "sparse"}
SHIFTED = Cell(route="any_wave_odd", op="logcumsumexp", dtype="int8", reverse="reverse", exclusive="exclusive", **_HELD)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("cell", [*cells(0), SHIFTED], ids=str)
def test_emulated(cell: Cell) -> None:
    """Every output and the carry-out, of the kernel and, where that takes no second, of PyTorch's operators."""
    given = matrix.operands(cell)
    wanted = matrix.expected(cell, given)
    with scanops.emulate(seed=cell.seed % 1000):
        oracle.compare(cell.op, matrix.run(cell, given), wanted)
    if given["x"].numel() < SMALL:
        oracle.compare(cell.op, matrix.call(cell, given), wanted)


# A row of two warps whose last runs reach into the next warp's part, with a carry-out for each of many sequences.
_ENDS = {"mask": "number", "carry": "final", "segments": "carried", "layout": "sparse"}
REACHING = Cell(
    route="any_transposed_rows", op="min", dtype="complex128", reverse="reverse", exclusive="exclusive", **_ENDS
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_in_any_order_of_threads(seed: int) -> None:
    """No two threads may store the same carry-out: which one is last depends on the schedule."""
    given = matrix.operands(REACHING)
    with scanops.emulate(seed=seed):
        oracle.compare(REACHING.op, matrix.run(REACHING, given), matrix.expected(REACHING, given))


@pytest.mark.gpu
@pytest.mark.parametrize("cell", cells(ON_A_GPU if torch.cuda.is_available() else 0), ids=str)
def test_on_a_gpu(cell: Cell) -> None:
    given = matrix.operands(cell)
    with matrix.small_gpu():
        oracle.compare(cell.op, matrix.run(cell, matrix.on_device(given, "cuda")), matrix.expected(cell, given))


def test_every_pair_of_values_meets() -> None:
    """As the planner has it, whatever strategy a route was meant for, in cells that take minutes."""
    found, axes = matrix.covering(), ("strategy", "length", *AXES)
    groups = [itemgetter(*group) for size in (2, 3) for group in itertools.combinations(sorted(axes), size)]
    met = {target for row in found.rows for target in met_by(matrix.settled(row) or {}, groups)}
    missing = [target for target in matrix.pairs() if target not in met]
    assert missing == found.missed == [] and len(found.rows) <= 400
