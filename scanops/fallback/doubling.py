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
from scanops.requests.geometry import carry_shape, line_shape
from scanops.requests.request import Inputs
from scanops.requests.segments import find_longest, find_segments, flags_along, places_along

States = tuple[torch.Tensor, ...]


def join_of(call: Call) -> Join:
    """Return the combine of a call's operator on tensors of states."""
    row = operator_named(call.op)
    row = row.variants[COMPENSATED] if call.compensated else row
    return row.join or Join(combine=lambda older, newer: (row.step(older[0], newer[0]),))


def outputs(rule: Join, inputs: Inputs, call: Call, terms: torch.Tensor, keep: torch.Tensor | None) -> States:
    """Return the operator's outputs in the dtype of ``terms``, then the carry-outs if the call asks for them.

    ``rule`` is ``join_of(call)``, ``terms`` are what is scanned in place of x and its mask, ``keep`` a bool mask.
    """
    dim, shape = call.dim, terms.shape
    length, lines = shape[dim], line_shape(shape, call.dim)
    states, nothing = lift_states(rule, inputs, call, terms, keep)
    if call.reverse:
        states = tuple(state.flip(dim) for state in states)
    if call.per_segment and inputs.offsets is not None:
        results, final = _scan_segments(rule, states, nothing, inputs.offsets, inputs.initial, call)
    else:
        none = torch.zeros_like(nothing[0], dtype=torch.bool)
        # Before each item and after the last one: whether a segment starts there, which hides older items.
        flags = flags_along(inputs.starts, inputs.offsets, terms, dim, call.chunk)
        cut = torch.cat([none.expand(shape) if flags is None else flags, none], dim)
        cut = cut.flip(dim) if call.reverse else cut  # in reverse a segment ends at the item with its head flag
        first = nothing
        if inputs.initial is not None:
            first = _lift_carries(rule, inputs.initial.expand(lines).unsqueeze(dim))
        # At the start of the line and after each item, as if no segment started right after it.
        begins = None if flags is None else torch.cat([none, cut.narrow(dim, 0, length)], dim)
        longest = length if inputs.offsets is None else find_longest(inputs.offsets, length, call.chunk)
        after = scan_by_doubling(rule, _concatenate(first, states, dim), nothing, begins, dim, longest + 1)
        before = after if flags is None else chosen(cut, nothing, after)
        found = before if call.exclusive else after
        results = tuple(state.narrow(dim, 0 if call.exclusive else 1, length) for state in rule.result(found))
        final = rule.result(before)[0].select(dim, length) if call.final else None
    results = tuple(result.flip(dim) if call.reverse else result for result in results)
    return results if final is None else (*results, final)


def lift_states(
    rule: Join, inputs: Inputs, call: Call, terms: torch.Tensor, keep: torch.Tensor | None
) -> tuple[States, States]:
    """Return the states of the items, and the identity with one place for each line. Arguments as for ``outputs``."""
    dim, shape = call.dim, terms.shape
    one = torch.zeros(line_shape(shape, dim), dtype=terms.dtype, device=terms.device).unsqueeze(dim)
    start = operator_named(call.op).start if rule.identity is None else rule.identity
    numbers = numbers_of(start if isinstance(start, tuple) else (start,), dtype_named(terms.dtype))
    identity = zip(_lift(rule, one, one, torch.zeros_like(one, dtype=torch.int64)), numbers, strict=True)
    nothing = tuple(torch.full_like(each, n) for each, n in identity)
    gate = None if inputs.gate is None else inputs.gate.expand(shape).to(terms.dtype)
    states = _lift(rule, terms, gate, places_along(terms, dim).expand(shape))
    return (states if keep is None else chosen(keep.expand(shape), states, nothing)), nothing


def _scan_segments(
    rule: Join, states: States, nothing: States, offsets: torch.Tensor, initial: torch.Tensor | None, call: Call
) -> tuple[States, torch.Tensor | None]:
    """Return the results in scan order, and the carry-out of each segment if it is asked for.

    ``states`` are in scan order; ``initial`` has a carry-in for each segment.
    """
    dim, shape = call.dim, states[0].shape
    length, carries = shape[dim], carry_shape(shape, dim, offsets)
    starts = tuple(each.expand(carries) for each in nothing)
    if initial is not None:
        starts = _lift_carries(rule, initial.expand(carries).to(nothing[0].dtype))
    places = torch.arange(length, device=offsets.device)
    segments = find_segments(offsets, places.flip(0) if call.reverse else places)
    heads = torch.cat([torch.ones_like(segments[:1], dtype=torch.bool), segments[1:] != segments[:-1]])
    heads = heads.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    own = tuple(each.index_select(dim, segments) for each in starts)  # what each item's segment starts from
    if initial is not None:
        states = chosen(heads, rule.combine(chosen(heads, own, nothing), states), states)
    after = scan_by_doubling(rule, states, nothing, heads.expand(shape), dim, find_longest(offsets, length))
    found = after
    if call.exclusive:
        before = _concatenate(_parts(own, dim, 0, min(1, length)), _parts(after, dim, 0, max(0, length - 1)), dim)
        found = chosen(heads, own, before)
    if not call.final:
        return rule.result(found), None
    ends = starts
    if length:
        last = length - 1 - offsets[:-1] if call.reverse else offsets[1:] - 1  # of each segment, in scan order
        is_empty = (offsets[1:] <= offsets[:-1]).reshape((*heads.shape[:dim], -1, *heads.shape[dim + 1 :]))
        last = last.long().clamp(0, length - 1)
        ends = chosen(is_empty, starts, tuple(each.index_select(dim, last) for each in after))
    return rule.result(found), rule.result(ends)[0]


def _lift_carries(rule: Join, carries: torch.Tensor) -> States:
    return _lift(rule, carries, torch.ones_like(carries), torch.full_like(carries, -1, dtype=torch.int64))


def _lift(rule: Join, x: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor) -> States:
    states = rule.lift(x, gate, index)
    return tuple(each if isinstance(each, torch.Tensor) else torch.full_like(x, each) for each in states)


def _concatenate(first: States, then: States, dim: int) -> States:
    return tuple(torch.cat([one, other], dim) for one, other in zip(first, then, strict=True))


def scan_by_doubling(
    rule: Join, states: States, nothing: States, cut: torch.Tensor | None, dim: int, longest: int | None = None
) -> States:
    """The inclusive scan; ``cut`` marks items that older items are not combined with, ``longest`` items apart at most.

    There the identity is combined and then discarded by torch.where: a derivative through NaN or infinity would not
    vanish.
    """
    length, distance = states[0].shape[dim], 1
    while distance < (length if longest is None else min(length, longest)):
        older, newer = _parts(states, dim, 0, length - distance), _parts(states, dim, distance, length - distance)
        begins = None if cut is None else cut.narrow(dim, distance, length - distance)
        joined = rule.combine(older if begins is None else chosen(begins, nothing, older), newer)
        if cut is not None and begins is not None:
            joined = chosen(begins, newer, joined)
            cut = torch.cat([cut.narrow(dim, 0, distance), cut.narrow(dim, 0, length - distance) | begins], dim)
        states = _concatenate(_parts(states, dim, 0, distance), joined, dim)
        distance *= 2
    return states


def _parts(states: States, dim: int, start: int, length: int) -> States:
    return tuple(state.narrow(dim, start, length) for state in states)
