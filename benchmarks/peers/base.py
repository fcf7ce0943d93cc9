"""The interface of a peer that benchmarks compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from benchmarks.cells import Case, Cell

__all__ = ["Candidate", "Peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way in which a peer computes a case."""

    label: str  # what was chosen: tile, warps ...
    run: Callable[[], torch.Tensor]  # queues it and gives the result, which the next run may overwrite


class Peer(Protocol):
    """Another way to the same results. The fastest of its candidates on a case counts."""

    name: str

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        """Build what these cells need, on all cores. Raises nothing: what is missing is a reason in ``candidates``."""

    def reason(self, cell: Cell) -> str:
        """Why this peer is not measured on a cell; empty when it is."""

    def candidates(self, case: Case) -> list[Candidate]:
        """Ways to compute a case into ``case.y`` or a tensor of their own. May raise: the words are kept."""
