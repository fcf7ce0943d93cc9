"""The same scans made of torch's own operations: for CPU tensors, and wherever torch must see inside a call.

Under ``torch.compile``, ``torch.func`` transforms and in backward formulas a kernel would be a black box; these
compositions trace, transform and differentiate like any other torch code.
"""

from __future__ import annotations

import torch

from scanops import doubling, reference
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import Operator, operator_named
from scanops.request import Inputs
from scanops.segments import flags_along

__all__ = ["outputs", "scan"]

_HALVES = (torch.float16, torch.bfloat16)


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The scan of ``x`` along ``dim`` with results of ``dtype``; arguments are already checked."""
    return outputs(Inputs(x=x, mask=mask), op, dim, reverse=reverse, exclusive=exclusive, final=False, dtype=dtype)[0]


def outputs(
    inputs: Inputs, op: str, dim: int, *, reverse: bool, exclusive: bool, final: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """The same with the indices of an operator that gives them, and with what goes on from each line if ``final``."""
    x, mask, *others = inputs
    operator = operator_named(op)
    walked = x.device.type == "cpu" and not torch.compiler.is_compiling()  # item by item, as the definition has it
    known = doubling.join_of(op) is not None and not (operator.gated and walked)
    if final or operator.torch_name is None or any(each is not None for each in others):
        return (_doubled if known else _walked)(inputs, op, dim, reverse, exclusive, final, dtype)
    start = operator.start_of(dtype_named(dtype))
    starts = start if isinstance(start, tuple) else (start,)
    terms, keep = _masked(x, mask, dtype)
    if keep is not None:
        terms = torch.where(keep, terms, torch.full((), starts[0], dtype=terms.dtype, device=x.device))
    terms = terms.flip(dim) if reverse else terms
    found = _inclusive(operator, terms, dim, dtype)
    if operator.indices:
        keep = None if keep is None else keep.expand(x.shape)
        indices = found[1] if keep is None else _selected(found[1], keep.flip(dim) if reverse else keep, dim)
        found = (found[0], _mirrored(indices, x.shape[dim]) if reverse else indices)
    if exclusive and x.shape[dim]:
        found = tuple(_delayed(y, first, dim) for y, first in zip(found, starts, strict=True))
    return tuple((y.flip(dim) if reverse else y).contiguous() for y in found)


def _walked(
    inputs: Inputs, op: str, dim: int, reverse: bool, exclusive: bool, final: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """One item after the other."""
    x, mask, gate, starts, offsets, initial = inputs
    wide = _wide(dtype)
    terms, keep = _masked(x, mask, dtype)
    y, h = reference.scan(
        terms,
        op,
        dim,
        mask=keep,
        gate=gate,
        flags=flags_along(starts, offsets, x, dim),
        initial=initial,
        reverse=reverse,
        exclusive=exclusive,
        final=True,
        dtype=wide,
    )
    return (y.to(dtype), h.contiguous()) if final else (y.to(dtype),)


def _doubled(
    inputs: Inputs, op: str, dim: int, reverse: bool, exclusive: bool, final: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Stretches twice as long in each pass."""
    x, mask, gate, starts, offsets, initial = inputs
    terms, keep = _masked(x, mask, dtype)
    lines = torch.Size(size for d, size in enumerate(x.shape) if d != dim)
    y, *others = doubling.outputs(
        terms,
        op,
        dim,
        gate=None if gate is None else gate.expand(x.shape),
        keep=None if keep is None else keep.expand(x.shape),
        flags=flags_along(starts, offsets, x, dim),
        initial=None if initial is None else initial.expand(lines).unsqueeze(dim),
        reverse=reverse,
        exclusive=exclusive,
        final=final,
    )
    return (y.to(dtype).contiguous(), *(other.contiguous() for other in others))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What results of ``dtype`` are computed in."""
    return torch.float32 if dtype in _HALVES else dtype


def _masked(x: torch.Tensor, mask: torch.Tensor | None, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What is scanned for results of ``dtype``, and the mask if it selects."""
    if mask is None or mask.dtype == torch.bool:
        return x.to(_wide(dtype)), mask
    if dtype in _HALVES:  # as in the kernels: the product is not rounded to half before it is scanned
        return x.to(torch.float32) * mask, None
    return (x * mask).to(dtype), None


def _inclusive(operator: Operator, terms: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What torch's own scan gives; indices only of an operator that gives them."""
    function = getattr(torch, str(operator.torch_name))
    found = function(terms, dim, dtype=terms.dtype) if operator.gives == "widened" else function(terms, dim)
    values, *indices = (found,) if isinstance(found, torch.Tensor) else found
    return (values.to(dtype), *indices) if operator.indices else (values.to(dtype),)


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
