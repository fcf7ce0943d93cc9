"""The definition of every scan, written so that a reader can check it: one item after another, in Python's order.

It is what the tests hold every kernel to, and what runs on the CPU, under ``torch.compile`` and ``torch.func`` and for
gradients of an operator that torch does not have: nothing is changed in place.
"""

from __future__ import annotations

from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
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
    """``h = start; for each i in scan order: h = step(h, x[i]); y[i] = output(h)``, computed in ``dtype``.

    A bool ``mask`` skips the elements it is False at; a numeric one multiplies. ``exclusive`` takes h before the step.
    Pass ``dtype=torch.float64`` for a reference that rounds far less than what it is compared with.
    """
    operator = operator_named(op)
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else x * mask
    terms = terms.to(dtype or terms.dtype).movedim(dim, 0)
    keep = mask.expand(x.shape).movedim(dim, 0) if mask is not None and selects else None
    if not len(terms):
        return x.new_empty(x.shape, dtype=terms.dtype)
    start = operator.start_of(dtype_named(terms.dtype))
    h = tuple(torch.full_like(terms[0], part) for part in (start if isinstance(start, tuple) else (start,)))
    results = []
    for i in reversed(range(len(terms))) if reverse else range(len(terms)):
        place = (i,) if operator.places_items else ()
        older, newer = h, operator.step(h if isinstance(start, tuple) else h[0], terms[i], *place)
        parts = zip(older, newer if isinstance(start, tuple) else (newer,), strict=True)
        h = tuple(_part(new, old, None if keep is None else keep[i]) for old, new in parts)
        y = older if exclusive else h
        state = y if isinstance(start, tuple) else y[0]
        results.append(_part(operator.output(state) if operator.output else y[0], y[0], None))
    stacked = torch.stack(results[::-1] if reverse else results)
    return stacked.movedim(0, dim).contiguous()


def _part(new: Any, old: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """A part of the next h: a number is one for every line, and an item that is left out changes nothing."""
    part = torch.as_tensor(new, device=old.device).to(old.dtype).expand(old.shape)
    return part if keep is None else torch.where(keep, part, old)
