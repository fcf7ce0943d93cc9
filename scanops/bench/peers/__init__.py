"""What scanops is measured against: one file each, in the order of the table's columns."""

from __future__ import annotations

from scanops.bench.peers.base import Candidate, Peer
from scanops.bench.peers.compiled import Compiled
from scanops.bench.peers.cub import Cub
from scanops.bench.peers.eager import Eager
from scanops.bench.peers.triton import Triton

__all__ = ["Candidate", "Peer", "all_peers"]


def all_peers() -> list[Peer]:
    """A new one of each; what they build lives as long as they do."""
    return [Eager(), Compiled(), Triton(), Cub()]
