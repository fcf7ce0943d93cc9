"""One row per operator. An operator is data: nothing else in the project names one.

A scan carries a *state*. ``lift`` makes a state of one element, ``combine`` joins the states of an older and a newer
stretch, ``project`` gives the output of a state, ``identity`` is the state of nothing at all. The expressions are C++
over ``x`` (one element, already of the accumulator's type ``Value``), ``i`` (its index in the line, as it lies in
memory), ``older`` and ``newer`` (states) and ``state``; ``is_nan(value)`` may be asked of any dtype, and ``lowest`` and
``highest`` stand for the output dtype's bounds, infinities of a floating one. With one field a state is a plain
``Value``; with more it is a struct, and fields are read as ``older.gate``.

``combine`` must be associative and need not be commutative: every kernel keeps the older operand on the left.
``start`` and ``step`` are the same operator written as the recurrence a reader would write: h = step(h, x). Tests hold
each kernel to it, so it must not be derived from the expressions.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from scanops.codegen.dtypes import DTYPES, DType, kept_result, scan_result
from scanops.errors import UnsupportedRequest

__all__ = ["BUILT_IN", "FORMS", "OPERATORS", "Operator", "form_of", "operator_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An associative operator to scan with."""

    name: str
    formula: str  # the output in terms of the input, for docstrings and banners
    fields: tuple[str, ...] = ("value",)  # the state's fields
    places: tuple[str, ...] = ()  # those that hold an index in the line, of type int; all others are of type Value
    lift: tuple[str, ...]  # one expression over x and i for each field
    combine: tuple[str, ...]  # one expression over older and newer for each field, or one for the whole state
    identity: tuple[str, ...]  # one constant for each field
    project: str = "state"  # an expression over state, of type Value
    indices: str = ""  # an expression over state for a second output, of int64: an index in the line; -1: there is none
    kinds: tuple[str, ...] = ("int", "float", "complex")  # legal kinds of the output dtype
    gives: Literal["widened", "kept", "bool"] = "widened"  # the output dtype by default: see RESULTS
    ordered: bool = False  # whether values are compared: signed integers are scanned as such, and do not wrap
    costly: bool = (
        False  # whether combine and project are hundreds of instructions in double: called then, not repeated
    )
    commutative: bool  # whether a test may swap operands to catch a wrong claim; kernels never rely on it
    torch_name: str | None = None  # torch's function with the same inclusive, forward result
    start: Any  # h before the first element; or a word of WORDS; a tuple where there are indices
    step: Callable[..., Any]  # h after the element x: step(h, x); step(h, x, i) where there are indices

    @property
    def places_items(self) -> bool:
        """Whether a state is made of an element and of where it is."""
        return any(re.search(r"\bi\b", text) for text in self.lift)

    @property
    def of_elements(self) -> bool:
        """Whether a state is an element, so that ``step`` joins any two stretches."""
        return self.lift == ("x",) and self.project == "state"

    def result(self, term: DType) -> DType:
        """The dtype of the output for elements of dtype ``term``, when none is asked for."""
        return RESULTS[self.gives](term)

    def start_of(self, out: DType) -> Any:
        """``start`` in numbers, for an output dtype."""
        parts = self.start if isinstance(self.start, tuple) else (self.start,)
        numbers = tuple(WORDS[part](out) if isinstance(part, str) else part for part in parts)
        return numbers if isinstance(self.start, tuple) else numbers[0]


RESULTS: Mapping[str, Callable[[DType], DType]] = MappingProxyType(
    {
        "widened": scan_result,  # integers become int64, as torch.cumsum has it
        "kept": kept_result,
        "bool": lambda term: DTYPES["bool"],
    }
)

WORDS: Mapping[str, Callable[[DType], int | float]] = MappingProxyType(
    {
        "lowest": lambda out: out.lowest,
        "highest": lambda out: out.highest,
        "ones": lambda out: -1 if out.lowest < 0 else out.highest,  # every bit is set
    }
)


