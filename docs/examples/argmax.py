"""A running argmax: y[i] = the index of the greatest of x[0], ..., x[i], the first of equals; -1 where there is none.

The state is the greatest element and its index. ``types`` declares the field that holds ``i`` as an index: a field of
the elements' dtype would round indices beyond 2^24 in float32. ``gives="index"`` makes the output int64 and leaves the
elements as they are; converted to int64, 0.25 and 0.5 would both be 0.
"""

from __future__ import annotations

import torch

import scanops


def step(h: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest element and its index, after the element x with index i."""
    greater = (h[1] < 0) | (x > h[0])
    return torch.where(greater, x, h[0]), torch.where(greater, i, h[1])


argmax = scanops.Operator(
    name="argmax",
    formula="y[i] = the index of the greatest of x[0], ..., x[i], the first of equals",
    fields=("value", "index"),
    types=("value", "index"),
    lift=("x", "i"),
    combine=("newer.index >= 0 && (older.index < 0 || newer.value > older.value) ? newer : older",),
    identity=("lowest", "-1"),
    project="state.index",
    gives="index",
    kinds=("int", "float"),
    ordered=True,
    commutative=False,
    start=("lowest", -1),
    step=step,
    output=lambda h: h[1],
)

if __name__ == "__main__":
    print(scanops.check_operator(argmax, samples=(0.0, 1.0, -1.0, 0.5, 0.25)))
    print(scanops.scan(torch.tensor([0.25, 0.5, 0.75, 0.5, 0.9]), argmax, 0))
