"""What scanops is measured against: one file each, in the order of the table's columns."""

from __future__ import annotations

from benchmarks.peers.base import Candidate, Peer
from benchmarks.peers.compiled import Compiled
from benchmarks.peers.cub import Cub
from benchmarks.peers.eager import Eager
from benchmarks.peers.triton import Triton

__all__ = ["Candidate", "Peer", "all_peers"]


def all_peers() -> list[Peer]:
    """A new one of each; what they build lives as long as they do."""
    return [Eager(), Compiled(), Triton(), Cub()]
