"""Numbers that functions and operators bring into kernels: the same results on both paths, or a typed error on both."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, -1.0, 0.0]])
NUMBERS = (True, False, math.nan, math.inf, -math.inf, -0.0, 1e-320, 1e-46, 0.1, 1e22, 1e308, -1e30)
NUMBERS += (2**31, -(2**31), 2**53, 2**63, -(2**63), 2**64, 10**30, -(10**30), 10**400)
HOLDS: dict[torch.dtype, Callable[[Any], bool]] = {
    torch.bool: lambda v: v in (0, 1),
    torch.int32: lambda v: v == v and abs(v) < 2**32 and -(2**31) <= v < 2**31 and v == int(v),
    torch.int64: lambda v: v == v and abs(v) < 2**65 and -(2**63) <= v < 2**63 and v == int(v),
    torch.float32: lambda v: v != v or abs(v) == math.inf or abs(v) < 10**38,
    torch.float64: lambda v: v != v or abs(v) == math.inf or abs(v) <= 1e308,
}


def paths(call: Callable[[], Any]) -> list[Any]:
    """The results by PyTorch's operators and by an emulated kernel; in place of one the kind of the error."""
    found = []
    for place in (contextlib.nullcontext(), scanops.emulate(seed=3)):
        with place:
            try:
                found.append(call())
            except UnsupportedRequest as problem:
                found.append(str(problem))
    return found


@pytest.mark.parametrize("dtype", HOLDS, ids=str)
def test_identities(dtype: torch.dtype) -> None:
    """An exclusive scan begins with the identity itself, to the bit, wherever the dtype holds it."""
    holds = [each for each in NUMBERS if HOLDS[dtype](each)]
    for values in [holds[at : at + 4] for at in range(0, len(holds), 4)]:
        count = len(values)
        last = scanops.operator(
            fields=dict.fromkeys("abcd"[:count], dtype),
            identity=values,
            combine=lambda older, newer: tuple(newer),
            lift=lambda x, count=count: (x.to(dtype),) * count,
            name="last",
        )
        for found in paths(lambda op=last: scanops.scan(X, op, 1, exclusive=True)):
            for y, value in zip(found if isinstance(found, tuple) else (found,), values, strict=True):
                wanted = torch.tensor(float(value) if dtype.is_floating_point else value, dtype=dtype).expand(2)
                first = y[:, 0]
                assert torch.equal(first.isnan(), wanted.isnan()), value
                assert value != value or torch.equal(first, wanted), value
                assert value != 0 or torch.equal(first.signbit(), wanted.signbit()), value
                assert torch.equal(y[:, 1:], X[:, :2].to(dtype)), value
    for value in [each for each in NUMBERS if not HOLDS[dtype](each)]:
        last = scanops.operator(
            fields={"a": dtype}, identity=value, combine=lambda older, newer: newer, lift=lambda x: x.to(dtype)
        )
        for found in paths(lambda op=last: scanops.scan(X, op, 1)):
            assert isinstance(found, str) and "the identity of the field 'a': got" in found, (value, found)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, v: x + v,
    "mul": lambda x, v: x * v,
    "sub": lambda x, v: v - x,
    "where": lambda x, v: torch.where(x > 1, x, v),
    "compare": lambda x, v: (x < v).to(torch.float32),
    "clamp": lambda x, v: torch.clamp(x, min=v),
    "alone": lambda x, v: torch.abs(x * 0) + (-x * v).abs(),
}


# Every function of a float and of a whole number; of the other dtypes, how their numbers are printed and compared.
CONSTANTS = [(name, dtype) for name in FUNCTIONS for dtype in (torch.float32, torch.int64)]
CONSTANTS += itertools.product(("add", "where", "clamp"), (torch.float64, torch.uint8, torch.bfloat16))


@pytest.mark.parametrize(("name", "dtype"), CONSTANTS, ids=str)
def test_constants(name: str, dtype: torch.dtype) -> None:
    """Four numbers to a kernel; where the dtype does not hold one both paths say so, and name it."""
    x, function = X.abs().to(dtype), FUNCTIONS[name]

    def both(values: Sequence[float]) -> list[Any]:
        return paths(lambda: scanops.scan(x, "max", 1, then=lambda y, x: tuple(function(x, each) for each in values)))

    held = []
    for value in NUMBERS:
        try:
            scanops.scan(x, "max", 1, then=lambda y, x, value=value: function(x, value))
        except UnsupportedRequest:
            one, other = both([value])
            assert one == other and (str(value)[:8] in one or "scan: no kernel" in one), one
        else:
            held.append(value)
    for values in [held[at : at + 4] for at in range(0, len(held), 4)]:
        for y, z in zip(*both(values), strict=True):
            torch.testing.assert_close(y, z, rtol=1e-6, atol=0, equal_nan=True)


def test_bad_fields_are_refused_when_the_operator_is_made() -> None:
    add = lambda older, newer: tuple(a + b for a, b in zip(older, newer, strict=True))  # noqa: E731
    for fields in (
        ("requires",),
        ("char8_t",),
        ("co_await",),
        ("xor_eq",),
        ("own0", "a"),
        {"own11": None},
        ("is_nan",),
        ("linux",),
        "ab",
        5,
        None,
        (3,),
        ([],),
        (),
        {"a": "float32"},
        {"a": []},
    ):
        with pytest.raises(UnsupportedRequest, match="operator: invalid fields: got"):
            scanops.operator(fields=fields, combine=add)  # type: ignore[arg-type]


def test_every_other_name_compiles() -> None:
    """Names that the CUDA headers, the C library or a kernel also know."""
    names = (
        "s",
        "x",
        "y",
        "value",
        "index",
        "own",
        "exp",
        "fabs",
        "float4",
        "item",
        "older_",
        "final",
        "data",
        "import",
        "lost",
        "lose",
    )
    total = scanops.operator(
        fields=names,
        combine=lambda older, newer: tuple(a + b for a, b in zip(older, newer, strict=True)),
        lift=lambda x: (x,) * len(names),
        project=lambda state: (state[0], state[15]),
    )
    for found in paths(lambda: scanops.scan(X, total, 1, then=lambda y, x: (y[0] + x, y[1] - x))):
        assert torch.equal(found[0], X.cumsum(1) + X) and torch.equal(found[1], X.cumsum(1) - X)
