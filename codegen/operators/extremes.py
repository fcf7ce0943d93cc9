"""Maxima and minima.

NaN propagates: from the first NaN on, the result is NaN. Among equal items, and among NaNs, the index is that of the
item scanned last, as in torch; with `reverse` items are scanned from the end, and indices still count from the start of
the input. Before the first unmasked item, and first in an exclusive scan, the value is the identity and the index is
-1.

Source: Pairs of a value and its index under the order of both are associative: Blelloch, "Prefix Sums and Their
Applications" (1990).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.operator import BACKWARD, Join, Operator, where

EXAMPLE = (2, 3, 3, 1)

NO_PLACE, ANY_PLACE = "-3", "-2"  # index of no run, of any run; -1 is the carry-in

# The results that come from one item are consecutive: they form a run that starts at the item.
_RUNS = Operator(
    name="runs_gradient",
    formula="y[i] = the sum of those x[k], k <= i, whose v[k] is the index of x[i]",
    fields=("value", "index", "place"),
    types=("value", "index", "index"),
    own=("place",),
    saved="place",
    lift=("x", "v", "i"),
    append=("newer.index == older.index ? older.value + newer.value : newer.value", "newer.index", "newer.place"),
    combine=(
        f"newer.index == older.index || newer.index == {ANY_PLACE} ? older.value + newer.value : newer.value",
        f"newer.index == {ANY_PLACE} ? older.index : newer.index",
        "newer.place",
    ),
    identity=("0", ANY_PLACE, NO_PLACE),
    project="state.index == state.place ? state.value : 0",
    carried="state.index == -1 ? state.value : 0",
    **BACKWARD,
    start=(0, -3, -3),
    step=lambda h, x, v, i: (x + (h[0] if h[1] == v else 0), v, i),
    output=lambda h: h[0] if h[1] == h[2] else 0,
)


def _gradient(name: str, sign: str, beats: Callable[[Any, Any], Any], *, after: bool = False) -> Operator:
    """The gradient of a maximum or minimum without saved indices: an item leads where it equals or beats the result.

    The gradients from a leading item up to the next one belong to it. With ``after``, for exclusive results, those
    after the item belong to it and the one at its own position does not.
    """
    leads = f"(m && (is_nan(g) || g {sign}= v))"

    def step(h: tuple[float, ...], x: float, g: float, v: float, m: bool) -> tuple[float, ...]:
        lead = m and (g != g or beats(g, v))
        behind = 0 if lead else h[0]
        return (behind + x, 0, lead) if after else (0 if lead else h[0] + x, x, lead)

    return Operator(
        name=name + "_gradient" + "_after" * after,
        formula=f"y[i] = {leads} ? the sum of x {'behind' if after else 'from'} i back to the next item that leads : 0",
        fields=("value", "open", "item", "lead"),
        types=("value", "index", "value", "index"),
        own=("item", "lead"),
        masked=True,
        saved="value",
        lift=("x", f"!{leads}", "0", leads) if after else (f"{leads} ? 0 : x", f"!{leads}", "x", leads),
        combine=(
            "newer.open ? older.value + newer.value : newer.value",
            "older.open && newer.open",
            "newer.item",
            "newer.lead",
        ),
        identity=("0", "1", "0", "0"),
        project="state.lead ? state.item + state.value : 0",
        carried="state.value",
        resume=("x", "1", "0", "0"),
        **BACKWARD,
        start=(0, 0, 0),
        step=step,
        output=lambda h: h[0] + h[1] if h[2] else 0,
        resumed=lambda y: (y, 0, 0),
    )


def _value(name: str, sign: str, beats: Callable[[Any, Any], Any], nothing: str) -> Operator:
    """The greatest or least item so far; of equal ones the newer has the whole gradient."""

    def follows(line: Any) -> Any:
        return (~(line.term.isnan() | beats(line.term, line.after))).to(line.term.dtype)

    return Operator(
        name=name,
        formula=f"y[i] = {name}(x[0], x[1], ..., x[i]), NaN from the first NaN on",
        combine=(f"is_nan(newer) || newer {sign} older ? newer : older",),
        identity=(nothing,),
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=True,
        start=nothing,
        step=lambda h, x: where((x != x) | beats(x, h), x, h),
        torch_name=f"cum{name}",
        gradient=Gradient(
            row=_gradient(name, sign, beats),
            after=_gradient(name, sign, beats, after=True),
            exclusive=True,
            gate="x",
            saved="y",
        ),
        derivative=Derivative(before=follows, term=lambda line: 1 - line.factor),
    )


def _with_index(name: str, sign: str, beats: Callable[[Any, Any], Any], nothing: str) -> Operator:
    """The greatest or least item so far, and the index of the newest of equal ones. An index below 0 is of no item."""

    def step(h: tuple[Any, Any], x: Any, i: Any) -> tuple[Any, Any]:
        won = (i >= 0) & ((x != x) | beats(x, h[0]))
        return where(won, x, h[0]), where(won, i, h[1])

    return Operator(
        name=f"cum{name}",
        formula=f"y[i] = {name}(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's",
        fields=("value", "index"),
        types=("value", "index"),
        lift=("x", "i"),
        combine=(f"newer.index >= 0 && (is_nan(newer.value) || newer.value {sign}= older.value) ? newer : older",),
        identity=(nothing, "-1"),
        project="state.value",
        resume=("x", "-1"),
        resumed=lambda y: (y, -1),
        indices="state.index",
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=False,
        start=(nothing, -1),
        step=step,
        torch_name=f"cum{name}",
        function=f"cum{name}",
        gradient=Gradient(row=_RUNS, saved="indices", begins=False),  # the item behind a carry-out is not saved
        join=Join(lift=lambda x, g, i: (x, i), combine=lambda older, newer: step(older, *newer)),
    )


_ORDERS: tuple[tuple[str, str, Callable[[Any, Any], Any], str], ...] = (
    ("max", ">", operator.ge, "lowest"),
    ("min", "<", operator.le, "highest"),
)

ROWS = (*(_value(*order) for order in _ORDERS), *(_with_index(*order) for order in _ORDERS))
