"""What a scan is computed in: wider dtypes, and sums and products that keep what rounding loses."""

from __future__ import annotations

import contextvars
import functools
import math
from fractions import Fraction

import pytest
import torch

import scanops
from tests.numbers.oracle import CASES, selection

UNIT = 2.0**-24  # half the distance of neighbours in float32, of numbers near 1


def spread(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Great and small numbers that cancel: a plain sum loses most of the small ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x * 2.0 ** torch.randint(-12, 13, shape, generator=generator)).float()


@pytest.mark.parametrize(("number", "name"), enumerate(CASES))
def test_a_sum_keeps_to_its_bound(number: int, name: str, device: str) -> None:
    """In every strategy and in the fallback, rounded once; dtypes, masks and directions alternate."""
    case, reverse = CASES[name], number % 2 > 0
    accumulate = torch.float64 if number % 3 == 2 else "compensated"
    dtype = torch.bfloat16 if number % 4 == 3 else torch.float32
    x = spread(case.shape).to(dtype)
    mask = selection(case.shape) if number % 5 == 0 else None
    exact, magnitude = (scanops.cumsum(each.double(), case.dim, mask=mask, reverse=reverse) for each in (x, x.abs()))
    additions = 16 + 2 * math.log2(case.shape[case.dim])  # a run in a thread, then trees over lanes, warps and tiles
    bound = torch.finfo(dtype).eps / 2 * exact.abs() * 1.001 + (additions * UNIT) ** 2 * magnitude
    scan = functools.partial(scanops.cumsum, dim=case.dim, reverse=reverse, accumulate=accumulate)
    found = scan(x.to(device), mask=mask if mask is None else mask.to(device)).cpu()
    for y in (found, contextvars.Context().run(scan, x, mask=mask)):  # outside scanops.emulate()
        assert y.dtype == dtype and ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("accumulate", ["compensated", torch.float64], ids=str)
@pytest.mark.parametrize("items", [(1, math.inf, 2, -math.inf, 1), (3e38, 3e38, 1), (1, math.nan, 2), (-math.inf, 1)])
def test_special_values_are_torchs(items: tuple[float, ...], accumulate: torch.dtype | str, device: str) -> None:
    x = torch.zeros(2, 200)
    x[0, : len(items)] = x[1, 100 : 100 + len(items)] = torch.tensor(items)
    wanted = torch.cumsum(x.double() if accumulate == torch.float64 else x, 1).float()
    for operand in (x, x.to(device)):
        y = scanops.cumsum(operand, 1, accumulate=accumulate).cpu()
        torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)


def test_elements_are_not_rounded_on_their_way(device: str) -> None:
    x = torch.full((4, 100), 1 + 2.0**-25, dtype=torch.float64, device=device)  # in float32 it is 1
    y = scanops.cumsum(x, 1, dtype=torch.float32, accumulate=torch.float64, mask=torch.arange(100, device=device) > 60)
    wanted = torch.cumsum(torch.where(torch.arange(100, device=device) > 60, x, 0), 1).float()
    assert torch.equal(y, wanted)
    x = torch.full((1, 4096), 1 + 2.0**-12, dtype=torch.float64, device=device)  # in bfloat16 it is 1
    y = scanops.cumsum(x, 1, dtype=torch.bfloat16, accumulate=torch.float64)
    assert torch.equal(y, torch.cumsum(x, 1).to(torch.bfloat16)) and y[0, -1] == 4096


@pytest.mark.parametrize("op", ["prod", "logcumsumexp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_other_operators_in_wider_dtypes(op: str, dtype: torch.dtype, device: str) -> None:
    x = 1 + 0.05 * torch.randn(3, 700, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    x = x.to(dtype) if dtype.is_complex else x.real.to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    y = scanops.scan(x.to(device), op, 1, accumulate=wide).cpu()
    wanted = getattr(torch, {"prod": "cumprod"}.get(op, op))(x.to(wide), 1).to(dtype)
    torch.testing.assert_close(y, wanted, rtol=1e-7 if dtype != torch.bfloat16 else 1e-2, atol=0)
    assert torch.equal(scanops.scan(x, op, 1, accumulate=wide), wanted)


def test_the_gradient_of_a_sum_in_a_wider_dtype(device: str) -> None:
    x = torch.ones(2, 5, device=device, requires_grad=True)
    (found,) = torch.autograd.grad(scanops.cumsum(x, 1, accumulate=torch.float64).sum(), x)
    assert found.tolist() == [[5, 4, 3, 2, 1]] * 2


NEAR_ONE = dict.fromkeys(("whole_warp", "wide_columns", "split_odd"), torch.float32)
NEAR_ONE |= {"wave_odd": torch.float64, "staged_pieces": torch.bfloat16}


@pytest.mark.parametrize(("name", "dtype"), NEAR_ONE.items())
def test_a_compensated_product_is_rounded_once(name: str, dtype: torch.dtype, device: str) -> None:
    """Of numbers near 1, where plain products of neighbours are rounded down more often than up."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(5)
    x = (1 + 1e-3 * torch.randn(case.shape, generator=generator, dtype=torch.float64)).to(dtype)
    exact = [Fraction(1)]
    line = x.double().movedim(case.dim, -1).reshape(-1, case.shape[case.dim])[0]
    for item in line[:300].tolist():
        exact.append(exact[-1] * Fraction(item))
    wanted = torch.tensor([float(value) for value in exact[1:]], dtype=torch.float64)
    scan = functools.partial(scanops.cumprod, dim=case.dim, accumulate="compensated")
    for y in (scan(x.to(device)).cpu(), contextvars.Context().run(scan, x)):
        found = y.double().movedim(case.dim, -1).reshape(-1, case.shape[case.dim])[0, :300]
        unit = torch.finfo(dtype).eps / 2
        assert ((found - wanted).abs() <= unit * (1 + 1e-3) * wanted.abs()).all()
