"""Scans that torch lacks, in log2(n) passes: segments, carries, recurrences, operators with several state fields.

In each pass every item is combined with the one a distance before it, and the distance doubles: Hillis and Steele,
"Data parallel algorithms" (1986). All of it is PyTorch's operators, so it can be traced, transformed and
differentiated.
"""

from __future__ import annotations

import torch

from scanops.codegen.dtypes import dtype_named, numbers_of
from scanops.codegen.operator import COMPENSATED, Join
from scanops.codegen.operators import operator_named
from scanops.fallback.reference import chosen
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along, places_along

States = tuple[torch.Tensor, ...]


def join_of(call: Call) -> Join | None:
    """Return the combine of a call's operator on tensors of states, or None where there is none."""
    row = operator_named(call.op)
    row = row.variants[COMPENSATED] if call.compensated else row
    if row.join is None and row.of_elements:
        return Join(combine=lambda older, newer: (row.step(older[0], newer[0]),))
    return row.join


def outputs(rule: Join, inputs: Inputs, call: Call, terms: torch.Tensor, keep: torch.Tensor | None) -> States:
    """Return the operator's outputs in the dtype of ``terms``, then the carry-outs if the call asks for them.

    ``rule`` is ``join_of(call)``, ``terms`` are what is scanned in place of x and its mask, ``keep`` a bool mask.
    """
    dim, shape = call.dim, terms.shape
    length, lines = shape[dim], line_shape(shape, call.dim)
    one = torch.zeros(lines, dtype=terms.dtype, device=terms.device).unsqueeze(dim)
    index, none = (torch.zeros_like(one, dtype=kind) for kind in (torch.int64, torch.bool))
    start = operator_named(call.op).start if rule.identity is None else rule.identity
    numbers = numbers_of(start if isinstance(start, tuple) else (start,), dtype_named(terms.dtype))
    identity = zip(_lifted(rule, one, one, index), numbers, strict=True)
    nothing = tuple(torch.full_like(each, n) for each, n in identity)
    gate = None if inputs.gate is None else inputs.gate.expand(shape).to(terms.dtype)
    states = _lifted(rule, terms, gate, places_along(terms, dim).expand(shape))
    if keep is not None:
        states = chosen(keep.expand(shape), states, nothing)
    # Before each item and after the last one: whether a segment starts there, which hides older items.
    flags = flags_along(inputs.starts, inputs.offsets, terms, dim, call.chunk)
    cut = torch.cat([none.expand(shape) if flags is None else flags, none], dim)
    if call.reverse:  # in reverse a segment ends at the item with its head flag
        states, cut = tuple(state.flip(dim) for state in states), cut.flip(dim)
    first = nothing
    if inputs.initial is not None:
        carried = inputs.initial.expand(lines).unsqueeze(dim)
        first = _lifted(rule, carried, torch.ones_like(carried), torch.full_like(index, -1))
    # At the start of the line and after each item, as if no segment started right after it.
    begins = None if flags is None else torch.cat([none, cut.narrow(dim, 0, length)], dim)
    after = doubled(rule, _joined(first, states, dim), nothing, begins, dim)
    before = after if flags is None else chosen(cut, nothing, after)
    found = before if call.exclusive else after
    results = tuple(state.narrow(dim, 0 if call.exclusive else 1, length) for state in rule.result(found))
    results = tuple(result.flip(dim) if call.reverse else result for result in results)
    return (*results, rule.result(before)[0].select(dim, length)) if call.final else results


def _lifted(rule: Join, x: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor) -> States:
    states = rule.lift(x, gate, index)
    return tuple(each if isinstance(each, torch.Tensor) else torch.full_like(x, each) for each in states)


def _joined(first: States, then: States, dim: int) -> States:
    return tuple(torch.cat([one, other], dim) for one, other in zip(first, then, strict=True))


def doubled(rule: Join, states: States, nothing: States, cut: torch.Tensor | None, dim: int) -> States:
    """The inclusive scan; ``cut`` marks items that older items are not combined with.

    There the identity is combined and then discarded by torch.where: a derivative through NaN or infinity would not
    vanish.
    """
    length, distance = states[0].shape[dim], 1
    while distance < length:
        older, newer = _parts(states, dim, 0, length - distance), _parts(states, dim, distance, length - distance)
        begins = None if cut is None else cut.narrow(dim, distance, length - distance)
        joined = rule.combine(older if begins is None else chosen(begins, nothing, older), newer)
        if cut is not None and begins is not None:
            joined = chosen(begins, newer, joined)
            cut = torch.cat([cut.narrow(dim, 0, distance), cut.narrow(dim, 0, length - distance) | begins], dim)
        states = _joined(_parts(states, dim, 0, distance), joined, dim)
        distance *= 2
    return states


def _parts(states: States, dim: int, start: int, length: int) -> States:
    return tuple(state.narrow(dim, start, length) for state in states)
