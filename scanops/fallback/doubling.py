"""Scans that torch lacks, in log2(n) passes: segments, carries, recurrences, operators with several state fields.

In each pass every item is combined with the one a distance before it, and the distance doubles: Hillis and Steele,
"Data parallel algorithms" (1986). All of it is PyTorch's operators, so it can be traced, transformed and
differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import Operator, operator_named
from scanops.fallback.reference import chosen
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along, places_along

States = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The combine of an operator on tensors of states. The first field is the result unless ``result`` is given."""

    lift: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], States]  # items, gates and indices -> states
    join: Callable[[States, States], States]  # older states, newer states -> states
    nothing: Callable[[Any], tuple[Any, ...]] = lambda start: (start,)  # the operator's start -> the identity
    result: Callable[[States], States] = lambda states: states  # states -> outputs


def _of_elements(operator: Operator) -> Join:
    return Join(lift=lambda x, g, i: (x,), join=lambda older, newer: (operator.step(older[0], newer[0]),))


Wins = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _extreme(wins: Wins, *, placed: bool = False) -> Join:
    """The greater or lesser of two tensors, with its index if ``placed``; of equal items the newer one.

    That one gets the whole gradient. An index below 0 is that of no item.
    """

    def join(older: States, newer: States) -> States:
        won = (newer[0] != newer[0]) | wins(newer[0], older[0])
        won = won & (newer[1] >= 0) if placed else won
        return chosen(won, newer, older)

    nothing: Callable[[Any], tuple[Any, ...]] = tuple if placed else lambda start: (start,)
    return Join(lift=lambda x, g, i: (x, i) if placed else (x,), join=join, nothing=nothing)


