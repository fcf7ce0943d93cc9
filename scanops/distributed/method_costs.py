"""How long each method takes, in times of one GPU for its own shard: what ``method="auto"`` compares.

Where the memory is the bound, one pass takes the time of one GPU and, on the last rank, that of waiting for the ranks
before it: each falls behind by a *front*, the lines that a GPU scans at the same time. Two passes take the time of the
bytes that they move. What ranks exchange, and the host, are left out: both are the same for lines of any length, and
the choice must not depend on lengths, which differ between ranks.

Over several nodes the lines are cut into *bands*: while a node scans a band, the next node scans the one before. Each
band is a launch, so a band must take much longer than a launch and a message. This depends on the longest shard, which
ranks learn when they compare the first call of a kind. This part of the model has not been measured.

docs/distributed.md says which measured cells this fits, and which not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scanops.codegen.strategies.columns_lookback import LINKED_ABREAST

__all__ = ["Costs", "Load", "choose_bands", "compare_methods", "count_fronts"]

TILE_COLUMNS = 64  # neighbouring columns of a tile, of which LINKED_ABREAST end together
# (reads and writes of items, gates and results in the two passes, the same in one), in items
SUM_PASSES, RECURRENCE_PASSES = (3, 2), (5, 3)

BAND_SECONDS = 150e-6  # that a band takes at least: a launch and a message take 50 us of the host
BYTES_PER_SECOND = 3e12  # of a GPU's memory, to find out how long a band takes
MOST_BANDS = 64


class Costs(NamedTuple):
    """The time of each method, in times of one GPU for its shard; of no lines 0."""

    onepass: float
    twopass: float


def count_fronts(shape: Sequence[int], dim: int) -> int:
    """Return how often a GPU begins lines of a tensor together: each of them a row, or tiles of columns."""
    lines, columns = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    return lines if columns == 1 else lines * -(-columns // TILE_COLUMNS) // LINKED_ABREAST


class Load(NamedTuple):
    """What one rank's part of a call costs."""

    fronts: int
    most_bands: int  # that the lines can be cut into
    size: int  # bytes that one pass reads and writes on this rank
    is_recurrence: bool


def compare_methods(fronts: int, ranks: int, *, is_recurrence: bool, nodes: int = 1, bands: int = 1) -> Costs:
    """Return what each method costs for so many fronts on each of the ranks; with ``nodes``, ranks of each node."""
    both, one = RECURRENCE_PASSES if is_recurrence else SUM_PASSES
    if not fronts:
        return Costs(math.inf, both / one)
    of_band = fronts / bands
    return Costs((bands + nodes - 1) / bands * (of_band + ranks - 1) / of_band, both / one)


def choose_bands(load: Load, largest: int, ranks: int, nodes: int) -> tuple[int, Costs]:
    """Return the number of bands that takes the least time, and what the call costs then.

    ``largest``: the most bytes that one pass moves on any rank; ``ranks``: of a node at the most.
    """
    seconds = largest / BYTES_PER_SECOND
    most = min(load.most_bands, MOST_BANDS)
    each = {
        bands: compare_methods(load.fronts, ranks, is_recurrence=load.is_recurrence, nodes=nodes, bands=bands)
        for bands in range(1, most + 1)
        if bands == 1 or bands * BAND_SECONDS <= seconds
    }
    return min(each.items(), key=lambda item: item[1].onepass)
