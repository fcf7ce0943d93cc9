"""Gradients as data: the scan that computes the gradient of each operator, and the operator rows of those scans.

A gradient is a scan of the result's gradient, ``x`` in the rows below, in the opposite direction. A row may also read
the forward scan's input or gate as ``g``, the saved tensor as ``v``, and the bool mask as ``m``. Values that belong to
one item and take no part in combine are fields listed in ``own``. No row divides, so zeros among factors need no
special case. ``step`` takes h, x and, in this order, those of g, v, m and i that lift mentions. The last parts of h are
the item's own fields, and an exclusive result combines the previous h with the own fields of the current item.

``ADJOINTS`` maps an operator to its row and the operands it reads. Sources: for recurrences Martin and Cundy,
"Parallelizing Linear Recurrent Neural Nets Over Sequence Length" (2018), whose gradient is the reverse recurrence; a
product is the recurrence y[i] = x[i] * y[i-1] + 0 with carry-in 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from scanops.codegen.operator import Operator
from scanops.codegen.table import BUILT_IN

__all__ = ["ADJOINTS", "ADJOINT_ROWS", "LATEST", "Adjoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjoint:
    """Which scan computes the gradient of an operator, and the operands it reads besides the result's gradient.

    The scan runs in the opposite direction over the same segments. Its carry-in is the gradient of the forward
    carry-out; its carry-out is the gradient of the forward carry-in.
    """

    row: str  # operator row of the scan
    masked: str = ""  # the row with a bool mask; by default the same row
    after: str = ""  # the row for an exclusive forward scan; by default the same row
    exclusive: bool | None = None  # whether the scan is exclusive; None: as the forward scan
    gate: Literal["", "x", "gate"] = ""  # the operand read as g
    saved: Literal["", "y", "indices", "before"] = (
        ""  # the operand read as v: the forward's result, its indices, or the
    )
    # result before each item: from the saved results by ``LATEST``, or from the exclusive forward scan
    kinds: tuple[str, ...] = ("float",)  # kinds of dtype that the scan supports
    begins: bool = True  # whether the gradient of the forward carry-out is supported, as its carry-in
    ends: bool = True  # whether its carry-out is the gradient of the forward carry-in


NO_PLACE, ANY_PLACE = "-3", "-2"  # index of no run, of any run; -1 is the carry-in

_SUM = Operator(
    name="sum_gradient",
    formula="y[i] = m[i] ? x[0] + x[1] + ... + x[i] : 0",
    fields=("value", "keep"),
    places=("keep",),
    own=("keep",),
    masked=True,
    lift=("x", "m"),
    combine=("older.value + newer.value", "newer.keep"),
    identity=("0", "0"),
    project="state.keep ? state.value : Value()",
    carried="state.value",
    resume=("x", "0"),
    resumed=lambda y: (y, 0),
    commutative=False,
    start=(0, 0),
    step=lambda h, x, m: (h[0] + x, m),
    output=lambda h: h[0] if h[1] else 0,
)

# Results never decrease along a line, so the factors exp(newer.high - older.high) are at most 1. Equal infinities
# differ by 0; an item of -inf contributes to no result. near_exp(d) of a float is wrong by about
# |d| * 2^-24 of itself, no more than the rounding of the results whose difference d is.
_NEXT = "newer.high == infinity() || newer.high == older.high"
_LOG_SUM = Operator(
    name="logcumsumexp_gradient",
    formula="y[i] = m[i] ? x[0] * exp(g[i] - v[0]) + ... + x[i] * exp(g[i] - v[i]) : 0",
    fields=("high", "value", "item", "keep"),
    places=("keep",),
    own=("item", "keep"),
    masked=True,
    saved="value",
    lift=("v", "x", "g", "m"),
    append=(
        "newer.high",
        "newer.value + older.value * (newer.high == older.high ? 1 : near_exp(newer.high - older.high))",
        "newer.item",
        "newer.keep",
    ),
    combine=(
        "newer.high == infinity() ? older.high : newer.high",
        f"newer.value + older.value * ({_NEXT} ? 1 : near_exp(newer.high - older.high))",
        "newer.item",
        "newer.keep",
    ),
    identity=("highest", "0", "0", "0"),
    project="state.keep && state.item != -infinity()\n"
    "        ? state.value * (state.item == state.high ? 1 : near_exp(state.item - state.high)) : 0",
    kinds=("float",),
    gives="kept",
    costly=True,
    commutative=False,
    start=(0, 0, 0, 0),
    step=lambda h, x, g, v, m: (x + (h[0] * math.exp(v - h[1]) if h[0] else 0), v, g, m),
    output=lambda h: h[0] * math.exp(h[2] - h[1]) if h[3] and h[2] != -math.inf else 0,
)

# The results that come from one item are consecutive: they form a run that starts at the item.
_RUNS = Operator(
    name="runs_gradient",
    formula="y[i] = the sum of those x[k], k <= i, whose v[k] is the index of x[i]",
    fields=("value", "index", "place"),
    places=("index", "place"),
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
    kinds=("float",),
    gives="kept",
    commutative=False,
    start=(0, -3, -3),
    step=lambda h, x, v, i: (x + (h[0] if h[1] == v else 0), v, i),
    output=lambda h: h[0] if h[1] == h[2] else 0,
)


# Exclusive, it shifts results by one item, and respects the starts of segments and lines.
_LATEST = Operator(
    name="latest",
    formula="y[i] = x[i]",
    fields=("value", "some"),
    places=("some",),
    lift=("x", "1"),
    combine=("newer.some ? newer.value : older.value", "older.some || newer.some"),
    identity=("0", "0"),
    project="state.value",
    resume=("x", "1"),
    kinds=("float",),
    gives="kept",
    commutative=False,
    start=(0, 0),
    step=lambda h, x: (x, 1),
    output=lambda h: h[0],
    resumed=lambda y: (y, 1),
)


def _extreme(name: str, sign: str, beats: Callable[[float, float], bool], *, after: bool = False) -> Operator:
    """The gradient of a maximum or minimum without saved indices: an item leads where it equals or beats the result.

    The gradients from a leading item up to the next one belong to it. With ``after``, for exclusive results, those
    after the item belong to it and the one at its own position does not.
    """
    leads = f"(m && (is_nan(g) || g {sign} v))"

    def step(h: tuple[float, ...], x: float, g: float, v: float, m: bool) -> tuple[float, ...]:
        lead = m and (g != g or beats(g, v))
        behind = 0 if lead else h[0]
        return (behind + x, 0, lead) if after else (0 if lead else h[0] + x, x, lead)

    return Operator(
        name=name + "_gradient" + "_after" * after,
        formula=f"y[i] = {leads} ? the sum of x {'behind' if after else 'from'} i back to the next item that leads : 0",
        fields=("value", "open", "item", "lead"),
        places=("open", "lead"),
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
        kinds=("float",),
        gives="kept",
        commutative=False,
        start=(0, 0, 0),
        step=step,
        output=lambda h: h[0] + h[1] if h[2] else 0,
        resumed=lambda y: (y, 0, 0),
    )


def _recurrence(*, after: bool = False, gates: bool = True) -> Operator:
    """The gradient of a recurrence: s[i] = a[i] * (x[i] + s[i+1]) is the gradient that reaches h[i-1] through h[i].

    The gradient of b[i] is x[i] + s[i+1]; the gradient of a[i], if ``gates``, is that times h[i-1]. With ``after``, for
    exclusive results, the result beside an item is h[i-1]: s[i] = a[i] * s[i+1] + x[i].

    The product of gates is a plain number here, unlike in the forward scan: where it overflows, so does the gradient
    that it multiplies, unless that is 0.
    """
    own = ("item", "before", "keep") if gates else ("item", "keep")
    newer, nothing = tuple(f"newer.{name}" for name in own), ("0",) * len(own)
    value, item = ("x", "0") if after else ("(m ? g : 1) * x", "x")
    y, s = ("s[i-1]", "s[i-1] + x[i]") if after else ("x[i] + s[i-1]", "(x[i] + s[i-1])")

    def step(h: tuple[float, ...], x: float, g: float, *others: float) -> tuple[float, ...]:
        factor = g if others[-1] else 1
        return (factor * h[0] + x, 0, *others) if after else (factor * (x + h[0]), x, *others)

    return replace(
        BUILT_IN["linear"],
        name="linear_gradient" + "_after" * after + "_of_terms" * (not gates),
        formula=f"y[i] = m[i] ? {y} : 0, s[i] = (m[i] ? g[i] : 1) * {s}" + "; z[i] = y[i] * v[i]" * gates,
        fields=("gate", "value", *own),
        places=("keep",),
        own=own,
        masked=True,
        saved="value" if gates else "",
        before=("",) if gates else (),
        lift=("m ? g : 1", value, item, *(("v",) if gates else ()), "m"),
        append=("older.gate * newer.gate", "newer.gate * older.value + newer.value", *newer),
        extend=(),
        holds=(),
        settle=(),
        combine=(
            "older.gate * newer.gate",
            "older.value == 0 ? newer.value : newer.gate * older.value + newer.value",
            *newer,
        ),
        identity=("1", "0", *nothing),
        project="state.keep ? state.item + state.value : 0",
        second="state.keep ? (state.item + state.value) * state.before : 0" if gates else "",
        carried="state.value",
        resume=("1", "x", *nothing),
        kinds=("float",),
        start=(0, *(0 for _ in own)),
        step=step,
        output=lambda h: h[0] + h[1] if h[-1] else 0,
        resumed=lambda y: (y, *(0 for _ in own)),
    )


def _product(*, after: bool = False) -> Operator:
    """The gradient of a product: that of the gates of a recurrence without items."""
    row = _recurrence(after=after)
    return replace(
        row,
        name=row.name.replace("linear", "prod"),
        formula=row.formula.split(";")[0].replace(" : 0,", " : 0, times v[i],"),
        project=row.second,
        second="",
        before=("prod", "m ? g : 1"),
        output=lambda h: (h[0] + h[1]) * h[2] if h[3] else 0,
    )


_ROWS = (
    *(_SUM, _LOG_SUM, _RUNS, _LATEST),
    *(_extreme("max", ">=", operator.ge, after=after) for after in (False, True)),
    *(_extreme("min", "<=", operator.le, after=after) for after in (False, True)),
    *(_recurrence(after=after, gates=gates) for after in (False, True) for gates in (False, True)),
    *(_product(after=after) for after in (False, True)),
)

ADJOINT_ROWS: Mapping[str, Operator] = MappingProxyType({row.name: row for row in _ROWS})

LATEST = _LATEST.name

_INDEXED = Adjoint(row="runs_gradient", saved="indices", begins=False)  # the item behind a carry-out is not saved


def _of_extreme(name: str) -> Adjoint:
    return Adjoint(row=f"{name}_gradient", after=f"{name}_gradient_after", exclusive=True, gate="x", saved="y")


ADJOINTS: Mapping[str, Adjoint] = MappingProxyType(
    {
        "sum": Adjoint(row="sum", masked="sum_gradient", kinds=("float", "complex")),
        "prod": Adjoint(row="prod_gradient", after="prod_gradient_after", exclusive=True, gate="x", saved="before"),
        "max": _of_extreme("max"),
        "min": _of_extreme("min"),
        "cummax": _INDEXED,
        "cummin": _INDEXED,
        "logcumsumexp": Adjoint(row="logcumsumexp_gradient", gate="x", saved="y", begins=False, ends=False),
        "linear": Adjoint(
            row="linear_gradient", after="linear_gradient_after", exclusive=True, gate="gate", saved="before"
        ),
    }
)
