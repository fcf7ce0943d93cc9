"""Calls that are refused: a typed error, four parts, the offending value among them, on every route."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.spec import MAX_LENGTH
from scanops.errors import DimensionOutOfRange, ScanopsError, UnsupportedRequest
from scanops.requests.geometry import MAX_RANK
from tests.requests.checks import refused

f32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A call that makes no sense."""

    call: Callable[[str], object]  # with tensors on this device
    value: str  # stands in the error's value
    kind: type[ScanopsError] = UnsupportedRequest


def ones(device: str, *shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def elsewhere(device: str, *shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    """A tensor on a device that is not ``device``, on any machine."""
    return torch.ones(shape, dtype=dtype, device="meta" if device == "cpu" else "cpu")


def cumsum(device: str, *shape: int, dim: Any = 0, **options: Any) -> object:
    return scanops.cumsum(ones(device, *shape), dim, **options)


def sparse(device: str) -> torch.Tensor:
    return ones(device, 3, 3).to_sparse()


def shifted(device: str) -> object:
    memory = ones(device, 9)
    return scanops.cumsum(memory[:8], 0, out=memory[1:])


def into_the_mask(device: str, dtype: torch.dtype) -> object:
    memory = ones(device, 12)
    mask = memory[4:].view(dtype)[:8]
    return scanops.cumsum(ones(device, 8), 0, mask=mask, out=memory[:8])


def nested(device: str, layout: torch.layout) -> torch.Tensor:
    lines = [ones(device, 2, 3), ones(device, 4, 3)]
    return torch.nested.nested_tensor(lines, layout=layout)


def into_inference(device: str) -> object:
    with torch.inference_mode():
        out = ones(device, 3)
    return cumsum(device, 3, out=out)


def needs_gradient(device: str, role: str) -> object:
    tensors = {name: ones(device, 4).requires_grad_(name == role) for name in ("x", "mask", "out")}
    return scanops.cumsum(tensors["x"], 0, mask=tensors["mask"], out=tensors["out"])


# ---- operands that are no tensors, or tensors of a layout or dtype that no kernel reads
OPERANDS: dict[str, Bad] = {
    "x is a list": Bad(call=lambda d: scanops.cumsum([1.0, 2.5], 0), value="[1.0, 2.5]"),  # type: ignore[arg-type]
    "x is a number": Bad(call=lambda d: scanops.cumsum(7, 0), value="x=7"),  # type: ignore[arg-type]
    "x is None": Bad(call=lambda d: scanops.cumsum(None, 0), value="x=None"),  # type: ignore[arg-type]
    "mask is a list": Bad(call=lambda d: cumsum(d, 2, mask=[True, False]), value="mask=[True, False]"),
    "mask is a bool": Bad(call=lambda d: cumsum(d, 2, mask=True), value="mask=True"),
    "out is a list": Bad(call=lambda d: cumsum(d, 2, out=[0.0, 0.0]), value="out=[0.0, 0.0]"),
    "x is sparse": Bad(call=lambda d: scanops.cumsum(sparse(d), 0), value="x.layout=torch.sparse_coo"),
    "mask is sparse": Bad(call=lambda d: cumsum(d, 3, 3, mask=sparse(d)), value="mask.layout=torch.sparse_coo"),
    "out is sparse": Bad(call=lambda d: cumsum(d, 3, 3, out=sparse(d)), value="out.layout=torch.sparse_coo"),
    "x is nested": Bad(call=lambda d: scanops.cumsum(nested(d, torch.strided), 1), value="x.is_nested=True"),
    "x is jagged": Bad(call=lambda d: scanops.cumsum(nested(d, torch.jagged), 1), value="x.layout=torch.jagged"),
    "x is half complex": Bad(call=lambda d: scanops.cumsum(ones(d, 3, dtype=torch.complex32), 0), value="complex32"),
    "x is exponents": Bad(
        call=lambda d: scanops.cumsum(torch.empty(3, dtype=torch.float8_e8m0fnu, device=d), 0), value="float8_e8m0fnu"
    ),
    "x is fp8, its weights are not": Bad(
        call=lambda d: scanops.cumsum(ones(d, 3).to(torch.float8_e4m3fn), 0, mask=ones(d, 3)), value="float8_e4m3fn"
    ),
    "weights are fp8, x is not": Bad(
        call=lambda d: cumsum(d, 3, mask=ones(d, 3).to(torch.float8_e5m2)), value="float8_e5m2"
    ),
    "x is unsigned, its weights are not": Bad(
        call=lambda d: scanops.cumsum(ones(d, 3, dtype=torch.uint32), 0, mask=ones(d, 3, dtype=torch.int8)),
        value="uint32 and int8",
    ),
    "weights are unsigned, x is complex": Bad(
        call=lambda d: scanops.cumsum(ones(d, 3, dtype=torch.complex64), 0, mask=ones(d, 3, dtype=torch.uint16)),
        value="complex64 and uint16",
    ),
    "mask is half complex": Bad(call=lambda d: cumsum(d, 3, mask=ones(d, 3, dtype=torch.complex32)), value="complex32"),
    "mask on another device": Bad(call=lambda d: cumsum(d, 3, mask=elsewhere(d, 3)), value="mask.device="),
    "mask longer": Bad(call=lambda d: cumsum(d, 3, mask=ones(d, 4)), value="(4,)"),
    "mask of a higher rank": Bad(call=lambda d: cumsum(d, 3, mask=ones(d, 1, 3)), value="(1, 3)"),
    "mask that would widen x": Bad(call=lambda d: cumsum(d, 1, 3, mask=ones(d, 2, 3)), value="(2, 3)"),
    "mask empty": Bad(call=lambda d: cumsum(d, 3, mask=ones(d, 0)), value="(0,)"),
    "mask along the wrong dimension": Bad(call=lambda d: cumsum(d, 2, 3, mask=ones(d, 2)), value="(2,)"),
}

# ---- options
OPTIONS: dict[str, Bad] = {
    "bool output": Bad(call=lambda d: cumsum(d, 3, dtype=torch.bool), value="bool"),
    "half complex output": Bad(call=lambda d: cumsum(d, 3, dtype=torch.complex32), value="complex32"),
    "fp8 output": Bad(call=lambda d: cumsum(d, 3, dtype=torch.float8_e5m2), value="float8_e5m2"),
    "dtype a string": Bad(call=lambda d: cumsum(d, 3, dtype="float64"), value="'float64'"),
    "dtype an empty string": Bad(call=lambda d: cumsum(d, 3, dtype=""), value="''"),
    "dtype a Python type": Bad(call=lambda d: cumsum(d, 3, dtype=float), value="float"),
    "an operator that does not exist": Bad(call=lambda d: scanops.scan(ones(d, 3), "median", 0), value="'median'"),
    "no operator": Bad(call=lambda d: scanops.scan(ones(d, 3), "", 0), value="''"),
    "an operator that is no name": Bad(
        call=lambda d: scanops.scan(ones(d, 3), torch.cumsum, 0),  # type: ignore[arg-type]
        value="cumsum",
    ),
    "an operator in a list": Bad(
        call=lambda d: scanops.scan(ones(d, 3), ["sum"], 0),  # type: ignore[arg-type]
        value="['sum']",
    ),
    "reverse a number": Bad(call=lambda d: cumsum(d, 3, reverse=1), value="reverse=1"),
    "reverse None": Bad(call=lambda d: cumsum(d, 3, reverse=None), value="reverse=None"),
    "reverse a tensor": Bad(call=lambda d: cumsum(d, 3, reverse=ones(d, 2)), value="reverse=tensor"),
    "exclusive a number": Bad(call=lambda d: cumsum(d, 3, exclusive=0), value="exclusive=0"),
    "exclusive a word": Bad(call=lambda d: cumsum(d, 3, exclusive="yes"), value="exclusive='yes'"),
    "dim a float": Bad(call=lambda d: cumsum(d, 3, dim=0.0), value="dim=0.0"),
    "dim a bool": Bad(call=lambda d: cumsum(d, 3, 3, dim=True), value="dim=True"),
    "dim None": Bad(call=lambda d: cumsum(d, 3, dim=None), value="dim=None"),
    "dim a tuple": Bad(call=lambda d: cumsum(d, 3, dim=(0,)), value="dim=(0,)"),
    "dim a word": Bad(call=lambda d: cumsum(d, 3, dim="0"), value="dim='0'"),
    "dim too large": Bad(call=lambda d: cumsum(d, 3, dim=1), value="dim=1", kind=DimensionOutOfRange),
    "dim too small": Bad(call=lambda d: cumsum(d, 2, 3, dim=-3), value="dim=-3", kind=DimensionOutOfRange),
    "dim of a number": Bad(call=lambda d: cumsum(d, dim=1), value="dim=1", kind=DimensionOutOfRange),
    "dim of no items": Bad(call=lambda d: cumsum(d, 0, 2, dim=2), value="dim=2", kind=DimensionOutOfRange),
    "length over the limit": Bad(
        call=lambda d: scanops.cumsum(ones(d, 1).expand(MAX_LENGTH + 1), 0), value=str(MAX_LENGTH + 1)
    ),
    "length over the limit in the middle": Bad(
        call=lambda d: scanops.cumprod(ones(d, 1, 1).expand(2, MAX_LENGTH + 1, 3), 1), value=str(MAX_LENGTH + 1)
    ),
}

# ---- out=
OUTS: dict[str, Bad] = {
    "shape": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 4)), value="(4,)"),
    "shape that x broadcasts to": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 2, 3)), value="(2, 3)"),
    "device": Bad(call=lambda d: cumsum(d, 3, out=elsewhere(d, 3)), value="out.device="),
    "dtype against dtype=": Bad(call=lambda d: cumsum(d, 3, dtype=torch.float64, out=ones(d, 3)), value="float32"),
    "bool": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 3, dtype=torch.bool)), value="bool"),
    "half complex": Bad(call=lambda d: cumsum(d, 3, out=ones(d, 3, dtype=torch.complex32)), value="complex32"),
    "shifted along x": Bad(call=shifted, value="out at"),
    "x's memory in another order": Bad(
        call=lambda d: (lambda x: scanops.cumsum(x, 0, out=x.t()))(ones(d, 4, 4)), value="x at"
    ),
    "x's memory in another dtype": Bad(
        call=lambda d: (lambda x: scanops.cumsum(x, 0, out=x.view(torch.int32)))(ones(d, 4)), value="x at"
    ),
    "the memory an expanded x repeats": Bad(
        call=lambda d: (lambda y: scanops.cumsum(y[:1].expand(4), 0, out=y))(ones(d, 4)), value="x at"
    ),
    "part of a numeric mask": Bad(call=lambda d: into_the_mask(d, f32), value="mask at"),
    "part of a bool mask": Bad(call=lambda d: into_the_mask(d, torch.bool), value="mask at"),
    "the same memory for many items": Bad(call=lambda d: cumsum(d, 4, out=ones(d, 1).expand(4)), value="(0,)"),
    "inference mode, outside of it": Bad(call=into_inference, value="out.is_inference()=True"),
    "gradient of x": Bad(call=lambda d: needs_gradient(d, "x"), value="requires_grad=True"),
    "gradient of the mask": Bad(call=lambda d: needs_gradient(d, "mask"), value="requires_grad=True"),
    "gradient of out": Bad(call=lambda d: needs_gradient(d, "out"), value="requires_grad=True"),
}


