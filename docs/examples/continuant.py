"""A product of 2x2 matrices, each made of one element: y[i] = K(x[0], ..., x[i]), Euler's continuant.

K(x[0], ..., x[i]) is the upper left item of [[x[0], 1], [1, 0]] ... [[x[i], 1], [1, 0]]: the numerator of the continued
fraction x[0] + 1/(x[1] + 1/(...)). Of ones it is 1, 2, 3, 5, 8: the Fibonacci numbers. Matrices do not commute, so
``older`` stands on the left.
"""

from __future__ import annotations

import torch

import scanops

continuant = scanops.Operator(
    name="continuant",
    formula="y[i] = x[i] * y[i-1] + y[i-2], where y[-1] = 1 and y[-2] = 0",
    fields=("a", "b", "c", "d"),  # [[a, b], [c, d]]
    lift=("x", "1", "1", "0"),
    combine=(
        "older.a * newer.a + older.b * newer.c",
        "older.a * newer.b + older.b * newer.d",
        "older.c * newer.a + older.d * newer.c",
        "older.c * newer.b + older.d * newer.d",
    ),
    identity=("1", "0", "0", "1"),
    project="state.a",
    commutative=False,
    start=(1, 0),  # the reference knows no matrices: h is the last two results
    step=lambda h, x: (x * h[0] + h[1], h[0]),
    output=lambda h: h[0],
)

if __name__ == "__main__":
    print(scanops.check_operator(continuant, samples=(0.0, 1.0, -1.0, 0.5, 2.0)))
    print(scanops.scan(torch.tensor([1, 1, 1, 1, 1, 1, 1]), continuant, 0))
