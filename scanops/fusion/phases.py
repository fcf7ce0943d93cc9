"""Sums modulo a period: ``scanops.cumsum(x, dim, modulo=...)``."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from scanops.errors import UnsupportedRequest, shown
from scanops.fusion.operators import FieldOperator, operator
from scanops.requests import checks


def phase_of(x: torch.Tensor, modulo: float, dtype: torch.dtype | None) -> FieldOperator:
    """Return the operator of ``cumsum`` with ``modulo``. Raises UnsupportedRequest for an invalid period or dtype."""
    checks.check_tensor("cumsum", "x", x)
    dtype = dtype or x.dtype
    for name, value, legal, allowed in (
        ("modulo", modulo, isinstance(modulo, int | float) and 0 < modulo < math.inf, "a positive number"),
        ("dtype", dtype, dtype.is_floating_point, "a floating dtype"),
    ):
        if not legal:
            what, hint = f"cumsum: {name} must be {allowed} beside modulo", f"pass {allowed}, or leave modulo out"
            raise UnsupportedRequest(what, allowed=allowed, value=f"{name}={shown(value)}", hint=hint)
    return _phase(float(modulo), dtype)


@functools.lru_cache(maxsize=64)
def _phase(period: float, dtype: torch.dtype) -> FieldOperator:
    """Return the operator of sums modulo a period: the state is the remainder, in float64, folded at each combine.

    float64 results keep what rounding has lost of it beside it (TwoSum). What is subtracted has no derivative, so that
    gradients are those of a sum.
    """
    wide = dtype == torch.float64
    high, limit = (float(torch.tensor(period, dtype=each)) for each in (torch.float32, dtype))

    def added(x: Any, y: Any, lost: Any) -> Any:
        total = x + y
        if not wide:
            return total - (total >= period).double() * period
        back = total - x
        lost = (x - (total - back)) + (y - back) + lost
        whole = total - (total >= period).double() * period  # exact
        value = whole + lost.detach()
        return value, (lost - (value - whole)).detach()

    def lift(x: Any) -> Any:
        x = x.double()
        periods = torch.floor(x / period)
        if not wide:
            return x - periods * period
        value, lost = added(x, periods * -high, 0.0)  # the products are exact: high has 24 bits
        return added(value, periods * (high - period), lost)

    def combine(older: Any, newer: Any) -> Any:
        return added(older[0], newer[0], older[1] + newer[1] if wide else 0.0)

    def project(state: Any) -> Any:
        y = (state[0] + (state[0] < 0).double() * period).to(dtype)
        return y - torch.where(y >= limit, y, 0.0).detach()

    fields = dict.fromkeys(("value", "lost") if wide else ("value",), torch.float64)
    return operator(fields=fields, lift=lift, combine=combine, project=project, name="phase")
