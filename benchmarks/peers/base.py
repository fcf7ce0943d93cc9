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
    """One configuration of a peer that computes a case."""

    label: str  # what was chosen: tile, warps ...
    run: Callable[[], torch.Tensor]  # queues it and gives the result, which the next run may overwrite


class Peer(Protocol):
    """Another implementation of the same scans. The fastest of its candidates on a case counts."""

    name: str

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        """Build what these cells need, on all cores. Raises nothing; ``reason`` reports failed builds."""

    def reason(self, cell: Cell) -> str:
        """Return why this peer is not measured on a cell; an empty string when it is."""

    def candidates(self, case: Case) -> list[Candidate]:
        """Return configurations that compute a case into ``case.y`` or a new tensor. May raise; the message is kept."""
