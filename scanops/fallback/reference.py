"""The definition of every scan as a sequential loop, which a reader can check.

Tests compare every kernel with it. It also runs for your own operators on the CPU, under ``torch.func`` and for
gradients, so it changes nothing in place.
"""

from __future__ import annotations

from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import Operator, operator_named


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
    """``h = start; for each i in scan order: h = step(h, x[i]); y[i] = output(h)``, computed in ``dtype``.

    A bool ``mask`` skips the elements it is False at; a numeric one multiplies. ``gate`` is a second input of the step.
    Where ``flags`` are True a segment begins: before that item h = start again; in reverse, after it. ``initial``, of
    x's shape without ``dim``, takes the place of the first start. ``exclusive`` takes h before the step. With
    ``final`` the result of the last h is returned as well. Pass ``dtype=torch.float64`` for a reference that rounds far
    less than what it is compared with.
    """
    operator = operator_named(op)
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else x * mask
    terms = terms.to(dtype or terms.dtype).movedim(dim, 0)
    # unbind makes all views at once: separate indexing would allocate a full-size gradient per item.
    items = terms.unbind(0)
    keep = mask.expand(x.shape).unbind(dim) if mask is not None and selects else None
    begins = None if flags is None else flags.expand(x.shape).unbind(dim)
    gate = None if gate is None else gate.expand(x.shape).to(terms.dtype)
    if gate is not None and mask is not None and selects:
        gate = torch.where(mask, gate, 1)  # a NaN gate of a masked-out item would spoil the gradient of h
    gates = None if gate is None else gate.unbind(dim)
    like = terms.new_empty(terms.shape[1:])
    start = _parts(operator.start_of(dtype_named(terms.dtype)), like)
    h = start
    if initial is not None:
        given = initial.to(terms.dtype).expand(like.shape)
        h = _parts(operator.resumed(given) if operator.resumed else given, like)
    whole, places = isinstance(operator.start, tuple), operator.places_items
    results = []
    for i in reversed(range(len(items))) if reverse else range(len(items)):
        older = h if begins is None or reverse else chosen(begins[i], start, h)
        further = ((i,) if places else ()) + (() if gates is None else (gates[i],))
        newer = _parts(operator.step(older if whole else older[0], items[i], *further), like)
        newer = newer if keep is None else chosen(keep[i], newer, older)
        results.append(_result(operator, older if exclusive else newer, like))
        h = newer if begins is None or not reverse else chosen(begins[i], start, newer)
    stacked = torch.stack(results[::-1] if reverse else results) if results else terms
    y = stacked.movedim(0, dim).contiguous()
    return (y, _result(operator, h, like)) if final else y


def _parts(h: Any, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts of h as tensors of one element per line, in the dtype of ``like``."""
    return tuple(_part(part, like) for part in (h if isinstance(h, tuple) else (h,)))


def _part(part: Any, like: torch.Tensor) -> torch.Tensor:
    # A number is filled in on the device: a copy from the host would synchronise, which a CUDA graph may not capture.
    if isinstance(part, torch.Tensor):
        tensor = part
    else:
        tensor = torch.full((), part, dtype=torch.float64 if isinstance(part, float) else None, device=like.device)
    if tensor.dtype == like.dtype and tensor.shape == like.shape:
        return tensor
    return tensor.to(like.dtype).expand(like.shape)


def chosen(
    condition: torch.Tensor, yes: tuple[torch.Tensor, ...], no: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Return ``torch.where`` of each field of two states."""
    return tuple(torch.where(condition, *pair) for pair in zip(yes, no, strict=True))


def _result(operator: Operator, h: tuple[torch.Tensor, ...], like: torch.Tensor) -> torch.Tensor:
    state = h if isinstance(operator.start, tuple) else h[0]
    return _part(operator.output(state), like) if operator.output else h[0]