def extremes(device: str, *outs: torch.Tensor, dim: int = 0) -> object:
    return scanops.cummax(ones(device, 4), dim, out=outs)  # type: ignore[arg-type]


def indices(device: str, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def one_for_both(device: str) -> object:
    x = torch.arange(4, device=device)
    out = torch.empty_like(x)
    return scanops.cummin(x, 0, out=(out, out))


# ---- operators that give indices, or take some kinds of dtype only
OF_OPERATORS: dict[str, Bad] = {
    "indices of a scan that returns one tensor": Bad(
        call=lambda d: scanops.scan(ones(d, 3), "cummax", 0), value="op='cummax'"
    ),
    "one tensor for two outputs": Bad(
        call=lambda d: scanops.cummax(ones(d, 4), 0, out=ones(d, 4)),  # type: ignore[arg-type]
        value="out=tensor",
    ),
    "three tensors": Bad(call=lambda d: extremes(d, *(ones(d, 4) for _ in range(3))), value="out=("),
    "indices of another dtype": Bad(
        call=lambda d: extremes(d, ones(d, 4), indices(d, 4, dtype=torch.int32)), value="indices.dtype=torch.int32"
    ),
    "indices of another shape": Bad(call=lambda d: extremes(d, ones(d, 4), indices(d, 5)), value="indices.shape=(5,)"),
    "indices that are a list": Bad(call=lambda d: extremes(d, ones(d, 4), [0]), value="indices=[0]"),  # type: ignore[arg-type]
    "values of another dtype": Bad(
        call=lambda d: extremes(d, ones(d, 4, dtype=torch.complex64), indices(d, 4)), value="dtype=complex64"
    ),
    "the greatest complex number": Bad(
        call=lambda d: scanops.cummax(ones(d, 4, dtype=torch.complex64), 0), value="dtype=complex64"
    ),
    "the least complex number": Bad(
        call=lambda d: scanops.scan(ones(d, 4, dtype=torch.complex128), "min", 0), value="dtype=complex128"
    ),
    "bits of a complex number": Bad(
        call=lambda d: scanops.scan(ones(d, 4, dtype=torch.complex64), "bitwise_and", 0), value="dtype=complex64"
    ),
    "values and indices in one place": Bad(call=one_for_both, value="indices at"),
    "logcumsumexp of integers": Bad(call=lambda d: scanops.logcumsumexp(indices(d, 4), 0), value="dtype=int64"),
    "bits of a float": Bad(call=lambda d: scanops.scan(ones(d, 4), "bitwise_or", 0), value="dtype=float32"),
    "a logical operator that gives a number": Bad(
        call=lambda d: scanops.scan(ones(d, 4), "logical_or", 0, dtype=f32), value="dtype=float32"
    ),
}


@pytest.mark.parametrize("bad", OF_OPERATORS.values(), ids=OF_OPERATORS)
def test_operators(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", OPERANDS.values(), ids=OPERANDS)
def test_operands(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", OPTIONS.values(), ids=OPTIONS)
def test_options(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", OUTS.values(), ids=OUTS)
def test_out(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


def offsets(device: str, *numbers: int, dtype: torch.dtype = torch.int64, length: int = 4, **options: Any) -> object:
    """A scan of ``length`` items by these offsets."""
    return cumsum(device, length, offsets=torch.tensor(numbers, dtype=dtype, device=device), **options)


def starts(device: str, *shape: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def linear(device: str, a: Any, b: Any, dim: Any = 0, **options: Any) -> object:
    """With gates and items of these shapes, or as they are."""
    a, b = (ones(device, *each) if isinstance(each, tuple) else each for each in (a, b))
    return scanops.linear_scan(a, b, dim, **options)


def parts_of_one(device: str, role: str) -> object:
    """The out overlaps some of what is read, and not exactly."""
    memory = ones(device, 16)
    out = memory[:8]
    read = {"gate": memory[4:12], "initial": memory[2:3].view(()), "x": memory[1:9]}
    if role == "offsets":
        whole = torch.zeros(10, dtype=torch.int64, device=device)
        whole[-1] = 8
        return scanops.cumsum(ones(device, 8), 0, offsets=whole[8:], out=whole.view(f32)[10:18])
    if role == "starts":
        return scanops.cumsum(ones(device, 8), 0, segment_starts=out.view(torch.bool)[:8], out=out)
    if role == "initial":
        return scanops.cumsum(ones(device, 8), 0, initial=read[role], out=out)
    a, b = (read["gate"], ones(device, 8)) if role == "gate" else (ones(device, 8), read["x"])
    return scanops.linear_scan(a, b, 0, out=out)


FIRST_ITEM = scanops.Operator(
    name="first_item",
    formula="y[i] = x[0]",
    fields=("value", "any"),
    lift=("x", "1"),
    combine=("older.any ? older.value : newer.value", "older.any + newer.any"),
    identity=("0", "0"),
    project="state.value",
    commutative=False,
    start=(0, 0),
    step=lambda h, x: (torch.where(h[1] > 0, h[0], x), h[1] + 1),
    output=lambda h: h[0],
)

# ---- what lines begin with and end with
CARRIES: dict[str, Bad] = {
    "initial a list": Bad(call=lambda d: cumsum(d, 3, initial=[0.0]), value="initial=[0.0]"),
    "initial a word": Bad(call=lambda d: cumsum(d, 3, initial="0"), value="initial='0'"),
    "initial for each item": Bad(call=lambda d: cumsum(d, 3, initial=ones(d, 3)), value="(3,)"),
    "initial with the scanned dimension": Bad(
        call=lambda d: cumsum(d, 2, 3, dim=1, initial=ones(d, 2, 1)), value="(2, 1)"
    ),
    "initial for other lines": Bad(call=lambda d: cumsum(d, 2, 3, initial=ones(d, 2)), value="(2,)"),
    "initial elsewhere": Bad(call=lambda d: cumsum(d, 3, initial=elsewhere(d)), value="initial.device="),
    "initial sparse": Bad(
        call=lambda d: cumsum(d, 3, 3, 3, initial=sparse(d)), value="initial.layout=torch.sparse_coo"
    ),
    "a fraction for integers": Bad(call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=0.5), value="initial: 0.5"),
    "a floating tensor for integers": Bad(
        call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=ones(d)), value="initial: torch.float32"
    ),
    "complex for real": Bad(call=lambda d: cumsum(d, 3, initial=1j), value="initial: 1j"),
    "a complex tensor for real": Bad(
        call=lambda d: cumsum(d, 3, initial=ones(d, dtype=torch.complex64)), value="initial: torch.complex64"
    ),
    "a number for truth": Bad(call=lambda d: scanops.scan(ones(d, 3), "logical_or", 0, initial=1), value="initial: 1"),
    "too great for uint8": Bad(call=lambda d: cumsum(d, 3, dtype=torch.uint8, initial=256), value="256"),
    "below 0 for uint8": Bad(call=lambda d: cumsum(d, 3, dtype=torch.uint8, initial=-1), value="initial: -1"),
    "too great for int64": Bad(call=lambda d: scanops.cumsum(indices(d, 3), 0, initial=2**63), value=str(2**63)),
    "too great for float32": Bad(call=lambda d: cumsum(d, 3, initial=1e300), value="1e+300"),
    "too great for any float": Bad(call=lambda d: cumsum(d, 3, initial=10**400), value="initial: 1000"),
    "the greatest so far of words": Bad(
        call=lambda d: scanops.cummax(ones(d, 3), 0, initial="x"),  # type: ignore[call-overload]
        value="initial='x'",
    ),
    "an operator that cannot go on": Bad(
        call=lambda d: scanops.scan(ones(d, 3), FIRST_ITEM, 0, initial=0.0), value="op='first_item'"
    ),
    "return_final a number": Bad(call=lambda d: cumsum(d, 3, return_final=1), value="return_final=1"),
    "return_final None": Bad(call=lambda d: cumsum(d, 3, return_final=None), value="return_final=None"),
    "return_final of indices": Bad(
        call=lambda d: scanops.cummin(ones(d, 3), 0, return_final="yes"),  # type: ignore[call-overload]
        value="return_final='yes'",
    ),
    "return_final of a recurrence": Bad(call=lambda d: linear(d, (3,), (3,), return_final=0), value="return_final=0"),
    "reverse of a recurrence": Bad(call=lambda d: linear(d, (3,), (3,), reverse="no"), value="reverse='no'"),
    "out that needs a gradient of initial": Bad(
        call=lambda d: cumsum(d, 3, initial=ones(d).requires_grad_(), out=ones(d, 3)), value="requires_grad=True"
    ),
}

# ---- segments
SEGMENTS: dict[str, Bad] = {
    "told twice": Bad(call=lambda d: offsets(d, 0, 4, segment_starts=starts(d, 4)), value="segment_starts=a tensor"),
    "told twice, in lists": Bad(
        call=lambda d: cumsum(d, 4, offsets=[0, 4], segment_starts=[True] * 4), value="offsets=[0, 4]"
    ),
    "starts a list": Bad(call=lambda d: cumsum(d, 2, segment_starts=[True, False]), value="[True, False]"),
    "starts of bytes": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=starts(d, 4, dtype=torch.uint8)), value="torch.uint8"
    ),
    "starts as indices": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=starts(d, 2, dtype=torch.int64)), value="torch.int64"
    ),
    "starts longer": Bad(call=lambda d: cumsum(d, 4, segment_starts=starts(d, 5)), value="(5,)"),
    "starts of a higher rank": Bad(call=lambda d: cumsum(d, 4, segment_starts=starts(d, 1, 4)), value="(1, 4)"),
    "starts elsewhere": Bad(
        call=lambda d: cumsum(d, 4, segment_starts=elsewhere(d, 4, dtype=torch.bool)), value="segment_starts.device="
    ),
    "offsets a list": Bad(call=lambda d: cumsum(d, 4, offsets=[0, 4]), value="offsets=[0, 4]"),
    "offsets of floats": Bad(call=lambda d: cumsum(d, 4, offsets=ones(d, 2)), value="torch.float32"),
    "offsets of int16": Bad(call=lambda d: offsets(d, 0, 4, dtype=torch.int16), value="torch.int16"),
    "offsets of uint32": Bad(call=lambda d: offsets(d, 0, 4, dtype=torch.uint32), value="torch.uint32"),
    "offsets of two dimensions": Bad(
        call=lambda d: cumsum(d, 2, 4, dim=1, offsets=indices(d, 2, 2)), value="shape (2, 2)"
    ),
    "one offset for each line": Bad(call=lambda d: cumsum(d, 4, offsets=indices(d)), value="shape ()"),
    "no offsets": Bad(call=lambda d: offsets(d), value="shape (0,)"),
    "one offset": Bad(call=lambda d: offsets(d, 0), value="shape (1,)"),
    "one offset, of nothing": Bad(call=lambda d: offsets(d, 0, length=0), value="shape (1,)"),
    "the first is not 0": Bad(call=lambda d: offsets(d, 1, 4), value="offsets from 1 to 4"),
    "the first is below 0": Bad(call=lambda d: offsets(d, -1, 4, dtype=torch.int32), value="offsets from -1"),
    "the last is too small": Bad(call=lambda d: offsets(d, 0, 2, 3), value="to 3"),
    "the last is too great": Bad(call=lambda d: offsets(d, 0, 2, 5), value="to 5"),
    "the last is missing": Bad(call=lambda d: offsets(d, 0, 1, 2), value="to 2"),
    "they fall": Bad(call=lambda d: offsets(d, 0, 3, 2, 4), value="falling at index 2"),
    "they go beyond and come back": Bad(call=lambda d: offsets(d, 0, 9, 4), value="falling at index 2"),
    "they go below 0": Bad(call=lambda d: offsets(d, 0, -1, 4), value="falling at index 1"),
    "offsets elsewhere": Bad(
        call=lambda d: cumsum(d, 4, offsets=elsewhere(d, 2, dtype=torch.int64)), value="offsets.device="
    ),
    "offsets along another dimension": Bad(
        call=lambda d: cumsum(d, 4, 6, dim=1, offsets=torch.tensor([0, 4], device=d)), value="to 4"
    ),
}

