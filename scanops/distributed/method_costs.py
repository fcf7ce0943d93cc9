"""How long each method takes, in times of one GPU for its own shard: what ``method="auto"`` compares.

Where the memory is the bound, one pass takes the time of one GPU and, on the last rank, that of waiting for the ranks
before it: each falls behind by a *front*, the lines that a GPU scans at the same time. Two passes take the time of the
bytes that they move. What ranks exchange, and the host, are left out: both are the same for lines of any length, and
the choice must not depend on lengths, which differ between ranks.

docs/distributed.md says which measured cells this fits, and which not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.strategies.columns_lookback import LINKED_ABREAST

__all__ = ["Costs", "compare_methods", "count_fronts"]

TILE_COLUMNS = 64  # neighbouring columns of a tile, of which LINKED_ABREAST end together
# (reads and writes of items, gates and results in the two passes, the same in one), in items
SUM_PASSES, RECURRENCE_PASSES = (3, 2), (5, 3)


class Costs(NamedTuple):
    """The time of each method, in times of one GPU for its shard; of no lines 0."""

    onepass: float
    twopass: float


def count_fronts(shape: Sequence[int], dim: int) -> int:
    """Return how often a GPU begins lines of a tensor together: each of them a row, or tiles of columns."""
    lines, columns = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    return lines if columns == 1 else lines * -(-columns // TILE_COLUMNS) // LINKED_ABREAST


def compare_methods(fronts: int, ranks: int, *, is_recurrence: bool) -> Costs:
    """Return what each method costs for so many fronts on each of the ranks."""
    both, one = RECURRENCE_PASSES if is_recurrence else SUM_PASSES
    return Costs((fronts + ranks - 1) / fronts if fronts else math.inf, both / one)
