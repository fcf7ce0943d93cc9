"""Sums modulo a period: ``scanops.cumsum(x, dim, modulo=...)``."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from scanops import torch_private as private
from scanops.codegen.dtypes import DTYPES, dtype_named, nearest
from scanops.errors import UnsupportedRequest, format_value
from scanops.fusion.operators import FieldOperator, operator
from scanops.requests import checks


def phase_of(x: torch.Tensor, modulo: float, dtype: torch.dtype | None) -> FieldOperator:
    """Return the operator of ``cumsum`` with ``modulo``. Raises UnsupportedRequest for an invalid period or dtype."""
    checks.check_tensor("cumsum", "x", x)
    if is_dynamo_compiling() and isinstance(modulo, int | float):
        modulo = private.constant_of(modulo)
    if dtype is None:
        dtype = torch.float32 if x.dtype in _EIGHT_BITS else x.dtype  # which no result has
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype in _EIGHT_BITS:
        raise _make_refusal("dtype", dtype, "float16, bfloat16, float32 or float64", "dtype=torch.float32")
    is_number = isinstance(modulo, int | float) and not isinstance(modulo, bool)
    if not (is_number and 0 < modulo < math.inf):
        raise _make_refusal("modulo", modulo, "a positive finite number", "the period, for example modulo=2 * math.pi")
    least, highest = _LIMITS[dtype]
    if not least <= modulo <= highest:
        raise _make_refusal(
            "modulo", modulo, f"a number from {least:.3g} to {highest:.5g} for {dtype} results", "a wider dtype"
        )
    return _phase(float(modulo), dtype)


def _make_refusal(name: str, value: object, allowed: str, example: str) -> UnsupportedRequest:
    beside = "" if name == "modulo" else " beside modulo"
    asked, hint = f"cumsum: {name} must be {allowed}{beside}", f"pass {example}, or leave modulo out"
    return UnsupportedRequest(asked, allowed=allowed, value=f"{name}={format_value(value)}", hint=hint)


_LIMITS = {  # of periods: the least and the greatest number of a dtype
    getattr(torch, row.name): (2.0 ** (row.format.least - row.format.digits + 1), row.format.highest)
    for row in DTYPES.values()
    if row.stored and row.format is not None
}
_EIGHT_BITS = tuple(getattr(torch, row.name) for row in DTYPES.values() if row.kind == "float" and not row.stored)


@private.at_tracing  # Dynamo makes no operators: it is given this one
def _phase(period: float, dtype: torch.dtype) -> FieldOperator:
    return _made(period, dtype)


@functools.lru_cache(maxsize=64)
def _made(period: float, dtype: torch.dtype) -> FieldOperator:
    """Return the operator of sums modulo a period: the state is the remainder, in float64, folded at each combine.

    Remainders of items are exact, of any size. float64 results keep what rounding has lost of a sum beside it (TwoSum).
    What is subtracted has no derivative, so that gradients are those of a sum.
    """
    wide = dtype == torch.float64
    limit = nearest(period, dtype_named(dtype))

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
        rest = torch.fmod(x.double(), period)  # exact, with the sign of x
        return added(rest, (rest < 0).double() * period, 0.0)

    def combine(older: Any, newer: Any) -> Any:
        return added(older[0], newer[0], older[1] + newer[1] if wide else 0.0)

    def project(state: Any) -> Any:
        y = (state[0] + (state[0] < 0).double() * period).to(dtype)
        return y - torch.where(y >= limit, y, 0.0).detach()

    fields = dict.fromkeys(("value", "lost") if wide else ("value",), torch.float64)
    return operator(fields=fields, lift=lift, combine=combine, project=project, name="phase")