# ---- recurrences
LINEAR: dict[str, Bad] = {
    "a is a number": Bad(call=lambda d: linear(d, 0.5, (3,)), value="a=0.5"),
    "b is a list": Bad(call=lambda d: linear(d, (3,), [1.0]), value="b=[1.0]"),
    "a is sparse": Bad(call=lambda d: linear(d, sparse(d), (3, 3)), value="a.layout=torch.sparse_coo"),
    "they do not broadcast": Bad(call=lambda d: linear(d, (2, 4), (2, 3)), value="a.shape=(2, 4), b.shape=(2, 3)"),
    "a gate for each row, without its place": Bad(call=lambda d: linear(d, (2,), (2, 3), 1), value="a.shape=(2,)"),
    "a elsewhere": Bad(call=lambda d: linear(d, elsewhere(d, 3), (3,)), value="gate.device="),
    "a of half complex": Bad(call=lambda d: linear(d, ones(d, 3, dtype=torch.complex32), (3,)), value="complex32"),
    "fp8 gates, float32 items": Bad(
        call=lambda d: linear(d, ones(d, 3).to(torch.float8_e4m3fn), (3,)), value="float8_e4m3fn"
    ),
    "fp8 of two sorts": Bad(
        call=lambda d: linear(d, ones(d, 3).to(torch.float8_e4m3fn), ones(d, 3).to(torch.float8_e5m2)),
        value="float8_e5m2",
    ),
    "fp8 result": Bad(call=lambda d: linear(d, (3,), (3,), dtype=torch.float8_e5m2), value="float8_e5m2"),
    "unsigned gates, signed items": Bad(
        call=lambda d: linear(d, ones(d, 3, dtype=torch.uint32), ones(d, 3, dtype=torch.int32)), value="uint32"
    ),
    "compensated": Bad(call=lambda d: linear(d, (3,), (3,), accumulate="compensated"), value="'compensated'"),
    "accumulated in less": Bad(call=lambda d: linear(d, (3,), (3,), accumulate=torch.float16), value="float16"),
    "dim of what both broadcast to": Bad(
        call=lambda d: linear(d, (3, 1), (3,), 2), value="dim=2", kind=DimensionOutOfRange
    ),
    "a mask of the shape of neither": Bad(call=lambda d: linear(d, (3, 1), (3,), mask=starts(d, 2, 3)), value="(2, 3)"),
    "by its name": Bad(call=lambda d: scanops.scan(ones(d, 3), "linear", 0), value="op='linear'"),
    "out of the shape of b": Bad(call=lambda d: linear(d, (2, 3), (3,), out=ones(d, 3)), value="(3,)"),
    "out partly the gate": Bad(call=lambda d: parts_of_one(d, "gate"), value="gate at"),
    "out partly the items": Bad(call=lambda d: parts_of_one(d, "x"), value="x at"),
    "out partly what lines begin with": Bad(call=lambda d: parts_of_one(d, "initial"), value="initial at"),
    "out partly the offsets": Bad(call=lambda d: parts_of_one(d, "offsets"), value="offsets at"),
    "out partly the flags": Bad(call=lambda d: parts_of_one(d, "starts"), value="segment_starts at"),
}

