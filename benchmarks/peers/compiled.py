"""The operations of the eager peer under torch.compile."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.cells import Case, Cell
from benchmarks.peers.base import Candidate
from benchmarks.peers.eager import composed

__all__ = ["Compiled"]


class Compiled:
    """Inductor's fused Triton kernels, split over programs with look-back for a single long row."""

    name = "torch.compile"

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        del cells, target

    def reason(self, cell: Cell) -> str:
        if not cell.compiled:
            return "measured on some cells of each family of the table: it compiles for seconds at each shape"
        return ""

    def candidates(self, case: Case) -> list[Candidate]:
        torch._dynamo.reset()  # else the limit of recompilations of one function turns it off
        function = torch.compile(composed(case.cell.what), dynamic=False)
        x, mask, dim = case.x, case.mask, case.cell.dim
        function(x, mask, dim)
        return [Candidate(label="inductor", run=lambda: function(x, mask, dim))]
