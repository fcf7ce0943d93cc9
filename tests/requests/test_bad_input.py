"""Calls that are refused: a typed error, four parts, the offending value among them, on every route."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.codegen.spec import MAX_LENGTH
from scanops.errors import DimensionOutOfRange, UnsupportedRequest
from scanops.requests.geometry import MAX_RANK
from tests.requests.bad import Bad, cumsum, elsewhere, f32, indices, ones, sparse
from tests.requests.checks import refused


def nested(device: str, layout: torch.layout) -> torch.Tensor:
    lines = [ones(device, 2, 3), ones(device, 4, 3)]
    return torch.nested.nested_tensor(lines, layout=layout)


def quantised(*shape: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(shape), 1.0, 0, torch.quint8)


# ---- operands that are no tensors, or tensors of a layout or dtype that no kernel reads
OPERANDS: dict[str, Bad] = {
    "x is a list": Bad(call=lambda d: scanops.cumsum([1.0, 2.5], 0), value="[1.0, 2.5]"),  # type: ignore[arg-type]
    "x is a number": Bad(call=lambda d: scanops.cumsum(7, 0), value="x=7"),  # type: ignore[arg-type]
    "x is None": Bad(call=lambda d: scanops.cumsum(None, 0), value="x=None"),  # type: ignore[arg-type]
    "mask is a list": Bad(call=lambda d: cumsum(d, 2, mask=[True, False]), value="mask=[True, False]"),
    "mask is a bool": Bad(call=lambda d: cumsum(d, 2, mask=True), value="mask=True"),
    "out is a list": Bad(call=lambda d: cumsum(d, 2, out=[0.0, 0.0]), value="out=[0.0, 0.0]"),
    "x is a long list": Bad(call=lambda d: scanops.cumsum([0] * 10**6, 0), value=f"x=[{'0, ' * 66}0..."),  # type: ignore[arg-type, call-overload]
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
    "mask quantised": Bad(call=lambda d: cumsum("cpu", 3, mask=quantised(3)), value="mask.dtype=torch.quint8"),
    "gate quantised": Bad(
        call=lambda d: scanops.linear_scan(quantised(3), ones("cpu", 3), 0), value="a.dtype=torch.quint8"
    ),
    "initial quantised": Bad(call=lambda d: cumsum("cpu", 3, initial=quantised()), value="initial.dtype=torch.quint8"),
    **{
        f"{role} of {dtype}": Bad(
            call=lambda d, role=role, dtype=dtype: cumsum(d, 3, **{role: torch.empty(3, dtype=dtype, device=d)}),  # type: ignore[misc]
            value=f"{role}.dtype={dtype}",
        )
        for role in ("mask", "initial")
        for dtype in (torch.uint4, torch.bits8, torch.float4_e2m1fn_x2)
    },
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
    "dim of many digits": Bad(
        call=lambda d: cumsum(d, 3, dim=10**5000), value="(an int of 16610 bits)", kind=DimensionOutOfRange
    ),
    "a flag of many digits": Bad(call=lambda d: cumsum(d, 3, reverse=-(10**5000)), value="reverse=-1000"),
    "an operator of many digits": Bad(call=lambda d: scanops.scan(ones(d, 3), 10**5000, 0), value="bits"),  # type: ignore[call-overload]
    "x of many digits": Bad(call=lambda d: scanops.cumsum([10**5000], 0), value="a list that has no repr"),  # type: ignore[call-overload]
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

# ---- operators that give indices, or take some kinds of dtype only
OF_OPERATORS: dict[str, Bad] = {
    "indices of a scan that returns one tensor": Bad(
        call=lambda d: scanops.scan(ones(d, 3), "cummax", 0), value="op='cummax'"
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
    "logcumsumexp of integers": Bad(call=lambda d: scanops.logcumsumexp(indices(d, 4), 0), value="dtype=int64"),
    "bits of a float": Bad(call=lambda d: scanops.scan(ones(d, 4), "bitwise_or", 0), value="dtype=float32"),
    "a logical operator that gives a number": Bad(
        call=lambda d: scanops.scan(ones(d, 4), "logical_or", 0, dtype=f32), value="dtype=float32"
    ),
}


@pytest.mark.parametrize("bad", OPERANDS.values(), ids=OPERANDS)
def test_operands(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", OPTIONS.values(), ids=OPTIONS)
def test_options(bad: Bad, device: str) -> None:
    refused(bad.kind, lambda: bad.call(device), bad.value)


@pytest.mark.parametrize("bad", OF_OPERATORS.values(), ids=OF_OPERATORS)
def test_operators(bad: Bad, device: str) -> None:
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
