"""Bitwise and logical operators.

Bitwise operators take bool and integers and keep the dtype. Logical operators take any dtype, treat every nonzero item
as true (NaN included), and return bool.

Source: Blelloch, "Prefix Sums and Their Applications" (1990).
"""

from __future__ import annotations

from scanops.codegen.operator import Operator

EXAMPLE = (6, 3, 2, 0)

ROWS = (
    Operator(
        name="bitwise_and",
        formula="y[i] = x[0] & x[1] & ... & x[i]",
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
        combine=("older | newer",),
        identity=("0",),
        kinds=("bool",),
        gives="bool",
        commutative=True,
        start=0,
        step=lambda h, x: h | (x != 0),
    ),
)
