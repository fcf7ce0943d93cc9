"""Log-sum-exp.

Intermediate values do not overflow: the scan state is the maximum and the sum of the other terms relative to it. An
item of -inf and a masked-out item contribute nothing; a line of nothing else gives -inf. From the first inf on the
result is inf, from the first NaN on it is NaN. Half types accumulate in float32.

Complex items compare by their real parts. The imaginary part of a result is that of the greatest item, the first of
equals, plus at most pi; torch's may differ by multiples of 2 pi, as it depends on the order torch adds in. Where the
real part is infinite the imaginary part is meaningless.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); here the sum leaves out the
maximum's own 1, which preserves small terms.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.operator import BACKWARD, FieldValues, Join, Operator

EXAMPLE = (0, 0, 1000, 1)


def _of_complex(h: complex, x: complex) -> complex:
    """log(exp(h) + exp(x)) of complex numbers; the angle is that of the term with the greater real part."""
    if cmath.isnan(h) or cmath.isnan(x):
        return complex(math.nan, math.nan)
    high, low = (h, x) if h.real >= x.real else (x, h)
    return high if math.isinf(high.real) else high + cmath.log(1 + cmath.exp(low - high))


def _of_real(h: float, x: float) -> float:
    """log(exp(h) + exp(x)), without overflow of the exponentials."""
    if math.isnan(h) or math.isnan(x):
        return math.nan
    high, low = max(h, x), min(h, x)
    return high if math.isinf(high) else high + math.log1p(math.exp(low - high))


def _of_tensors(olders: FieldValues, newers: FieldValues) -> FieldValues:
    """torch.logaddexp with a second derivative of 0 beside -inf, where that of torch is NaN.

    Of complex numbers torch's is NaN if one term is e^-88 of the other: beside 1 a number that small is its own
    logarithm.
    """
    older, newer = olders[0], newers[0]
    first = older.real >= newer.real
    high, low = older.where(first, newer), newer.where(first, older)
    alone = (low.real.isneginf() | high.real.isinf()) & ~(low.isnan() | high.isnan())
    fraction = (low - high).masked_fill(alone, 0).exp()
    small = 1 + fraction.abs() == 1  # rounded
    more = fraction.where(small, fraction.masked_fill(small, 0).log1p())
    return (high.where(alone, high + more),)


def _share(part: Any, whole: Any) -> Any:
    """exp(part - whole), at most 1; equal infinities differ by 0."""
    return (part - whole).masked_fill(part.isinf() & (part == whole), 0).exp()


# Results never decrease along a line, so the factors exp(newer.high - older.high) are at most 1. Equal infinities
# differ by 0; an item of -inf contributes to no result. near_exp(a, b) of floats is wrong by about
# |a - b| * 2^-24 of itself, no more than the rounding of the results a and b.
_GRADIENT = Operator(
    name="logcumsumexp_gradient",
    formula="y[i] = m[i] ? x[0] * exp(g[i] - v[0]) + ... + x[i] * exp(g[i] - v[i]) : 0",
    fields=("high", "value", "item", "keep"),
    types=("value", "value", "value", "index"),
    own=("item", "keep"),
    masked=True,
    saved="value",
    lift=("v", "x", "g", "m"),
    append=(
        "newer.high",
        "fma(older.value, near_ratio(newer.high, older.high), newer.value)",
        "newer.item",
        "newer.keep",
    ),
    combine=(
        "newer.high == infinity() ? older.high : newer.high",
        "fma(older.value, newer.high == infinity() ? 1 : near_ratio(newer.high, older.high), newer.value)",
        "newer.item",
        "newer.keep",
    ),
    identity=("highest", "0", "0", "0"),
    project="state.keep && state.item != -infinity() ? state.value * near_ratio(state.item, state.high) : 0",
    **BACKWARD,
    costly=True,
    start=(0, 0, 0, 0),
    step=lambda h, x, g, v, m: (x + (h[0] * math.exp(v - h[1]) if h[0] else 0), v, g, m),
    output=lambda h: h[0] * math.exp(h[2] - h[1]) if h[3] and h[2] != -math.inf else 0,
)

# The sum over a range is exp(high) * (1 + rest): the greatest term, and all others as fractions of it, so that
# nothing overflows and small terms beside a great one are not lost. Equal infinities count as equal terms. Within
# the few elements of a thread the first term takes the place of the greatest, as long as the fractions are bounded.
ROWS = (
    Operator(
        name="logcumsumexp",
        formula="y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))",
        fields=("high", "rest"),
        lift=("x", "0"),
        append=(
            "fmax(older.high, newer.high)",
            "add_term(older.rest, newer.high > older.high, ratio(older.high, newer.high))",
        ),
        extend=("older.high", "older.rest + near_exp(newer.high, older.high)"),
        holds=("true", "state.rest < 0x1p64f"),
        settle=("state.high", "state.rest"),
        behind=(
            "older.rest < 0 ? newer.high : older.high",
            "fma(exp_difference(newer.high, older.rest < 0 ? newer.high : older.high), newer.rest,\n"
            "        older.rest + exp_difference(newer.high, older.rest < 0 ? newer.high : older.high))",
        ),
        quick=(
            "first.rest >= 0x1p-6f && 16 * (state.rest - first.rest) <= 1 + first.rest",
            "plus_near_log(state.high, first.rest, state.rest)",
        ),
        combine=(
            "fmax(older.high, newer.high)",
            "fma(1 + (older.high >= newer.high ? newer.rest : older.rest), ratio(older.high, newer.high),\n"
            "        older.high >= newer.high ? older.rest : newer.rest)",
        ),
        identity=("lowest", "-1"),
        project="plus_log(state.high, state.rest)",
        carried="plus_carried_log(state.high, state.rest)",
        resume=("x", "0"),
        kinds=("float", "complex"),
        gives="kept",
        costly=True,
        commutative=True,
        start=-math.inf,
        step=_of_real,
        torch_name="logcumsumexp",
        # The gradient is NaN behind leading items of -inf; the second gradient also where the incoming gradient is 0,
        # as it is at the end of an exclusive scan.
        unsound=("gradients", "complex"),
        function="logcumsumexp",
        gradient=Gradient(row=_GRADIENT, gate="x", saved="y", begins=False, ends=False, of_carry=_share),
        derivative=Derivative(
            before=lambda line: _share(line.before, line.after),
            term=lambda line: _share(line.term, line.after).masked_fill(line.term == -math.inf, 0),
            kinds=("float",),  # complex infinities have many directions
        ),
        join=Join(combine=_of_tensors),
        forms={
            # The magnitude of exp(x) follows from the real part of x; other terms are complex fractions of the
            # greatest.
            "complex": {
                **dict.fromkeys(("append", "extend", "holds", "settle", "behind", "quick"), ()),
                "combine": (
                    "older.high.re >= newer.high.re ? older.high : newer.high",
                    "older.high.re >= newer.high.re\n"
                    "        ? older.rest + (Value{1, 0} + newer.rest) * exp_difference(newer.high, older.high)\n"
                    "        : newer.rest + (Value{1, 0} + older.rest) * exp_difference(older.high, newer.high)",
                ),
                "project": "both_nan(state.high + log1p(state.rest))",
                "carried": "",
                "kinds": ("complex",),
                "step": _of_complex,
            },
        },
    ),
)
