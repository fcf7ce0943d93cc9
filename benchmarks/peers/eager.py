"""PyTorch's eager operators, as a user composes them today."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.cells import Case, Cell, Variant
from benchmarks.peers.base import Candidate

__all__ = ["Eager", "composed"]

Scan = Callable[[torch.Tensor, "torch.Tensor | None", int], torch.Tensor]


class Eager:
    """torch.cumsum and torch.cumprod, with flip, where and cat as the variant needs."""

    name = "torch eager"

    def prepare(self, cells: Sequence[Cell], target: str) -> None:
        del cells, target

    def reason(self, cell: Cell) -> str:
        del cell
        return ""

    def candidates(self, case: Case) -> list[Candidate]:
        what, dim = case.cell.what, case.cell.dim
        if what.plain:  # into the caller's tensor: no allocation
            scan = torch.cumprod if what.op == "prod" else torch.cumsum
            return [Candidate(label="out=", run=lambda: scan(case.x, dim, out=case.y))]
        function = composed(what)
        return [Candidate(label="composed", run=lambda: function(case.x, case.mask, dim))]


def composed(what: Variant) -> Scan:
    """Return a function that computes a variant by PyTorch's operators."""

    def scan(x: torch.Tensor, mask: torch.Tensor | None, dim: int) -> torch.Tensor:
        # x * mask is what users write; a product masked so would be zero from the first masked item on.
        if mask is not None:
            x = x * mask if what.op == "sum" else torch.where(mask, x, 1.0)
        x = x.flip(dim) if what.reverse else x
        if what.exclusive:
            first = torch.full_like(x.narrow(dim, 0, 1), 1.0 if what.op == "prod" else 0.0)
            x = torch.cat([first, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
        y = torch.cumprod(x, dim) if what.op == "prod" else torch.cumsum(x, dim)
        return y.flip(dim) if what.reverse else y

    return scan
