"""The definition of every scan, written so that a reader can check it: one item after another, in Python's order.

It is what the tests hold every kernel to, and what runs on the CPU for an operator that torch does not have.
"""

from __future__ import annotations

from typing import Any

import torch

from scanops.codegen.operators import operator_named

__all__ = ["scan"]


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    flags: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    final: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """``h = start; for each i in scan order: h = step(h, x[i]); y[i] = h``, computed in ``dtype``.

    A bool ``mask`` skips the elements it is False at; a numeric one multiplies. ``gate`` is a second input of the step.
    Where ``flags`` are True a segment begins: before that item h = start again; in reverse, after it. ``initial``, of
    x's shape without ``dim``, takes the place of the first start. ``exclusive`` stores h before the step. With
    ``final`` the last h is returned as well. Pass ``dtype=torch.float64`` for a reference that rounds far less than
    what it is compared with.
    """
    operator = operator_named(op)
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else x * mask
    terms = terms.to(dtype or terms.dtype).movedim(dim, 0)
    keep = mask.expand(x.shape).movedim(dim, 0) if mask is not None and selects else None
    begins = None if flags is None else flags.expand(x.shape).movedim(dim, 0)
    gates = None if gate is None else gate.expand(x.shape).to(terms.dtype).movedim(dim, 0)
    start = torch.full_like(terms[:1].sum(0), operator.start, dtype=terms.dtype)
    h = start if initial is None else initial.to(terms.dtype).expand(start.shape)
    results: list[torch.Tensor] = []
    for i in reversed(range(len(terms))) if reverse else range(len(terms)):
        older = h if begins is None or reverse else torch.where(begins[i], start, h)
        newer = operator.step(older, terms[i]) if gates is None else operator.step(older, terms[i], gates[i])
        newer = newer if keep is None else torch.where(keep[i], newer, older)
        results.append(older if exclusive else newer)
        h = newer if begins is None or not reverse else torch.where(begins[i], start, newer)
    y = torch.stack(results[::-1] if reverse else results).to(terms.dtype) if results else torch.empty_like(terms)
    y = y.movedim(0, dim).contiguous()
    return (y, h) if final else y
