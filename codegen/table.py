"""The operator table: one row for each built-in operator.

``Operator`` documents the fields of a row. ``FORMS`` are variants of rows with another state. Gradients of operators
are in codegen/adjoints.py, local derivatives in scanops/ops/linearised.py.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from scanops.codegen.operator import Operator

__all__ = ["BUILT_IN", "FORMS"]


def _log_add_exp_of_complex(h: complex, x: complex) -> complex:
    """log(exp(h) + exp(x)) of complex numbers; the angle is that of the term with the greater real part."""
    if cmath.isnan(h) or cmath.isnan(x):
        return complex(math.nan, math.nan)
    high, low = (h, x) if h.real >= x.real else (x, h)
    return high if math.isinf(high.real) else high + cmath.log(1 + cmath.exp(low - high))


def _log_add_exp(h: float, x: float) -> float:
    """log(exp(h) + exp(x)), without overflow of the exponentials."""
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
        # Half of the products of factors on both sides of 1 are ties, which round down: in a tree, that is a bias.
        loss="fma(lost, newer, fma(older, newer, -(older * newer)))",
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
    # The sum over a range is exp(high) * (1 + rest): the greatest term, and all others as fractions of it, so that
    # nothing overflows and small terms beside a great one are not lost. Equal infinities count as equal terms. Within
    # the few elements of a thread the first term takes the place of the greatest, as long as the fractions are bounded.
    Operator(
        name="logcumsumexp",
        formula="y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))",
        fields=("high", "rest"),
        lift=("x", "0"),
        append=(
            "fmax(older.high, newer.high)",
            "fma(older.rest, newer.high > older.high ? ratio(older.high, newer.high) : 1,\n"
            "        ratio(older.high, newer.high))",
        ),
        extend=("older.high", "older.rest + near_exp(newer.high - older.high)"),
        holds=("true", "state.rest < 0x1p64f"),
        settle=("state.high", "state.rest"),
        behind=(
            "older.rest < 0 ? newer.high : older.high",
            "fma(exp(newer.high - (older.rest < 0 ? newer.high : older.high)), newer.rest,\n"
            "        older.rest + exp(newer.high - (older.rest < 0 ? newer.high : older.high)))",
        ),
        combine=(
            "fmax(older.high, newer.high)",
            "fma(older.high >= newer.high ? newer.rest : older.rest, ratio(older.high, newer.high),\n"
            "        (older.high >= newer.high ? older.rest : newer.rest) + ratio(older.high, newer.high))",
        ),
        identity=("lowest", "-1"),
        project="state.high + log_of_more(state.rest)",
        resume=("x", "0"),
        kinds=("float", "complex"),
        gives="kept",
        costly=True,
        commutative=True,
        torch_name="logcumsumexp",
        start=-math.inf,
        step=_log_add_exp,
    ),
    # A state is the plain pair of a gate product and a value. Appending one element is a step of the recurrence itself.
    # Only a combine of two ranges multiplies by a product of gates, which may leave the range of Value: where it
    # underflows, its contribution is below 2^-149 of the running magnitude; where it overflows, a value of exactly 0
    # stays 0 and any other value overflows too.
    Operator(
        name="linear",
        formula="y[i] = g[i] * y[i-1] + x[i]",
        fields=("gate", "value"),
        lift=("g", "x"),
        append=("older.gate * newer.gate", "newer.gate * older.value + newer.value"),
        combine=(
            "older.gate * newer.gate",
            "is_zero(older.value) ? newer.value : newer.gate * older.value + newer.value",
        ),
        identity=("1", "0"),
        project="state.value",
        resume=("1", "x"),
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

# Variants with another state, by operator and by what selects them: a kind of accumulator, or "compensated".
FORMS: Mapping[tuple[str, str], Operator] = MappingProxyType(
    {
        # The magnitude of exp(x) follows from the real part of x; other terms are complex fractions of the greatest.
        ("logcumsumexp", "complex"): replace(
            BUILT_IN["logcumsumexp"],
            lift=("x", "0"),
            append=(),
            extend=(),
            holds=(),
            settle=(),
            behind=(),
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
        # Beside the sum, the sum of the rounding errors. That of an infinite sum is NaN: the sum itself is the result.
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
        # Beside the product, its rounding error: exact for each product, and multiplied by all later factors.
        ("prod", "compensated"): replace(
            BUILT_IN["prod"],
            fields=("value", "lost"),
            lift=("x", "0"),
            combine=(
                "older.value * newer.value",
                "fma(older.value, newer.value, -(older.value * newer.value))\n"
                "        + (older.value * newer.lost + older.lost * newer.value)",
            ),
            loss="",
            identity=("1", "0"),
            resume=("x", "0"),
            project="state.value - state.value == 0 && state.value != 0 ? state.value + state.lost : state.value",
            kinds=("float",),
        ),
    }
)