VARIANTS = {
    f"{table}: {name}": bad
    for table, rows in {"carry": CARRIES, "segments": SEGMENTS, "linear": LINEAR}.items()
    for name, bad in rows.items()
}


@pytest.mark.parametrize("bad", VARIANTS.values(), ids=VARIANTS)
def test_variants(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


def test_offsets_that_are_changed_are_looked_at_again(device: str) -> None:
    x, given = ones(device, 4), torch.tensor([0, 2, 4], device=device)
    for _ in range(2):
        assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 2, 1, 2]
    given[1] = 3
    assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 2, 3, 1]
    given[1] = 5
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "falling at index 2")
    given[1] = 1
    assert scanops.cumsum(x, 0, offsets=given).tolist() == [1, 1, 2, 3]
    refused(UnsupportedRequest, lambda: scanops.cumsum(ones(device, 5), 0, offsets=given), "to 4")


def test_offsets_that_a_scan_has_written_are_looked_at_again(device: str) -> None:
    """As cu_seqlens are made: a buffer that begins with 0, filled with sums of lengths."""
    x, given = ones(device, 4), torch.zeros(3, dtype=torch.int64, device=device)
    for lengths, expected in (((2, 2), [1, 2, 1, 2]), ((1, 3), [1, 1, 2, 3])):
        scanops.cumsum(torch.tensor(lengths, device=device), 0, out=given[1:])
        assert scanops.cumsum(x, 0, offsets=given).tolist() == expected
    scanops.cumsum(torch.tensor((400, 3), device=device), 0, out=given[1:])
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "to 403")


