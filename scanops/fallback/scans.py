"""The same scans made of torch's own operations: for CPU tensors, and wherever torch must see inside a call.

A kernel would be a black box to compilers and transforms; these compositions trace, transform and differentiate like
any other torch code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.autograd import forward_ad

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operator import COMPENSATED
from scanops.codegen.operators import Operator, operator_named
from scanops.fallback import doubling, reference
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along

__all__ = ["Walk", "outputs", "scan"]

_HALVES = (torch.float16, torch.bfloat16)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch computes next to nothing in these


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is computed of the inputs, and in which order."""

    op: str
    dim: int
    reverse: bool = False
    exclusive: bool = False
    final: bool = False
    dtype: torch.dtype  # of the result
    accumulate: str | None = None

    @property
    def operator(self) -> Operator:
        """The operator's row."""
        return operator_named(self.op)

    @property
    def compensated(self) -> bool:
        """Whether what additions lose is kept beside their sum."""
        return self.accumulate == COMPENSATED

    @property
    def wide(self) -> torch.dtype:
        """What results are computed in."""
        return torch.float32 if self.dtype in _HALVES else self.dtype


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype,
    accumulate: str | None = None,
) -> torch.Tensor:
    """The scan of ``x`` along ``dim`` with results of ``dtype``; arguments are already checked."""
    walk = Walk(op=op, dim=dim, reverse=reverse, exclusive=exclusive, dtype=dtype, accumulate=accumulate)
    return outputs(Inputs(x=x, mask=mask), walk)[0]