def _log_add_exp_of_complex(h: complex, x: complex) -> complex:
    """The same, with the angle that the term of the greater real part gives it: others are as good, a turn apart."""
    if cmath.isnan(h) or cmath.isnan(x):
        return complex(math.nan, math.nan)
    high, low = (h, x) if h.real >= x.real else (x, h)
    return high if math.isinf(high.real) else high + cmath.log(1 + cmath.exp(low - high))


def _log_add_exp(h: float, x: float) -> float:
    """log(exp(h) + exp(x)), whatever overflows on the way."""
    if math.isnan(h) or math.isnan(x):
        return math.nan
    high, low = max(h, x), min(h, x)
    return high if math.isinf(high) else high + math.log1p(math.exp(low - high))


_ROWS = (
    Operator(
        name="sum",
        formula="y[i] = x[0] + x[1] + ... + x[i]",
        lift=("x",),
        combine=("older + newer",),
        identity=("0",),
        commutative=True,
        torch_name="cumsum",
        start=0,
        step=lambda h, x: h + x,
    ),
    Operator(
        name="prod",
        formula="y[i] = x[0] * x[1] * ... * x[i]",
        lift=("x",),
        combine=("older * newer",),
        identity=("1",),
        commutative=True,
        torch_name="cumprod",
        start=1,
        step=lambda h, x: h * x,
    ),
    Operator(
        name="max",
        formula="y[i] = max(x[0], x[1], ..., x[i]), NaN from the first NaN on",
        lift=("x",),
        combine=("is_nan(newer) || newer > older ? newer : older",),
        identity=("lowest",),
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=True,
        torch_name="cummax",
        start="lowest",
        step=lambda h, x: h if h >= x or h != h else x,
    ),
    Operator(
        name="min",
        formula="y[i] = min(x[0], x[1], ..., x[i]), NaN from the first NaN on",
        lift=("x",),
        combine=("is_nan(newer) || newer < older ? newer : older",),
        identity=("highest",),
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=True,
        torch_name="cummin",
        start="highest",
        step=lambda h, x: h if h <= x or h != h else x,
    ),
    Operator(
        name="cummax",
        formula="y[i] = max(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's",
        fields=("value", "index"),
        places=("index",),
        lift=("x", "i"),
        combine=("newer.index >= 0 && (is_nan(newer.value) || newer.value >= older.value) ? newer : older",),
        identity=("lowest", "-1"),
        project="state.value",
        indices="state.index",
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=False,
        torch_name="cummax",
        start=("lowest", -1),
        step=lambda h, x, i: (x, i) if x >= h[0] or x != x else h,
    ),
    Operator(
        name="cummin",
        formula="y[i] = min(x[0], x[1], ..., x[i]), and its index: of equals and of NaNs the last one's",
        fields=("value", "index"),
        places=("index",),
        lift=("x", "i"),
        combine=("newer.index >= 0 && (is_nan(newer.value) || newer.value <= older.value) ? newer : older",),
        identity=("highest", "-1"),
        project="state.value",
        indices="state.index",
        kinds=("bool", "int", "float"),
        gives="kept",
        ordered=True,
        commutative=False,
        torch_name="cummin",
        start=("highest", -1),
        step=lambda h, x, i: (x, i) if x <= h[0] or x != x else h,
    ),
    # A stretch amounts to exp(high) * (1 + rest): the greatest term and all others as fractions of it, so that nothing
    # overflows and small terms beside a great one are not lost. Terms of equal infinities count as equals.
    Operator(
        name="logcumsumexp",
        formula="y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))",
        fields=("high", "rest"),
        lift=("x", "0"),
        combine=(
            "older.high >= newer.high ? older.high : newer.high",
            "(older.high >= newer.high ? older.rest : newer.rest)\n"
            "        + (1 + (older.high >= newer.high ? newer.rest : older.rest))\n"
            "        * (older.high == newer.high ? 1 : exp(-fabs(older.high - newer.high)))",
        ),
        identity=("lowest", "-1"),
        project="state.high + log1p(state.rest)",
        kinds=("float", "complex"),
        gives="kept",
        costly=True,
        commutative=True,
        torch_name="logcumsumexp",
        start=-math.inf,
        step=_log_add_exp,
    ),
    Operator(
        name="bitwise_and",
        formula="y[i] = x[0] & x[1] & ... & x[i]",
        lift=("x",),
        combine=("older & newer",),
        identity=("~0",),
        kinds=("bool", "int"),
        gives="kept",
        commutative=True,
        start="ones",
        step=lambda h, x: h & x,
    ),
    Operator(
        name="bitwise_or",
        formula="y[i] = x[0] | x[1] | ... | x[i]",
        lift=("x",),
        combine=("older | newer",),
        identity=("0",),
        kinds=("bool", "int"),
        gives="kept",
        commutative=True,
        start=0,
        step=lambda h, x: h | x,
    ),
    Operator(
        name="bitwise_xor",
        formula="y[i] = x[0] ^ x[1] ^ ... ^ x[i]",
        lift=("x",),
        combine=("older ^ newer",),
        identity=("0",),
        kinds=("bool", "int"),
        gives="kept",
        commutative=True,
        start=0,
        step=lambda h, x: h ^ x,
    ),
    Operator(
        name="logical_and",
        formula="y[i] = x[0] and x[1] and ... and x[i], where anything but 0 is true",
        lift=("x",),
        combine=("older & newer",),
        identity=("1",),
        kinds=("bool",),
        gives="bool",
        commutative=True,
        start=1,
        step=lambda h, x: h & (x != 0),
    ),
    Operator(
        name="logical_or",
        formula="y[i] = x[0] or x[1] or ... or x[i], where anything but 0 is true",
        lift=("x",),
        combine=("older | newer",),
        identity=("0",),
        kinds=("bool",),
        gives="bool",
        commutative=True,
        start=0,
        step=lambda h, x: h | (x != 0),
    ),
)

