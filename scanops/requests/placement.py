"""Where the scanned dimension of a call is: in this process, or sharded over ranks, as an open block says.

``scanops.distributed.sharded`` opens a block; public functions ask for the placement and pass it on. Nothing else of
that package is known here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from scanops.requests.checks import whole_dim
from scanops.requests.sharding import Sharding

__all__ = ["OPEN", "Placement", "find_placement", "open_block"]


class Placement(NamedTuple):
    """Dimensions, and the ranks that they are sharded over."""

    sharding: Sharding
    dims: tuple[int, ...]

    def covers(self, dim: Any, rank: int) -> bool:
        """Return whether a dimension of a tensor of so many dimensions is sharded."""
        dim = whole_dim(dim)
        return type(dim) is int and rank > 0 and dim % rank in [each % rank for each in self.dims if each < rank]


OPEN: list[Placement] = []  # of the open blocks, in all threads; the innermost is last


def find_placement(x: Any, dim: Any) -> Placement | None:
    """Return how the innermost block shards a dimension of ``x``; None where it does not, and of DTensors."""
    if not OPEN or type(x).__name__ == "DTensor" or not OPEN[-1].covers(dim, getattr(x, "ndim", 0)):
        return None
    return OPEN[-1]


@contextlib.contextmanager
def open_block(placement: Placement) -> Iterator[None]:
    """Shard dimensions as ``placement`` says inside the block."""
    OPEN.append(placement)
    try:
        yield
    finally:
        OPEN.pop()
