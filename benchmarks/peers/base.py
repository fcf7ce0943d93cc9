"""The interface of a peer that benchmarks compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from benchmarks.cells import Case, Cell

__all__ = ["Candidate", "Peer"]


class Candidate(NamedTuple):
    """One configuration of a peer that computes a case."""

    label: str  # what was chosen: tile, warps ...
    run: Callable[[], torch.Tensor]  # queues it and gives the result, which the next run may overwrite


class Peer:
    """Another implementation of the same scans. The fastest of its candidates on a case counts."""

    name: str

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        """Build what these cells need, on all cores. Raises nothing; ``reason`` reports failed builds."""

    def reason(self, cell: Cell) -> str:
        """Return why this peer is not measured on a cell; an empty string when it is."""
        return "" if cell.group == "table" else "measured on the cells of the table"

    def candidates(self, case: Case) -> list[Candidate]:
        """Return configurations that compute a case into ``case.y`` or a new tensor. May raise; the message is kept."""
        raise NotImplementedError
