"""Linear recurrences.

Called as `scanops.linear_scan(gate, x, dim)`. Results equal the recurrence computed item by item, to within rounding,
including the effects of NaN, infinite items and zero gates. After an infinite gate no result is finite, but NaN may
appear where the sequential recurrence gives an infinity. The product of the gates of a range of items may underflow,
which drops terms below 2^-149 of the running magnitude, or overflow, which leaves a value of exactly 0 alone and makes
any other infinite or NaN. A masked-out item leaves the result unchanged.

Source: Pairs of a gate and a value, (a, b) then (c, d) -> (ca, cb + d): Blelloch, "Prefix Sums and Their Applications"
(1990), section 1.4. The gradient is the reverse recurrence: Martin and Cundy, "Parallelizing Linear Recurrent Neural
Nets Over Sequence Length" (2018).
"""

from __future__ import annotations

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.operator import BACKWARD, Join, Operator

EXAMPLE = (8, 0, 0, 1)

# An exclusive scan with it shifts results by one item, and respects the starts of segments and lines.
LATEST = Operator(
    name="latest",
    formula="y[i] = x[i]",
    fields=("value", "some"),
    types=("value", "index"),
    lift=("x", "1"),
    combine=("newer.some ? newer.value : older.value", "older.some || newer.some"),
    identity=("0", "0"),
    project="state.value",
    resume=("x", "1"),
    **BACKWARD,
    start=(0, 0),
    step=lambda h, x: (x, 1),
    output=lambda h: h[0],
    resumed=lambda y: (y, 1),
)

# Expressions around a scan have its state, its combine and its results (scanops/fusion/kernel.py).
EXPRESSIONS = Operator(
    name="expressions",
    formula="y[i] = then(s[i]), s[i] = combine(s[i-1], mapped(x[i]))",
    lift=("x",),
    combine=("newer",),
    identity=("0",),
    kinds=("int", "float", "bool"),
    gives="kept",
    commutative=False,
    start=0,
    step=lambda h, x: x,
)


def recurrence_gradient(*, after: bool = False, gates: bool = True) -> Operator:
    """Return the row of the gradient: s[i] = a[i] * (x[i] + s[i+1]) is the gradient that reaches h[i-1] through h[i].

    The gradient of b[i] is x[i] + s[i+1]; the gradient of a[i], if ``gates``, is that times h[i-1]. With ``after``, for
    exclusive results, the result beside an item is h[i-1]: s[i] = a[i] * s[i+1] + x[i].

    The product of gates is a plain number: where it overflows, so does the gradient that it multiplies, unless that is
    0.
    """
    own = ("item", "before", "keep") if gates else ("item", "keep")
    newer, nothing = tuple(f"newer.{name}" for name in own), ("0",) * len(own)
    value, item = ("x", "0") if after else ("(m ? g : 1) * x", "x")
    y, s = ("s[i-1]", "s[i-1] + x[i]") if after else ("x[i] + s[i-1]", "(x[i] + s[i-1])")

    def step(h: tuple[float, ...], x: float, g: float, *others: float) -> tuple[float, ...]:
        factor = g if others[-1] else 1
        return (factor * h[0] + x, 0, *others) if after else (factor * (x + h[0]), x, *others)

    return Operator(
        name="linear_gradient" + "_after" * after + "_of_terms" * (not gates),
        formula=f"y[i] = m[i] ? {y} : 0, s[i] = (m[i] ? g[i] : 1) * {s}" + "; z[i] = y[i] * v[i]" * gates,
        fields=("gate", "value", *own),
        types=(*["value"] * (1 + len(own)), "index"),
        own=own,
        masked=True,
        saved="value" if gates else "",
        before=("linear",) if gates else (),
        lift=("m ? g : 1", value, item, *(("v",) if gates else ()), "m"),
        append=("older.gate * newer.gate", "newer.gate * older.value + newer.value", *newer),
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
        **BACKWARD,
        start=(0, *(0 for _ in own)),
        step=step,
        output=lambda h: h[0] + h[1] if h[-1] else 0,
        resumed=lambda y: (y, *(0 for _ in own)),
    )


def _gradient(*, gates: bool) -> Gradient:
    row, after = (recurrence_gradient(gates=gates, after=after) for after in (False, True))
    return Gradient(row=row, after=after, exclusive=True, gate="gate", saved="before")


# A state is the plain pair of a gate product and a value. Appending one element is a step of the recurrence itself.
# Only a combine of two ranges multiplies by a product of gates, which may leave the range of Value: where it
# underflows, its contribution is below 2^-149 of the running magnitude; where it overflows, a value of exactly 0
# stays 0 and any other value overflows too.
ROWS = (
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
        function="linear_scan",
        gradient=_gradient(gates=True)._replace(of_terms=_gradient(gates=False)),
        derivative=Derivative(before=lambda line: line.gate, gate=lambda line: line.before),
        join=Join(
            lift=lambda x, g, i: (g, x),
            combine=lambda older, newer: (older[0] * newer[0], newer[0] * older[1] + newer[1]),
            identity=(1, 0),
            result=lambda states: states[1:],
        ),
    ),
)
