"""PyTorch's operators, as a user composes them today: eager, and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.cells import Case, Cell, Variant
from benchmarks.peers.base import Candidate, Peer

__all__ = ["Compiled", "Eager"]

Scan = Callable[[torch.Tensor, "torch.Tensor | None", int], torch.Tensor]


class Eager(Peer):
    """torch.cumsum and torch.cumprod, with flip, where and cat as the variant needs."""

    name = "torch eager"

    def reason(self, cell: Cell) -> str:
        return ""

    def candidates(self, case: Case) -> list[Candidate]:
        what, dim = case.cell.what, case.cell.dim
        if what.plain:  # into the caller's tensor: no allocation
            scan = torch.cumprod if what.op == "prod" else torch.cumsum
            return [Candidate("out=", lambda: scan(case.x, dim, out=case.y))]
        function = compose(what)
        return [Candidate("composed", lambda: function(case.x, case.mask, dim))]


class Compiled(Peer):
    """Inductor's fused Triton kernels, split over programs with look-back for a single long row."""

    name = "torch.compile"

    def reason(self, cell: Cell) -> str:
        if not cell.compiled:
            return "measured on some cells of each family of the table: it compiles for seconds at each shape"
        return ""

    def candidates(self, case: Case) -> list[Candidate]:
        torch._dynamo.reset()  # else the limit of recompilations of one function turns it off
        function = torch.compile(compose(case.cell.what), dynamic=False)
        x, mask, dim = case.x, case.mask, case.cell.dim
        function(x, mask, dim)
        return [Candidate("inductor", lambda: function(x, mask, dim))]


def compose(what: Variant) -> Scan:
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
