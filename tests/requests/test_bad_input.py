"""Calls that are refused: a typed error, four parts, the offending value among them, on every route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.spec import MAX_LENGTH
from scanops.errors import DimensionOutOfRange, ScanopsError, UnsupportedRequest
from scanops.geometry import MAX_RANK
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
    with scanops.emulate():
        refused(UnsupportedRequest, lambda: cumsum("meta", 3), "meta")


def test_a_meta_tensor_over_the_limit() -> None:
    refused(UnsupportedRequest, lambda: cumsum("meta", MAX_LENGTH + 1), str(MAX_LENGTH + 1))


def test_strides_of_too_many_dimensions(kernels: str) -> None:
    """Every second dimension is expanded, so that no two can be merged."""
    rank = MAX_RANK + 2  # one of them is scanned
    x = torch.ones(2 * rank, dtype=torch.float16, device=kernels)
    x = x.as_strided((2,) * rank, tuple(i % 2 for i in range(rank)))
    error = refused(UnsupportedRequest, lambda: scanops.cumsum(x, -1), str(MAX_RANK + 1))
    assert str(MAX_RANK) in error.allowed