def outputs(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from each line if that is wanted."""
    if walk.accumulate not in (None, COMPENSATED):
        found = outputs(inputs, replace(walk, dtype=getattr(torch, str(walk.accumulate)), accumulate=None))
        return (found[0].to(walk.dtype), *found[1:])
    inputs = inputs.readable()
    if walk.dtype in _UNSIGNED:
        return _as_signed(inputs, walk)
    # A recurrence is computed as it is defined where that can be done, and otherwise in fewer passes.
    walked = walk.operator.gated and inputs.x.device.type == "cpu" and not torch.compiler.is_compiling()
    if walked or doubling.join_of(walk.op) is None:
        return _walked(inputs, walk)
    # The tangent that torch has of cumprod divides by items: where one is 0 it has no derivative, and none is told.
    divided = walk.op == "prod" and forward_ad._current_level >= 0
    plain = walk.operator.torch_name and not (walk.final or walk.compensated or divided)
    if plain and all(each is None for each in inputs[2:]):
        return _by_torch(inputs, walk)
    return _doubled(inputs, walk)


def _by_torch(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, ...]:
    """By torch's own scan."""
    x, dim, reverse, operator = inputs.x, walk.dim, walk.reverse, walk.operator
    start = operator.start_of(dtype_named(walk.dtype))
    starts = start if isinstance(start, tuple) else (start,)
    terms, keep = _masked(inputs, walk)
    if keep is not None:
        terms = torch.where(keep, terms, torch.full((), starts[0], dtype=terms.dtype, device=x.device))
    terms = terms.flip(dim) if reverse else terms
    function = getattr(torch, str(operator.torch_name))
    found = function(terms, dim, dtype=terms.dtype) if operator.gives == "widened" else function(terms, dim)
    values, *others = (found,) if isinstance(found, torch.Tensor) else found
    results = [values.to(walk.dtype)]
    if operator.indices:
        keep = None if keep is None else keep.expand(x.shape)
        indices = others[0] if keep is None else _selected(others[0], keep.flip(dim) if reverse else keep, dim)
        results.append(_mirrored(indices, x.shape[dim]) if reverse else indices)
    if walk.exclusive and x.shape[dim]:
        results = [_delayed(y, first, dim) for y, first in zip(results, starts, strict=True)]
    return tuple((y.flip(dim) if reverse else y).contiguous() for y in results)


def _walked(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, ...]:
    """One item after the other."""
    terms, keep = _masked(inputs, walk)
    y, h = reference.scan(
        terms,
        walk.op,
        walk.dim,
        mask=keep,
        gate=inputs.gate,
        flags=flags_along(inputs.starts, inputs.offsets, inputs.x, walk.dim),
        initial=inputs.initial,
        reverse=walk.reverse,
        exclusive=walk.exclusive,
        final=True,
        dtype=None if walk.operator.gives == "index" else walk.wide,
    )
    length = y.shape[walk.dim]
    if length == 0 or (walk.exclusive and length == 1):
        # Made of no item, and still with a gradient of them, of zeros, as the results of longer lines
        whole = [each.expand(inputs.x.shape) for each in (terms, inputs.gate) if each is not None]
        lines = [each.expand(h.shape).unsqueeze(walk.dim) for each in (h, inputs.initial) if each is not None]
        read = [each.narrow(walk.dim, 0, 0).to(y.dtype) for each in (*whole, *lines)]
        y = torch.cat([y, *read], walk.dim)
        h = torch.cat([lines[0], *read], walk.dim).select(walk.dim, 0)
    h = h.to(walk.dtype) if walk.operator.gives == "index" else h
    return (y.to(walk.dtype), h.contiguous()) if walk.final else (y.to(walk.dtype),)


def _doubled(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, ...]:
    """Stretches twice as long in each pass."""
    x, _, gate, starts, offsets, initial, _ = inputs
    terms, keep = _masked(inputs, walk)
    lines = torch.Size(size for d, size in enumerate(x.shape) if d != walk.dim)
    y, *others = doubling.outputs(
        terms,
        walk.op,
        walk.dim,
        gate=None if gate is None else gate.expand(x.shape),
        keep=None if keep is None else keep.expand(x.shape),
        flags=flags_along(starts, offsets, x, walk.dim),
        initial=None if initial is None else initial.expand(lines).unsqueeze(walk.dim),
        reverse=walk.reverse,
        exclusive=walk.exclusive,
        final=walk.final,
        compensated=walk.compensated,
    )
    return (y.to(walk.dtype).contiguous(), *(other.contiguous() for other in others))


def _as_signed(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, ...]:
    """In int64, whose low bits are those of the result: every identity's are, too.

    64 bits are compared as unsigned where the highest is turned over.
    """
    x, mask, gate, starts, offsets, initial, _ = inputs
    selects = mask is not None and mask.dtype == torch.bool
    terms = x if mask is None or selects else _product(x, mask, gate)[0]
    turned = torch.iinfo(torch.int64).min if walk.dtype == torch.uint64 and walk.operator.ordered else 0

    def signed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(walk.dtype)
        return tensor.view(torch.int64) if walk.dtype == torch.uint64 else tensor.to(torch.int64)

    def unsigned(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor ^ turned
        return tensor.view(walk.dtype) if walk.dtype == torch.uint64 else tensor.to(walk.dtype)

    found = list(
        outputs(
            Inputs(
                x=signed(terms) ^ turned,
                mask=mask if selects else None,
                gate=None if gate is None else signed(gate),
                starts=starts,
                offsets=offsets,
                initial=None if initial is None else signed(initial) ^ turned,
            ),
            replace(walk, dtype=torch.int64),
        )
    )
    for place in {0, len(found) - 1 if walk.final else 0}:
        found[place] = unsigned(found[place])
    return tuple(found)


def _masked(inputs: Inputs, walk: Walk) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Elements of the result's dtype, in what they are scanned in, and the mask if it selects.

    As in the kernels half products alone are not rounded to the half that the result is.
    """
    x, mask = inputs.x, inputs.mask
    if walk.operator.gives == "index":
        return _as_elements(inputs)
    if mask is None or mask.dtype == torch.bool:
        return x.to(walk.dtype).to(walk.wide), mask
    product, term = _product(x, mask, inputs.gate)
    return product.to(walk.wide if term == walk.dtype else walk.dtype).to(walk.wide), None


def _as_elements(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Elements in their own dtype, of which an operator gives an index, and the mask if it selects.

    As in the kernels halves are compared as float32, which holds them exactly.
    """
    x, mask = inputs.x, inputs.mask
    if mask is not None and mask.dtype != torch.bool:
        x, mask = _product(x, mask, inputs.gate)[0], None
    elif inputs.gate is not None:
        x = x.to(torch.promote_types(x.dtype, inputs.gate.dtype))
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.uint16: torch.int64}
    wide[torch.uint32] = torch.int64
    return x.to(wide.get(x.dtype, x.dtype)), mask


def _product(x: torch.Tensor, mask: torch.Tensor, gate: torch.Tensor | None) -> tuple[torch.Tensor, torch.dtype]:
    """x * mask in the dtype that all are promoted to, of halves in float32; and that dtype."""
    term = torch.promote_types(x.dtype, mask.dtype)
    term = term if gate is None else torch.promote_types(term, gate.dtype)
    wide = torch.float32 if term in _HALVES else term
    return x.to(term).to(wide) * mask.to(term).to(wide), term


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