BUILT_IN: Mapping[str, Operator] = MappingProxyType({row.name: row for row in _ROWS})
OPERATORS: dict[str, Operator] = dict(BUILT_IN)

# The same operators with another state, by name and by what asks for it: a kind of accumulator, or a word.
FORMS: Mapping[tuple[str, str], Operator] = MappingProxyType(
    {
        # Complex terms are as great as their real parts; the others are fractions of the greatest, turned by angles.
        ("logcumsumexp", "complex"): replace(
            BUILT_IN["logcumsumexp"],
            lift=("x", "{0, 0}"),
            combine=(
                "older.high.re >= newer.high.re ? older.high : newer.high",
                "older.high.re >= newer.high.re\n"
                "        ? older.rest + (Value{1, 0} + newer.rest) * exp_difference(newer.high, older.high)\n"
                "        : newer.rest + (Value{1, 0} + older.rest) * exp_difference(older.high, newer.high)",
            ),
            project="both_nan(state.high + log1p(state.rest))",
            kinds=("complex",),
            step=_log_add_exp_of_complex,
        ),
        # Beside the sum, the sum of what its additions lose. An infinite sum loses NaN: it is then the result itself.
        ("sum", "compensated"): replace(
            BUILT_IN["sum"],
            fields=("value", "lost"),
            lift=("x", "0"),
            combine=(
                "older.value + newer.value",
                "older.lost + newer.lost + lost_by_sum(older.value, newer.value)",
            ),
            identity=("0", "0"),
            project="is_nan(state.lost) ? state.value : state.value + state.lost",
            kinds=("float",),
        ),
    }
)


def form_of(row: Operator, form: str) -> Operator:
    """The row that computes ``row`` in a form of ``FORMS``; itself where it needs no other."""
    return FORMS.get((row.name, form), row) if BUILT_IN.get(row.name) is row else row


def operator_named(name: object) -> Operator:
    """The row called ``name``."""
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            f"a scan with the operator {name!r}",
            allowed=", ".join(repr(known) for known in OPERATORS),
            value=repr(name),
            hint="pass one of the names above as a string",
        )
    return row
