"""Sums and products.

Integers and bool widen to int64 and wrap around, as in torch. Half types accumulate in float32 and are rounded once,
when the result is stored. NaN and infinity propagate as in IEEE 754. A masked-out item counts as the identity whatever
its value, NaN included.

Source: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016), with tile totals
combined in a fixed order, so that the bits of a result never depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.operator import COMPENSATED, FieldValues, Join, Operator, where
from scanops.codegen.operators.recurrences import recurrence_gradient

EXAMPLE = (3, 1, 2, -1)

_SUM_GRADIENT = Operator(
    name="sum_gradient",
    formula="y[i] = m[i] ? x[0] + x[1] + ... + x[i] : 0",
    fields=("value", "keep"),
    types=("value", "index"),
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


def _compensate(
    nothing: int,
    *,
    join: Callable[[FieldValues, FieldValues], FieldValues],
    regains: Callable[[FieldValues], Any],
    **expressions: Any,
) -> dict[str, Any]:
    """The fields of a variant whose state is a value and what rounding has lost of it.

    ``join`` is the combine on tensors; ``regains`` says where the result includes what was lost.
    """
    return {
        "fields": ("value", "lost"),
        "lift": ("x", "0"),
        "identity": (str(nothing), "0"),
        "resume": ("x", "0"),
        "kinds": ("float",),
        "loss": "",
        "join": Join(
            combine=join,
            lift=lambda x, g, i: (x, 0),
            identity=(nothing, 0),
            result=lambda states: (where(regains(states), states[0] + states[1], states[0]),),
        ),
        **expressions,
    }


def _two_sum(older: FieldValues, newer: FieldValues) -> FieldValues:
    """Sums and their rounding errors (TwoSum)."""
    joined = older[0] + newer[0]
    of_newer = joined - older[0]
    more = (older[0] - (joined - of_newer)) + (newer[0] - of_newer)
    return joined, older[1] + newer[1] + more


def _product_gradient(*, after: bool = False) -> Operator:
    """The gradient of a product: a product is the recurrence y[i] = x[i] * y[i-1] + 0 of gates x, from 1.

    It divides by no item, so zeros among factors need no special case.
    """
    row = recurrence_gradient(after=after)
    return replace(
        row,
        name=row.name.replace("linear", "prod"),
        formula=row.formula.split(";")[0].replace(" : 0,", " : 0, times v[i],"),
        project=row.second,
        second="",
        before=("prod", "m ? g : 1"),
        output=lambda h: (h[0] + h[1]) * h[2] if h[3] else 0,
    )


def _two_product(older: FieldValues, newer: FieldValues) -> FieldValues:
    """Products and their rounding errors, which are constants to a derivative: the product itself has it."""
    joined = older[0] * newer[0]
    lost = _lost_by_product(older[0].detach(), newer[0].detach(), joined.detach())
    return joined, lost + (older[0] * newer[1] + older[1] * newer[0])


def _lost_by_product(x: Any, y: Any, product: Any) -> Any:
    """The rounding error of a product, as fma(x, y, -product) gives it.

    float64 holds a product of two float32 exactly. Of float64 the significands are multiplied and split, which neither
    overflows nor underflows, and the error is scaled by the greater power of two first (TwoProduct).
    """
    if x.dtype.itemsize < 8:
        return (x.double() * y.double() - product.double()).to(product.dtype)
    (of_x, scale_x), (of_y, scale_y) = _significand(x), _significand(y)
    (high, low), (high_y, low_y) = _halves(of_x), _halves(of_y)
    lost = low * low_y - (((of_x * of_y - high * high_y) - low * high_y) - high * low_y)
    return lost * scale_x.maximum(scale_y) * scale_x.minimum(scale_y)


def _significand(x: Any) -> FieldValues:
    """A number of absolute value in [1, 2), or 0, and the power of two by which it is multiplied to give x."""
    half = x.frexp().mantissa
    return 2 * half, where(half == 0, half + 1, x / (2 * half))


def _halves(x: Any) -> FieldValues:
    """Two numbers of half the digits of a float64 that add up to x (Veltkamp's splitting)."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


ROWS = (
    Operator(
        name="sum",
        formula="y[i] = x[0] + x[1] + ... + x[i]",
        combine=("older + newer",),
        identity=("0",),
        commutative=True,
        start=0,
        step=lambda h, x: h + x,
        torch_name="cumsum",
        function="cumsum",
        integer_masks=True,
        autocast=True,
        # An item passes through some dozens of additions on its way into a result, each off by at most 2^-24 of a
        # partial sum, which is at most the running sum of magnitudes; 128 is above that for every plan.
        roundings=lambda length: min(128.0, length),
        gradient=Gradient(masked=_SUM_GRADIENT, kinds=("float", "complex")),
        derivative=Derivative(),
        forms={
            # Beside the sum, the sum of the rounding errors. That of an infinite sum is NaN: the sum itself is the
            # result.
            COMPENSATED: _compensate(
                0,
                combine=(
                    "older.value + newer.value",
                    "older.lost + newer.lost + lost_by_sum(older.value, newer.value)",
                ),
                project="is_nan(state.lost) ? state.value : state.value + state.lost",
                join=_two_sum,
                regains=lambda states: ~states[1].isnan(),
            ),
        },
    ),
    Operator(
        name="prod",
        formula="y[i] = x[0] * x[1] * ... * x[i]",
        combine=("older * newer",),
        # Half of the products of factors on both sides of 1 are ties, which round down: in a tree, that is a bias.
        loss="fma(lost, newer, fma(older, newer, -(older * newer)))",
        identity=("1",),
        commutative=True,
        start=1,
        step=lambda h, x: h * x,
        torch_name="cumprod",
        unsound=("tangents",),  # divided by items: where one is 0 they are silently wrong
        function="cumprod",
        autocast=True,
        # A product multiplies the relative errors of all its n factors: about sqrt(n) * 2^-24 if they are independent,
        # and eight times that is out of reach of chance.
        roundings=lambda length: min(8.0 * math.sqrt(length), length),
        gradient=Gradient(
            row=_product_gradient(),
            after=_product_gradient(after=True),
            exclusive=True,
            gate="x",
            saved="before",
        ),
        derivative=Derivative(before=lambda line: line.term, term=lambda line: line.before),
        forms={
            # Beside the product, its rounding error: exact for each product, and multiplied by all later factors.
            COMPENSATED: _compensate(
                1,
                combine=(
                    "older.value * newer.value",
                    "fma(older.value, newer.value, -(older.value * newer.value))\n"
                    "        + (older.value * newer.lost + older.lost * newer.value)",
                ),
                project="state.value - state.value == 0 && state.value != 0 ? state.value + state.lost : state.value",
                join=_two_product,
                regains=lambda states: states[0].isfinite() & (states[0] != 0),
            ),
        },
    ),
)
