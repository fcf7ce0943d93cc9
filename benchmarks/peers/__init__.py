"""The peers that scanops is measured against: one file each, in the order of the columns of the table."""

from __future__ import annotations

from benchmarks.peers.base import Candidate, Peer
from benchmarks.peers.cub import Cub
from benchmarks.peers.pytorch import Compiled, Eager
from benchmarks.peers.triton import Triton

__all__ = ["Candidate", "Peer", "all_peers"]


def all_peers() -> list[Peer]:
    """Return a new instance of each peer; its builds live as long as it does."""
    return [Eager(), Compiled(), Triton(), Cub()]
