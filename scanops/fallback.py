"""The same scans made of torch's own operations: for CPU tensors, and wherever torch must see inside a call.

Under ``torch.compile``, ``torch.func`` transforms and in backward formulas a kernel would be a black box; these
compositions trace, transform and differentiate like any other torch code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from scanops import reference
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import Operator, operator_named
from scanops.codegen.spec import COMPENSATED

__all__ = ["outputs", "scan"]

_HALVES = (torch.float16, torch.bfloat16)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch computes next to nothing in these


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype,
    accumulate: str | None = None,
) -> torch.Tensor:
    """The scan of ``x`` along ``dim`` with results of ``dtype``; arguments are already checked."""
    return outputs(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, accumulate=accumulate)[0]


def outputs(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype,
    accumulate: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """The same with the indices of an operator that gives them."""
    operator = operator_named(op)
    if accumulate not in (None, COMPENSATED):
        wide = getattr(torch, str(accumulate))
        found = outputs(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=wide)
        return (found[0].to(dtype), *found[1:])
    x, mask = _readable(x), None if mask is None else _readable(mask)
    if dtype in _UNSIGNED:
        return _as_signed(operator, x, dim, mask, reverse, exclusive, dtype)
    if operator.torch_name is None and not operator.of_elements:
        return (reference.scan(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype),)
    start = operator.start_of(dtype_named(dtype))
    starts = start if isinstance(start, tuple) else (start,)
    terms = _terms(x, mask, dtype, starts[0])
    terms = terms.flip(dim) if reverse else terms
    compensated = accumulate == COMPENSATED
    found = (_compensated(terms, dim, dtype),) if compensated else _inclusive(operator, terms, dim, dtype)
    if operator.indices:
        keep = mask.expand(x.shape) if mask is not None and mask.dtype == torch.bool else None
        indices = found[1] if keep is None else _selected(found[1], keep.flip(dim) if reverse else keep, dim)
        found = (found[0], _mirrored(indices, x.shape[dim]) if reverse else indices)
    if exclusive and x.shape[dim]:
        found = tuple(_delayed(y, first, dim) for y, first in zip(found, starts, strict=True))
    return tuple((y.flip(dim) if reverse else y).contiguous() for y in found)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Eight bits of a floating type in float32: torch converts them and does nothing else with them."""
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _as_signed(
    operator: Operator,
    x: torch.Tensor,
    dim: int,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """In int64, whose low bits are those of the result: every identity's are, too.

    64 bits are compared as unsigned where the highest is turned over.
    """
    terms = (x if mask is None or mask.dtype == torch.bool else x * mask).to(dtype)
    whole = dtype == torch.uint64
    turned = torch.iinfo(torch.int64).min if whole and operator.ordered else 0
    signed = (terms.view(torch.int64) if whole else terms.to(torch.int64)) ^ turned
    keep = mask if mask is not None and mask.dtype == torch.bool else None
    values, *indices = outputs(
        signed, operator.name, dim, mask=keep, reverse=reverse, exclusive=exclusive, dtype=torch.int64
    )
    values = values ^ turned
    return (values.view(dtype) if whole else values.to(dtype), *indices)


def _inclusive(operator: Operator, terms: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What torch's own scan gives; indices only of an operator that gives them."""
    if operator.torch_name is None:
        return (_doubled(operator.step, terms, dim),)
    terms = terms.to(torch.float32 if dtype in _HALVES else dtype)
    function = getattr(torch, operator.torch_name)
    found = function(terms, dim, dtype=terms.dtype) if operator.gives == "widened" else function(terms, dim)
    values, *indices = (found,) if isinstance(found, torch.Tensor) else found
    return (values.to(dtype), *indices) if operator.indices else (values.to(dtype),)


def _compensated(terms: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Sums and what their additions lost, of stretches twice as long in each round."""
    sums = terms.to(torch.float32 if dtype in _HALVES else dtype)
    lost, length, distance = torch.zeros_like(sums), terms.shape[dim], 1
    while distance < length:
        older, newer = sums.narrow(dim, 0, length - distance), sums.narrow(dim, distance, length - distance)
        joined = older + newer
        of_newer = joined - older
        more = (older - (joined - of_newer)) + (newer - of_newer)
        more = more + lost.narrow(dim, 0, length - distance) + lost.narrow(dim, distance, length - distance)
        sums = torch.cat([sums.narrow(dim, 0, distance), joined], dim)
        lost = torch.cat([lost.narrow(dim, 0, distance), more], dim)
        distance *= 2
    return torch.where(lost.isnan(), sums, sums + lost).to(dtype)


def _doubled(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], terms: torch.Tensor, dim: int) -> torch.Tensor:
    """Stretches twice as long in each round: log2(n) passes, of which each joins every item with an older one."""
    length, distance = terms.shape[dim], 1
    while distance < length:
        older, newer = terms.narrow(dim, 0, length - distance), terms.narrow(dim, distance, length - distance)
        terms = torch.cat([terms.narrow(dim, 0, distance), step(older, newer)], dim)
        distance *= 2
    return terms


def _selected(indices: torch.Tensor, keep: torch.Tensor, dim: int) -> torch.Tensor:
    """Where torch names an item that is masked out, nothing but the start and its equals came before: the last one."""
    shape = [-1 if d == dim else 1 for d in range(keep.ndim)]
    places = torch.arange(keep.shape[dim], device=keep.device).reshape(shape)
    last = torch.cummax(torch.where(keep, places, -1), dim).values
    return torch.where(keep.gather(dim, indices), indices, last)


def _mirrored(indices: torch.Tensor, length: int) -> torch.Tensor:
    return torch.where(indices < 0, indices, length - 1 - indices)


def _delayed(y: torch.Tensor, first: float, dim: int) -> torch.Tensor:
    start = torch.full_like(y.narrow(dim, 0, 1), first)
    return torch.cat([start, y.narrow(dim, 0, y.shape[dim] - 1)], dim)


def _terms(x: torch.Tensor, mask: torch.Tensor | None, dtype: torch.dtype, start: float) -> torch.Tensor:
    if mask is None:
        return x.to(dtype)
    if mask.dtype == torch.bool:
        return torch.where(mask, x.to(dtype), torch.full((), start, dtype=dtype, device=x.device))
    if dtype in _HALVES:  # as in the kernels: the product is not rounded to half before it is scanned
        return x.to(torch.float32) * mask
    return (x * mask).to(dtype)