def test_offsets_that_were_looked_at_are_saved_as_tensors(device: str) -> None:
    """Who reads the file need not know scanops, nor trust it."""
    given = torch.tensor([0, 2, 4], device=device)
    scanops.cumsum(ones(device, 4), 0, offsets=given)
    file = io.BytesIO()
    torch.save({"cu_seqlens": given}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["cu_seqlens"], given)
    assert not vars(given) and b"scanops" not in pickle.dumps(given)


@pytest.mark.gpu
def test_offsets_under_capture() -> None:
    """Values are not looked at while a graph is captured; what was looked at before is known."""
    x, given = torch.ones(4, device="cuda"), torch.tensor([0, 2, 4], device="cuda")
    known = torch.tensor([0, 1, 4], device="cuda")
    scanops.cumsum(x, 0, offsets=known)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, 0, offsets=known)
        refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "offsets of shape (3,)")
    graph.replay()
    assert y.tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("name", ["x is sparse", "mask longer", "mask on another device"])
def test_a_refused_call_is_refused_again_after_one_that_was_served(name: str, device: str) -> None:
    for _ in range(3):
        assert cumsum(device, 3, mask=ones(device, 3)) is not None
        refused(UnsupportedRequest, lambda: OPERANDS[name].call(device), OPERANDS[name].value)


