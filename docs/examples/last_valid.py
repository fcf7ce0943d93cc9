"""Forward fill: y[i] = the newest of x[0], ..., x[i] that is not NaN and not masked out; NaN where there is none.

A state is a value and whether it is one. What is masked out counts as the identity and so as invalid. From the last
item to the first (``reverse=True``) it fills backwards.
"""

from __future__ import annotations

import math

import torch

import scanops

last_valid = scanops.Operator(
    name="last_valid",
    formula="y[i] = the newest of x[0], ..., x[i] that is not NaN; NaN where there is none",
    fields=("value", "valid"),
    lift=("x", "!is_nan(x)"),
    combine=("newer.valid ? newer : older",),
    identity=("lowest - lowest", "0"),  # -inf less -inf: NaN
    project="state.value",
    kinds=("float",),
    gives="kept",
    commutative=False,
    start=math.nan,
    step=lambda h, x: torch.where(x.isnan(), h, x),
)

if __name__ == "__main__":
    print(scanops.check_operator(last_valid))
    print(scanops.scan(torch.tensor([math.nan, 1.0, math.nan, 3.0]), last_valid, 0))