def _log_add_exp(older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
    """torch.logaddexp with a second derivative of 0 beside -inf, where that of torch is NaN.

    Of complex numbers torch's is NaN if one term is e^-88 of the other: beside 1 a number that small is its own
    logarithm.
    """
    first = older.real >= newer.real
    high, low = torch.where(first, older, newer), torch.where(first, newer, older)
    alone = (low.real.isneginf() | high.real.isinf()) & ~(low.isnan() | high.isnan())
    fraction = torch.exp(torch.where(alone, torch.zeros_like(high), low - high))
    small = fraction.abs() < torch.finfo(high.dtype).eps
    more = torch.where(small, fraction, torch.log1p(torch.where(small, torch.zeros_like(high), fraction)))
    return torch.where(alone, high, high + more)


JOINS: Mapping[str, Join] = MappingProxyType(
    {
        "logcumsumexp": Join(lift=lambda x, g, i: (x,), join=lambda older, newer: (_log_add_exp(older[0], newer[0]),)),
        "max": _extreme(torch.ge),
        "min": _extreme(torch.le),
        "cummax": _extreme(torch.ge, placed=True),
        "cummin": _extreme(torch.le, placed=True),
        "linear": Join(
            lift=lambda x, g, i: (torch.ones_like(x) if g is None else g, x),
            join=lambda older, newer: (older[0] * newer[0], newer[0] * older[1] + newer[1]),
            nothing=lambda start: (1, start),
            result=lambda states: states[1:],
        ),
    }
)


def _two_sum(older: States, newer: States) -> States:
    """Sums and their rounding errors (TwoSum)."""
    joined = older[0] + newer[0]
    of_newer = joined - older[0]
    more = (older[0] - (joined - of_newer)) + (newer[0] - of_newer)
    return joined, older[1] + newer[1] + more


def _two_product(older: States, newer: States) -> States:
    """Products and their rounding errors, exact by splitting the factors (TwoProduct)."""
    joined = older[0] * newer[0]
    (high, low), (newer_high, newer_low) = _halves(older[0]), _halves(newer[0])
    lost = low * newer_low - (((joined - high * newer_high) - low * newer_high) - high * newer_low)
    return joined, lost + (older[0] * newer[1] + older[1] * newer[0])


def _halves(x: torch.Tensor) -> States:
    """Two numbers of half the digits that add up to x (Veltkamp's splitting)."""
    scaled = x * (2.0 ** (27 if x.dtype == torch.float64 else 12) + 1)
    high = scaled - (scaled - x)
    return high, x - high


def _compensated(join: Callable[[States, States], States], *, regains: Callable[[States], torch.Tensor]) -> Join:
    """The combine of a compensated scan; ``regains`` says that the result includes the compensation."""
    return Join(
        lift=lambda x, g, i: (x, torch.zeros_like(x)),
        join=join,
        nothing=lambda start: (start, 0),
        result=lambda states: (torch.where(regains(states), states[0] + states[1], states[0]),),
    )


COMPENSATED: Mapping[str, Join] = MappingProxyType(
    {
        "sum": _compensated(_two_sum, regains=lambda states: ~states[1].isnan()),
        "prod": _compensated(_two_product, regains=lambda states: states[0].isfinite() & (states[0] != 0)),
    }
)


def join_of(call: Call) -> Join | None:
    """Return the combine of a call's operator on tensors of states, or None where there is none."""
    operator = operator_named(call.op)
    if call.compensated:
        return COMPENSATED[call.op]
    return JOINS.get(call.op) or (_of_elements(operator) if operator.of_elements else None)


def outputs(rule: Join, inputs: Inputs, call: Call, terms: torch.Tensor, keep: torch.Tensor | None) -> States:
    """Return the operator's outputs in the dtype of ``terms``, then the carry-outs if the call asks for them.

    ``rule`` is ``join_of(call)``, ``terms`` are what is scanned in place of x and its mask, ``keep`` a bool mask.
    """
    dim, shape = call.dim, terms.shape
    length, lines = shape[dim], line_shape(shape, call.dim)
    one = torch.zeros(lines, dtype=terms.dtype, device=terms.device).unsqueeze(dim)
    index, none = (torch.zeros_like(one, dtype=kind) for kind in (torch.int64, torch.bool))
    start = operator_named(call.op).start_of(dtype_named(terms.dtype))
    identity = zip(rule.lift(one, one, index), rule.nothing(start), strict=True)
    nothing = tuple(torch.full_like(each, n) for each, n in identity)
    gate = None if inputs.gate is None else inputs.gate.expand(shape).to(terms.dtype)
    states = rule.lift(terms, gate, places_along(terms, dim).expand(shape))
    if keep is not None:
        states = chosen(keep.expand(shape), states, nothing)
    # Before each item and after the last one: whether a segment starts there, which hides older items.
    flags = flags_along(inputs.starts, inputs.offsets, terms, dim)
    cut = torch.cat([none.expand(shape) if flags is None else flags, none], dim)
    if call.reverse:  # in reverse a segment ends at the item with its head flag
        states, cut = tuple(state.flip(dim) for state in states), cut.flip(dim)
    first = nothing
    if inputs.initial is not None:
        carried = inputs.initial.expand(lines).unsqueeze(dim)
        first = rule.lift(carried, torch.ones_like(carried), torch.full_like(index, -1))
    # At the start of the line and after each item, as if no segment started right after it.
    begins = None if flags is None else torch.cat([none, cut.narrow(dim, 0, length)], dim)
    after = _doubled(rule, _joined(first, states, dim), nothing, begins, dim)
    before = after if flags is None else chosen(cut, nothing, after)
    found = before if call.exclusive else after
    results = tuple(state.narrow(dim, 0 if call.exclusive else 1, length) for state in rule.result(found))
    results = tuple(result.flip(dim) if call.reverse else result for result in results)
    return (*results, rule.result(before)[0].select(dim, length)) if call.final else results


def _joined(first: States, then: States, dim: int) -> States:
    return tuple(torch.cat([one, other], dim) for one, other in zip(first, then, strict=True))


def _doubled(rule: Join, states: States, nothing: States, cut: torch.Tensor | None, dim: int) -> States:
    """The inclusive scan; ``cut`` marks items that older items are not combined with.

    There the identity is combined and then discarded by torch.where: a derivative through NaN or infinity would not
    vanish.
    """
    length, distance = states[0].shape[dim], 1
    while distance < length:
        older, newer = _parts(states, dim, 0, length - distance), _parts(states, dim, distance, length - distance)
        begins = None if cut is None else cut.narrow(dim, distance, length - distance)
        joined = rule.join(older if begins is None else chosen(begins, nothing, older), newer)
        if cut is not None and begins is not None:
            joined = chosen(begins, newer, joined)
            cut = torch.cat([cut.narrow(dim, 0, distance), cut.narrow(dim, 0, length - distance) | begins], dim)
        states = _joined(_parts(states, dim, 0, distance), joined, dim)
        distance *= 2
    return states


def _parts(states: States, dim: int, start: int, length: int) -> States:
    return tuple(state.narrow(dim, start, length) for state in states)