def test_a_dimension_out_of_range_is_what_torch_users_catch(device: str) -> None:
    for kind in (IndexError, ValueError, UnsupportedRequest):
        with pytest.raises(kind):
            cumsum(device, 2, 3, dim=2)


def test_a_refused_call_leaves_out_alone(device: str) -> None:
    out = torch.full((3,), 5.0, device=device)
    refused(UnsupportedRequest, lambda: cumsum(device, 3, mask=ones(device, 4), out=out))
    assert (out == 5).all()


def test_out_may_be_x_itself(device: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    assert scanops.cumsum(x, 0, out=x) is x
    assert x.tolist() == [1, 3, 6]
    transposed = torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], device=device).t()
    scanops.cumsum(transposed, 1, out=transposed)
    assert transposed.tolist() == [[1, 3, 6], [4, 9, 15]]


def test_out_may_be_the_weights_themselves_and_lie_beside_x(device: str) -> None:
    memory = torch.ones(12, device=device)
    scanops.cumsum(memory[:4], 0, mask=memory[4:8], out=memory[8:])
    assert memory[8:].tolist() == [1, 2, 3, 4]
    weights = torch.tensor([1.0, 0.0, 2.0], device=device)
    scanops.cumsum(ones(device, 3), 0, mask=weights, out=weights)
    assert weights.tolist() == [1, 1, 3]


