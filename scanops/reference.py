"""The definition of every scan, written so that a reader can check it: one item after another, in Python's order.

It is what the tests hold every kernel to, and what runs on the CPU for an operator that torch does not have.
"""

from __future__ import annotations

import torch

from scanops.codegen.operators import operator_named

__all__ = ["scan"]


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``h = start; for each i in scan order: h = step(h, x[i]); y[i] = h``, computed in ``dtype``.

    A bool ``mask`` skips the elements it is False at; a numeric one multiplies. ``exclusive`` stores h before the step.
    Pass ``dtype=torch.float64`` for a reference that rounds far less than what it is compared with.
    """
    operator = operator_named(op)
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else x * mask
    terms = terms.to(dtype or terms.dtype).movedim(dim, 0)
    keep = mask.expand(x.shape).movedim(dim, 0) if mask is not None and selects else None
    y = torch.empty_like(terms, memory_format=torch.contiguous_format)
    h = torch.full_like(terms[:1].sum(0), operator.start, dtype=terms.dtype)
    for i in reversed(range(len(terms))) if reverse else range(len(terms)):
        older, h = h, operator.step(h, terms[i])
        h = h if keep is None else torch.where(keep[i], h, older)
        y[i] = older if exclusive else h
    return y.movedim(0, dim).contiguous()
