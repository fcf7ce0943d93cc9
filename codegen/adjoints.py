"""Gradients as data: which scan computes the gradient of each operator, and the operator rows of these scans.

A gradient is a scan in the opposite direction over the gradient of the result, ``x`` in the rows below. A row may also
read the forward's input or gate as ``g``, a tensor saved by the forward as ``v``, and its bool mask as ``m``. Values of
a single element are its *own* fields: a result is a function of the state and of these. No row divides, so factors of
zero need no special case.

The reference of a row is step(h, x, ...) with those of g, v, m and i, in this order, that its lift reads. The last
parts of h are the element's own; the result of an exclusive scan combines the preceding h with the own parts of the
next.

``ADJOINTS`` maps operators to rows and their operands. Sources: for the recurrence Martin and Cundy, "Parallelizing
Linear Recurrent Neural Nets Over Sequence Length" (2018), whose gradient is the recurrence in reverse; a product is the
recurrence y[i] = x[i] * y[i-1] + 0 from 1.
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
    """The scan that computes the gradient of an operator, and its operands besides the gradient of the result.

    It runs in the opposite direction over the same segments. Its carry-in is the gradient of the forward's carry-out;
    its carry-out is the gradient of the forward's carry-in.
    """

    row: str  # name of the scan's operator row
    masked: str = ""  # the row if there is a bool mask; empty: the same one
    after: str = ""  # the row for an exclusive forward scan; empty: the same one
    exclusive: bool | None = None  # whether the scan is exclusive; None: as the forward
    gate: Literal["", "x", "gate"] = ""  # the forward's operand that is read as g
    saved: Literal["", "y", "indices", "before"] = ""  # the tensor read as v: the forward's result, its indices, or the
    # result before each element: a ``LATEST`` scan of the saved result, else the exclusive form of the forward scan
    kinds: tuple[str, ...] = ("float",)  # kinds of dtypes that the scan is right for
    begins: bool = True  # whether it takes the gradient of the forward's carry-out as its carry-in
    ends: bool = True  # whether its carry-out is the gradient of the forward's carry-in


NO_PLACE, ANY_PLACE = "-3", "-2"  # indices of no run and of any run; -1 is that of the carry-in

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

# A later result is never below an earlier one, so the factors exp(newer.high - older.high) are at most 1. Equal
# infinities differ by 0; an element of -inf adds nothing to any result. The relative error of near_exp(d) in float is
# about |d| * 2^-24, no more than that of the results whose difference is d.
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

# The results that equal one element are neighbours: they form a run, which begins at that element.
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


# Its exclusive form moves each result to the next element, with regard to segments and carry-ins.
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
    """The gradient of max or min without saved indices: an element leads a run if it equals or beats the result.

    ``after``: for exclusive forward scans, where a run begins behind its leading element.
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
    """The gradient of h[i] = a[i] * h[i-1] + b[i]: the recurrence s[i] = a[i] * (x[i] + s[i+1]) in reverse.

    The gradient of b[i] is x[i] + s[i+1]; with ``gates`` that of a[i], the same times h[i-1], is a second output.
    ``after``: for exclusive forward scans, whose result i is h[i-1]: s[i] = a[i] * s[i+1] + x[i].

    The product of gates is a plain number, unlike that of the forward scan: where it overflows, so does its product
    with any value but 0.
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
    """The gradient of a product, which is a recurrence with b = 0: the gradient of its gates."""
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

_INDEXED = Adjoint(row="runs_gradient", saved="indices", begins=False)  # the index of a carry-out is not saved


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
