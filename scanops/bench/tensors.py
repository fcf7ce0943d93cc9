"""The tensors of a cell: inputs whose scans neither overflow nor vanish, poisoned outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scanops.bench.cells import Cell
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import make_request

__all__ = ["POISONS", "Case", "allocate", "poison", "spec_of"]

KEPT = 0.7  # of the items a mask keeps
LONG_PRODUCT = 2**16  # factors; beyond it only signs neither overflow nor vanish
POISONS = ((float("nan"), -12345), (6e4, 54321))  # (for floats, for integers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cell with its tensors on a device."""

    cell: Cell
    x: torch.Tensor
    mask: torch.Tensor | None
    y: torch.Tensor  # where results go: contiguous


def allocate(cell: Cell, device: str = "cuda", *, filled: bool = True) -> Case:
    """The tensors of a cell; with ``filled`` random values in x and mask, the same ones each time."""
    what = cell.what
    dtype, out_dtype = getattr(torch, what.input.name), getattr(torch, what.output.name)
    strides = cell.strides or torch.empty(cell.shape, device="meta").stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cell.shape, strides, strict=True))
    random = torch.Generator(device).manual_seed(2026) if filled else None
    storage = _values(cell, cell.offset + extent, dtype, device, random)
    mask = None
    if what.masked:
        mask = torch.empty(cell.shape, dtype=torch.bool, device=device)
        if filled:
            mask.bernoulli_(KEPT, generator=random)
    return Case(
        cell=cell,
        x=storage.as_strided(cell.shape, strides, cell.offset),
        mask=mask,
        y=torch.empty(cell.shape, dtype=out_dtype, device=device),
    )


def _values(cell: Cell, count: int, dtype: torch.dtype, device: str, random: torch.Generator | None) -> torch.Tensor:
    if random is None:
        return torch.empty(count, dtype=dtype, device=device)
    if dtype == torch.bool:
        return torch.empty(count, dtype=dtype, device=device).bernoulli_(0.5, generator=random)
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, (count,), dtype=dtype, device=device, generator=random)
    x = torch.empty(count, dtype=dtype, device=device).normal_(generator=random)
    if cell.what.op == "prod":
        x = x.sign_() if cell.length > LONG_PRODUCT else x.mul_(1e-3).add_(1)
    return x


def poison(y: torch.Tensor, which: int = 0) -> torch.Tensor:
    """Fill ``y`` with what no scan of these inputs gives; two poisons tell what was left unwritten from a result."""
    return y.fill_(POISONS[which][0 if y.is_floating_point() else 1])


def spec_of(case: Case, multiprocessors: int) -> ScanSpec:
    """The spec that a call on these tensors is served by."""
    what = case.cell.what
    request = make_request(
        case.x,
        what.op,
        case.cell.dim,
        mask=case.mask,
        reverse=what.reverse,
        exclusive=what.exclusive,
        dtype=None,
        out=case.y,
    )
    return request.spec(case.y, multiprocessors)
