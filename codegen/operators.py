"""One row per operator. An operator is data: nothing else in the project names one.

A scan carries a *state*. ``lift`` makes a state of one element, ``combine`` joins the states of an older and a newer
stretch, ``project`` gives the output of a state, ``resume`` the state of an output that the scan goes on from, and
``identity`` is the state of nothing at all. The expressions are C++ over ``x`` (one element, already of the
accumulator's type ``Value``), ``g`` (the gate that comes with it, likewise), ``i`` (its index in the line, as it lies
in memory), ``older`` and ``newer`` (states) and ``state``; ``is_nan(value)`` may be asked of any dtype, and ``lowest``
and ``highest`` stand for the output dtype's bounds, infinities of a floating one. With one field a state is a plain
``Value``; with more it is a struct, and fields are read as ``older.gate``.

``combine`` must be associative and need not be commutative: every kernel keeps the older operand on the left.
``start`` and ``step`` are the same operator written as the recurrence a reader would write: h = step(h, x), and
y = output(h). Tests hold each kernel to it, so it must not be derived from the expressions.
"""

from __future__ import annotations

import cmath
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from scanops.codegen.dtypes import DTYPES, DType, kept_result, scan_result
from scanops.codegen.rows import check_row
from scanops.errors import UnsupportedRequest

