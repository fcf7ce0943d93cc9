"""Reductions of segments by PyTorch's own operators, without a scan: in one pass, or in passes that halve the items."""

from __future__ import annotations

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operator import Join
from scanops.codegen.operators import operator_named
from scanops.fallback import doubling
from scanops.fallback.reference import chosen
from scanops.fallback.scans import mask_terms
from scanops.requests.request import Request

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
# PyTorch's reductions by index, for dtypes that they know. A NaN gives NaN; products of complex numbers are not known.
_BY_INDEX = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def reduce_segments(request: Request, lengths: torch.Tensor) -> torch.Tensor | None:
    """Return the reduction of each segment of so many items, one at least; None where only a scan computes it.

    Sums and products of floating dtypes are accumulated in float64.
    """
    call, inputs = request.call, request.inputs.readable()
    rule, row = doubling.join_of(call), operator_named(call.op)
    if rule is None or row.gated or call.result == torch.uint64:
        return None
    terms, keep = mask_terms(inputs, call)
    if not lengths.numel():
        return terms.narrow(call.dim, 0, 0).to(request.dtype)
    name = None if call.compensated or terms.dtype == torch.bool else _BY_INDEX.get(call.op)
    if name is None or (name != "sum" and terms.is_complex()):
        states, nothing = doubling.lift_states(rule, inputs, call, terms, keep)
        folded: torch.Tensor = rule.result(_fold(rule, states, nothing, lengths, call.dim))[0]
        return folded.to(request.dtype)
    start = row.start_of(dtype_named(terms.dtype))
    terms = terms if keep is None else torch.where(keep, terms, torch.full((), start, dtype=terms.dtype))
    terms = terms.to(_WIDER.get(terms.dtype, terms.dtype)) if name in ("sum", "prod") else terms
    shape = [len(lengths) if d == call.dim else size for d, size in enumerate(terms.shape)]
    found = torch.full(shape, start, dtype=terms.dtype)
    segments = torch.repeat_interleave(lengths)  # of each item
    if name == "sum":
        return found.index_add_(call.dim, segments, terms).to(request.dtype)
    segments = segments.reshape([-1 if d == call.dim else 1 for d in range(terms.ndim)]).expand(terms.shape)
    return found.scatter_reduce_(call.dim, segments, terms, name).to(request.dtype)


def _fold(
    rule: Join, states: doubling.States, nothing: doubling.States, lengths: torch.Tensor, dim: int
) -> doubling.States:
    """Combine neighbouring states of each segment, in order, until each has one: each pass halves their number."""
    while int(lengths.max()) > 1:
        halves = (lengths + 1) // 2
        own = torch.repeat_interleave(halves)  # the segment of each pair
        pair = torch.arange(len(own)) - (halves.cumsum(0) - halves)[own]
        left = (lengths.cumsum(0) - lengths)[own] + 2 * pair
        whole = 2 * pair + 1 < lengths[own]  # otherwise an odd segment's last state is left over
        older, newer = (
            tuple(state.index_select(dim, at) for state in states) for at in (left, torch.where(whole, left + 1, left))
        )
        has_both = whole.reshape([-1 if d == dim else 1 for d in range(older[0].ndim)])
        states = chosen(has_both, rule.combine(older, chosen(has_both, newer, nothing)), older)
        lengths = halves
    return states
