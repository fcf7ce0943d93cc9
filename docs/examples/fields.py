"""Operators of one or several tensors: products of matrices and quaternions, filters, fills, and others.

``scanops.operator`` traces the functions. One definition serves the kernels, CPU tensors and derivatives.
"""

from __future__ import annotations

import math

import torch

import scanops

# The product of 2x2 matrices [[a, b], [c, d]], each a tensor: x[i] @ ... @ x[0]. Matrices do not commute.
matrices = scanops.operator(
    fields=("a", "b", "c", "d"),
    identity=(1, 0, 0, 1),
    combine=lambda older, newer: (
        newer.a * older.a + newer.b * older.c,
        newer.a * older.b + newer.b * older.d,
        newer.c * older.a + newer.d * older.c,
        newer.c * older.b + newer.d * older.d,
    ),
)

# The product of quaternions, such as rotations in the order they are made.
quaternions = scanops.operator(
    fields=("w", "x", "y", "z"),
    identity=(1, 0, 0, 0),
    combine=lambda p, q: (
        q.w * p.w - q.x * p.x - q.y * p.y - q.z * p.z,
        q.w * p.x + q.x * p.w + q.y * p.z - q.z * p.y,
        q.w * p.y - q.x * p.z + q.y * p.w + q.z * p.x,
        q.w * p.z + q.x * p.y - q.y * p.x + q.z * p.w,
    ),
)

# The logarithm of a product's magnitude, which neither overflows nor underflows, and its sign.
log_product = scanops.operator(
    fields=("log", "sign"),
    identity=(0, 1),
    lift=lambda x: (x.abs().log(), torch.where(x < 0, -1.0, 1.0)),
    combine=lambda older, newer: (older.log + newer.log, older.sign * newer.sign),
)


# The item of greatest magnitude so far, the first of equals, and what another tensor holds beside it.
farthest = scanops.operator(
    fields={"size": None, "value": None, "payload": None},
    identity=(-1, 0, 0),  # of less magnitude than any item
    lift=lambda x, payload: (x.abs(), x, payload),
    combine=lambda older, newer: [
        torch.where(newer.size > older.size, new, old) for old, new in zip(older, newer, strict=True)
    ],
    project=lambda state: (state.value, state.payload),
)

# A second-order filter y[i] = x[i] + 1.6 y[i-1] - 0.8 y[i-2], by its step: the combine is derived.
filter = scanops.operator(
    fields=("last", "before"),
    step=lambda y, x: (x + 1.6 * y.last - 0.8 * y.before, y.last),
    project=lambda y: y.last,
)

# The same with coefficients of each line and of each item.
filtered = scanops.operator(
    fields=("last", "before"),
    step=lambda y, x, a, b: (x - a * y.last - b * y.before, y.last),
    project=lambda y: y.last,
)

# A phase in turns, from 0 to 1: a running sum whose whole part is dropped at every step: its error does not grow.
fold = lambda turns: turns - (turns >= 1).double()  # noqa: E731
phase = scanops.operator(
    fields={"turns": torch.float64},
    lift=lambda x: fold(torch.remainder(x.double(), 1)),
    combine=lambda older, newer: fold(older.turns + newer.turns),
)

# Forward fill: the newest item that is not NaN. With reverse=True it fills backwards.
last_valid = scanops.operator(
    fields={"value": None, "valid": torch.bool},
    identity=(math.nan, False),
    lift=lambda x: (x, ~x.isnan()),
    combine=lambda older, newer: (torch.where(newer.valid, newer.value, older.value), older.valid | newer.valid),
    project=lambda state: state.value,
)

# A running argmax, the first of equals: pass torch.arange(n) as the second tensor.
argmax = scanops.operator(
    fields={"value": None, "index": torch.int64},
    identity=(-math.inf, -1),
    combine=lambda older, newer: (
        torch.maximum(older.value, newer.value),
        torch.where(newer.value > older.value, newer.index, older.index),
    ),
    project=lambda state: state.index,
)

if __name__ == "__main__":
    angle = torch.full((4,), math.pi / 8)
    print(scanops.scan((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), matrices, 0)[2])  # sines of the sums
    print(scanops.scan(torch.tensor([1e30, -1e30, 2.0]), log_product, 0))
    print(scanops.scan((torch.tensor([1.0, -3.0, 2.0]), torch.tensor([7.0, 8.0, 9.0])), farthest, 0))
    print(scanops.scan(torch.tensor([1.0, 0.0, 0.0, 0.0]), filter, 0))
    print(scanops.scan(torch.tensor([math.nan, 1.0, math.nan, 3.0]), last_valid, 0))
    print(scanops.scan((torch.tensor([0.25, 0.5, 0.75, 0.5, 0.9]), torch.arange(5)), argmax, 0))