__all__ = ["BUILT_IN", "FORMS", "OPERATORS", "Operator", "form_of", "operator_named", "register_operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An associative operator to scan with: ``y[i] = project(lift(x[0]) combined with ... combined with lift(x[i]))``.

    The expressions are C++, as this module's opening describes; ``start``, ``step`` and ``output`` are the reference in
    Python. ``scanops.check_operator`` holds one to the other and looks for what breaks the laws of a scan.

    For an operator that torch does not have, ``step`` and ``output`` also compute on the CPU, under ``torch.compile``
    and ``torch.func`` and for gradients: h and x are then tensors that hold an item of every line, so that a branch is
    a ``torch.where``.

    Raises:
        UnsupportedRequest: a field that is not as described, at construction.

    Example:
        >>> import torch, scanops
        >>> last = scanops.Operator(
        ...     name="last",
        ...     formula="y[i] = x[i], or the newest before it that is not 0",
        ...     lift=("x",),
        ...     combine=("newer != 0 ? newer : older",),
        ...     identity=("0",),
        ...     gives="kept",
        ...     commutative=False,
        ...     start=0,
        ...     step=lambda h, x: torch.where(x != 0, x, h),
        ... )
        >>> scanops.scan(torch.tensor([3, 0, 0, 5, 0]), last, 0)
        tensor([3, 3, 3, 5, 5])

    Source: state, lift, combine and project are how Blelloch, "Prefix Sums and Their Applications" (1990), makes scans
    of recurrences.
    """

    name: str  # small letters, digits and _: how the operator is called in requests and file names
    formula: str  # the output in terms of the input, for docstrings and banners
    fields: tuple[str, ...] = ("value",)  # the state's fields
    places: tuple[str, ...] = ()  # those that are of type int, as an index in the line is; all others are of type Value
    lift: tuple[str, ...]  # one expression over x, i and g for each field
    combine: tuple[str, ...]  # one expression over older and newer for each field, or one for the whole state
    # The same where newer is one element, lifted and not combined with anything yet, if that is cheaper.
    append: tuple[str, ...] = ()
    identity: tuple[str, ...]  # one constant for each field
    project: str = "state"  # an expression over state, of type Value
    # The state of a result x that is carried in: one expression for each field. None: as that of an element, where a
    # state is one; else nothing can be carried in.
    resume: tuple[str, ...] = ()
    indices: str = ""  # an expression over state for a second output, of int64: an index in the line; -1: there is none
    kinds: tuple[str, ...] = ("int", "float", "complex")  # legal kinds of the output dtype
    gives: Literal["widened", "kept", "bool"] = "widened"  # the output dtype by default: see RESULTS
    ordered: bool = False  # whether values are compared: signed integers are scanned as such, and do not wrap
    costly: bool = False  # whether combine and project are hundreds of instructions in double: called, not repeated
    commutative: bool  # whether a test may swap operands to catch a wrong claim; kernels never rely on it
    torch_name: str | None = None  # torch's function with the same inclusive, forward result
    start: Any  # h before the first element; or a word of WORDS; a tuple where there are indices
    step: Callable[..., Any]  # h after the element x: step(h, x); step(h, x, i), step(h, x, g) where lift mentions them
    output: Callable[[Any], Any] | None = None  # the result of h; None: h itself, or its parts where there are indices
    resumed: Callable[[Any], Any] | None = None  # h after a result that is carried in; None: that itself

    def __post_init__(self) -> None:
        check_row(self, RESULTS, WORDS)

    def __reduce__(self) -> tuple[Any, ...]:
        # Built-in rows travel by name: their lambdas have none. One of yours travels when its functions have names.
        if BUILT_IN.get(self.name) is self:
            return operator_named, (self.name,)
        return _rebuilt, ({field.name: getattr(self, field.name) for field in fields(self)},)

    @property
    def content(self) -> tuple[object, ...]:
        """What results follow from, save functions, which cannot be compared: two rows of equal content are one."""
        functions = ("step", "output", "resumed")
        return tuple(getattr(self, field.name) for field in fields(self) if field.name not in functions)

    @property
    def gated(self) -> bool:
        """Whether each element comes with one of a second input."""
        return any(re.search(r"\bg\b", text) for text in self.lift)

    @property
    def places_items(self) -> bool:
        """Whether a state is made of an element and of where it is."""
        return any(re.search(r"\bi\b", text) for text in self.lift)

    @property
    def of_elements(self) -> bool:
        """Whether a state is an element, so that ``step`` joins any two stretches."""
        return self.lift == ("x",) and self.project == "state"

    @property
    def appends(self) -> tuple[str, ...]:
        """How an element joins what is older: one expression for each field, or one for the whole state."""
        return self.append or self.combine

    @property
    def resumes(self) -> tuple[str, ...]:
        """The state of a result x that is carried in; empty where that does not tell it."""
        return self.resume or (self.lift if self.of_elements else ())

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
        resume=("x", "-1"),
        resumed=lambda y: (y, -1),
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
        resume=("x", "-1"),
        resumed=lambda y: (y, -1),
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
            "        * (older.high == newer.high ? 1 : fraction(fabs(older.high - newer.high)))",
        ),
        identity=("lowest", "-1"),
        project="state.high + log1p(state.rest)",
        resume=("x", "0"),
        kinds=("float", "complex"),
        gives="kept",
        costly=True,
        commutative=True,
        torch_name="logcumsumexp",
        start=-math.inf,
        step=_log_add_exp,
    ),
    # The product of gates is kept as gate * 2^power, 0.5 <= |gate| < 1: if it went to 0 or inf although no gate is, a
    # result of inf or 0 times that would be NaN, which the recurrence does not make of it. Only totals need it: behind
    # what it comes after, an element is one step of the recurrence.
    Operator(
        name="linear",
        formula="y[i] = g[i] * y[i-1] + x[i]",
        fields=("gate", "power", "value"),
        places=("power",),
        lift=("g", "0", "x"),
        append=(
            "mantissa(older.gate * newer.gate)",
            "bounded(older.power + exponent(older.gate * newer.gate))",
            "newer.gate * older.value + newer.value",
        ),
        combine=(
            "settled(older.gate * newer.gate)",
            "bounded(older.power + newer.power + unsettled(older.gate * newer.gate))",
            "scaled(newer.gate * older.value, newer.power) + newer.value",
        ),
        identity=("1", "0", "0"),
        project="state.value",
        resume=("1", "0", "x"),
        gives="kept",
        commutative=False,
        start=0,
        step=lambda h, x, g: g * h + x,
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
_REGISTERING = threading.Lock()  # readers take none: a row, once there, is only ever replaced by its equal

# The same operators with another state, by name and by what asks for it: a kind of accumulator, or a word.
FORMS: Mapping[tuple[str, str], Operator] = MappingProxyType(
    {
        # Complex terms are as great as their real parts; the others are fractions of the greatest, turned by angles.
        ("logcumsumexp", "complex"): replace(
            BUILT_IN["logcumsumexp"],
            lift=("x", "Value{0, 0}"),
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
            resume=("x", "0"),
            project="is_nan(state.lost) ? state.value : state.value + state.lost",
            kinds=("float",),
        ),
        # Likewise of products: what rounding one loses is exact, and is multiplied by all that follows.
        ("prod", "compensated"): replace(
            BUILT_IN["prod"],
            fields=("value", "lost"),
            lift=("x", "0"),
            combine=(
                "older.value * newer.value",
                "fma(older.value, newer.value, -(older.value * newer.value))\n"
                "        + (older.value * newer.lost + older.lost * newer.value)",
            ),
            identity=("1", "0"),
            resume=("x", "0"),
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
            allowed=", ".join(repr(known) for known in tuple(OPERATORS)),
            value=repr(name),
            hint="pass one of the names above as a string, or a scanops.Operator",
        )
    return row


def register_operator(operator: Operator) -> Operator:
    """Let ``operator`` be called by its name in this process: in ``scanops.scan``, ``ScanSpec`` and ``generate``.

    ``scanops.scan`` registers the operator it is given, so this is needed only where a name is used first: in another
    process that is sent a spec, or to build kernels ahead. To register an equal operator again does nothing. Kernels
    are told apart by their text and not by a name, so that two processes that mean different things by one name can
    share a store. Threads may register at the same time.

    Returns:
        The operator.

    Raises:
        UnsupportedRequest: not an Operator; a name that a different operator has; one with ``indices``, which only
            ``cummax`` and ``cummin`` return.

    Example:
        >>> import scanops
        >>> scanops.register_operator(operator_named("sum")).name
        'sum'
    """
    if not isinstance(operator, Operator):
        raise UnsupportedRequest(
            "to register an operator",
            allowed="a scanops.Operator",
            value=repr(operator),
            hint="construct one: scanops.Operator(name=..., lift=..., combine=..., ...)",
        )
    if OPERATORS.get(operator.name) is operator:
        return operator
    if operator.indices:
        raise UnsupportedRequest(
            f"to register the operator {operator.name!r} with a second output",
            allowed="indices='': one output; scanops.cummax and scanops.cummin return indices",
            value=f"indices={operator.indices!r}",
            hint="scan twice, or project the index itself into an integer output",
        )
    with _REGISTERING:
        known = OPERATORS.get(operator.name)
        if operator.name in BUILT_IN or (known is not None and known.content != operator.content):
            raise UnsupportedRequest(
                f"to register another operator called {operator.name!r}",
                allowed="a name that no operator of different content has: each is called by its name",
                value=f"name={operator.name!r}, which {'is built in' if operator.name in BUILT_IN else 'is taken'}",
                hint=f"give it a name of its own, for example {operator.name + '_2'!r}",
            )
        OPERATORS[operator.name] = operator
    return operator


def _rebuilt(values: Mapping[str, Any]) -> Operator:
    return Operator(**values)