def test_out_without_gradients_takes_tensors_that_require_them(device: str) -> None:
    x, out = ones(device, 3).requires_grad_(), ones(device, 3)
    with torch.no_grad():
        assert scanops.cumsum(x, 0, out=out).tolist() == [1, 2, 3]


def test_a_kernel_reads_no_negated_view() -> None:
    kernel = scanops.compile(scanops.ScanSpec(op="sum", dtype="float32", length=4), "cpu")
    x = torch.ones(2, 4, dtype=torch.complex64).conj().imag.contiguous()
    negated = torch.ones(2, 8, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    refused(UnsupportedRequest, lambda: kernel(negated[:, :4]), "is_neg()=True")
    assert torch.equal(kernel(x), torch.cumsum(x, 1))


def test_a_kernel_reads_no_meta_tensor() -> None:
    kernel = scanops.compile(scanops.ScanSpec(op="sum", dtype="float32", length=4), "cpu")
    refused(UnsupportedRequest, lambda: kernel(ones("meta", 2, 4)), "meta")


def test_a_meta_tensor_over_the_limit() -> None:
    refused(UnsupportedRequest, lambda: cumsum("meta", MAX_LENGTH + 1), str(MAX_LENGTH + 1))


def test_strides_of_too_many_dimensions(kernels: str) -> None:
    """Every second dimension is expanded, so that no two can be merged."""
    rank = MAX_RANK + 2  # one of them is scanned
    x = torch.ones(2 * rank, dtype=torch.float16, device=kernels)
    x = x.as_strided((2,) * rank, tuple(i % 2 for i in range(rank)))
    error = refused(UnsupportedRequest, lambda: scanops.cumsum(x, -1), str(MAX_RANK + 1))
    assert str(MAX_RANK) in error.allowed
