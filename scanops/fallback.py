"""The same scans made of torch's own operations: for CPU tensors, and wherever torch must see inside a call.

Under ``torch.compile``, ``torch.func`` transforms and in backward formulas a kernel would be a black box; these
compositions trace, transform and differentiate like any other torch code.
"""

from __future__ import annotations

import torch

from scanops import reference
from scanops.codegen.operators import operator_named

__all__ = ["scan"]

_HALVES = (torch.float16, torch.bfloat16)


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The scan of ``x`` along ``dim`` with results of ``dtype``; arguments are already checked."""
    operator = operator_named(op)
    if operator.torch_name is None:
        return reference.scan(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype)
    terms = _terms(x, mask, dtype, operator.start)
    terms = terms.flip(dim) if reverse else terms
    accumulator = torch.float32 if dtype in _HALVES else dtype
    y: torch.Tensor = getattr(torch, operator.torch_name)(terms, dim, dtype=accumulator).to(dtype)
    if exclusive and y.shape[dim]:
        first = torch.full_like(y.narrow(dim, 0, 1), operator.start)
        y = torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
    return (y.flip(dim) if reverse else y).contiguous()


def _terms(x: torch.Tensor, mask: torch.Tensor | None, dtype: torch.dtype, start: int) -> torch.Tensor:
    if mask is None:
        return x.to(dtype)
    if mask.dtype == torch.bool:
        return torch.where(mask, x.to(dtype), torch.full((), start, dtype=dtype, device=x.device))
    if dtype in _HALVES:  # as in the kernels: the product is not rounded to half before it is scanned
        return x.to(torch.float32) * mask
    return (x * mask).to(dtype)
