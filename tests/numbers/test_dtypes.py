"""Dtypes: conversions as torch makes them, integers of any bits, 8-bit floats, complex numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from tests.numbers.oracle import hold, selection, values

COMPLEX = (torch.complex64, torch.complex128)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
OUT = dict(zip(FP8, (torch.float16, torch.bfloat16, torch.float64), strict=False))  # for some, another output dtype

EVERYWHERE = pytest.mark.parametrize("around", [contextlib.nullcontext, scanops.emulate], ids=["fallback", "kernel"])
Around = Callable[[], contextlib.AbstractContextManager[Any]]


# ---- conversions


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *((torch.float32, out) for out in (torch.int32, torch.uint8, torch.float64, torch.float16)),
        *((given, out) for given in COMPLEX for out in (*COMPLEX, torch.float32, torch.int64)),
        *((given, torch.complex64) for given in (torch.float32, torch.int8, torch.bool)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_dtype_converts_before_it_scans(given: torch.dtype, dtype: torch.dtype, device: str) -> None:
    x = values("sum", (3, 70), torch.float32 if given == torch.bool else given).to(given)
    x = (x / 2 if given == torch.float32 else x).to(device)
    assert torch.equal(scanops.cumsum(x, 1, dtype=dtype), torch.cumsum(x, 1, dtype=dtype))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64], ids=str)
def test_gates_are_converted_before_they_are_multiplied(given: torch.dtype, dtype: torch.dtype, device: str) -> None:
    """Negative ones too, which a GPU converts to 0 in an unsigned type, as the emulator reports."""
    x, gate = (values("sum", (3, 70), torch.float32, seed=seed).to(given) * 1.5 for seed in (1, 2))
    assert (gate < -1).any()
    hold(x, "linear", 1, device, gate=gate, dtype=dtype)


# ---- halves


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32, torch.float32, torch.float16], ids=str)
@EVERYWHERE
def test_half_products_are_not_rounded_to_half(around: Around, dtype: torch.dtype) -> None:
    """Before they are scanned, whatever the result's dtype."""
    x = torch.arange(1, 129, dtype=torch.int16)
    mask = (torch.arange(128) % 7 + 1.0625).to(torch.bfloat16)
    wanted = torch.cummax(x.float() * mask.float(), 0).values.to(dtype)
    assert not torch.equal(wanted, torch.cummax((x * mask).float(), 0).values.to(dtype))
    with around():
        assert torch.equal(scanops.scan(x, "max", 0, mask=mask, dtype=dtype), wanted)


@EVERYWHERE
def test_what_is_multiplied_by_a_half_is_not_rounded_to_one(around: Around) -> None:
    """2049 lies between two numbers of float16, in which only results are."""
    x, mask = torch.ones(2, dtype=torch.float16), torch.tensor([2049, -2048], dtype=torch.int16)
    gate = torch.ones(2, dtype=torch.float32)
    with around():
        assert scanops.cumsum(x, 0, mask=mask).tolist() == [2048, 1]
        assert scanops.cumsum(x, 0, mask=mask, dtype=torch.float32).tolist() == [2049, 1]
        assert scanops.linear_scan(gate, mask, 0, mask=x).tolist() == [2049, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@EVERYWHERE
def test_elements_are_converted_to_the_accumulator_of_halves(around: Around, dtype: torch.dtype) -> None:
    """Not to the half type of the results, which alone are rounded."""
    x = torch.tensor([1.001, 2.003, 3.0007], dtype=torch.float64)
    weighted = {"mask": torch.full((3,), 1.25, dtype=torch.float32)}
    for options in ({}, weighted, {"accumulate": torch.float64}):
        terms = x * 1.25 if "mask" in options else x
        with around():
            y, final = scanops.cumsum(x, 0, dtype=dtype, return_final=True, **options)
        near = 1e-15 if "accumulate" in options else 1e-7
        assert y.dtype == dtype and y[-1] == final.to(dtype)
        torch.testing.assert_close(final.double(), terms.sum(), rtol=near, atol=0)


# ---- integers


def bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits, those of the greatest and the least value among them."""
    x = torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(seed))
    x.flatten()[:2] = torch.tensor([-1, 0])
    return x.view(dtype) if dtype.itemsize == 8 else x.to(dtype)


@pytest.mark.parametrize("dtype", [*UNSIGNED, torch.int64], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "bitwise_xor", "cummax"])
@EVERYWHERE
def test_integers_of_any_bits(around: Around, op: str, dtype: torch.dtype) -> None:
    """Compared, as unsigned where they are, and wrapped; masks and directions alternate."""
    turn = len(op) + dtype.itemsize.bit_length()
    mask = selection((3, 300)) if turn % 2 else bits((3, 300), dtype, 1) if op == "sum" else None
    with around():
        hold(bits((3, 300), dtype), op, 1, mask=mask, exclusive=turn % 3 > 0, reverse=turn % 3 == 1, dtype=dtype)


# ---- narrow floats; those of 8 bits are read exactly, scanned in float32 or wider, never written


@pytest.mark.parametrize("dtype", [*FP8, torch.float16, torch.bfloat16], ids=str)
def test_every_code_is_read_exactly(dtype: torch.dtype, device: str) -> None:
    bits = (torch.uint8, torch.uint16)[dtype.itemsize - 1]
    x = torch.arange(256**dtype.itemsize).to(bits).view(dtype)
    lines = torch.stack([x.view(bits)] * 2, 1).view(dtype)
    for out in (torch.float32, OUT[dtype]) if dtype in OUT else (torch.float32,):
        y = scanops.cumsum(lines.to(device), 1, exclusive=True, dtype=out)
        assert y.dtype == out
        torch.testing.assert_close(y[:, 1].cpu(), x.float().to(out), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_to_nearest_even(dtype: torch.dtype, device: str) -> None:
    """Each value, the tie with its neighbour, the floats next to the tie, random floats, and special ones."""
    finite = torch.arange(0x7F80 if dtype == torch.bfloat16 else 0x7C00).to(torch.uint16).view(dtype).double()
    ties = ((finite[:-1] + finite[1:]) / 2).float()
    around = [ties.nextafter(torch.tensor(end)) for end in (0.0, math.inf)]
    random = torch.randint(0x7F800001, (4096,), generator=torch.Generator().manual_seed(7))
    special = torch.tensor([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 1])
    bits = torch.cat([random, special]).to(torch.int32).view(torch.float32)
    x = torch.cat([finite.float(), finite[-1:].float() * 2, ties, *around, bits])
    x = torch.cat([x, -x])[:, None]
    y = scanops.scan(x.to(device), "max", 1, dtype=dtype).cpu()
    torch.testing.assert_close(y, x.to(dtype), rtol=0, atol=0, equal_nan=True)


# ---- complex numbers


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_conjugated_tensors(dtype: torch.dtype, device: str) -> None:
    """A lazy conjugate is not what lies in its memory."""
    x = values("prod", (2, 40), dtype).to(device)
    x[:, 1] = 1j
    lazy = x.conj()
    assert lazy.is_conj()
    assert torch.equal(scanops.cumprod(lazy, 1), torch.cumprod(lazy.resolve_conj(), 1))
    assert torch.equal(scanops.cumsum(x, 1, mask=lazy), torch.cumsum(x * lazy, 1))
    out = torch.zeros_like(x).conj()
    assert scanops.cumprod(x, 1, out=out) is out
    assert torch.equal(out, torch.cumprod(x, 1))
