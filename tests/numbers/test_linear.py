"""h[i] = a[i] * h[i-1] + b[i] on any numbers: what the recurrence computes item by item, in every strategy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import scanops
from tests.numbers.oracle import CASES, laid

FINITE_LIMIT = torch.finfo(torch.float32).max
CELLS = [(name, number % 2 > 0) for number, name in enumerate(CASES)]


def recurrence(a: torch.Tensor, b: torch.Tensor, dim: int, *, reverse: bool = False) -> torch.Tensor:
    """Item by item, in float64 or complex128. NumPy takes a third of torch's time for an item."""
    wide = torch.complex128 if b.is_complex() else torch.float64
    x, g = (np.ascontiguousarray(each.to(wide).movedim(dim, 0)) for each in (b, a.expand(b.shape)))
    h, found = np.zeros(x.shape[1:]), np.empty_like(x)
    with np.errstate(all="ignore"):
        for i in reversed(range(len(x))) if reverse else range(len(x)):
            h = g[i] * h + x[i]
            found[i] = h
    return torch.from_numpy(found).movedim(0, dim)


def alike(found: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor, slack: torch.Tensor) -> None:
    """Finite where ``wanted`` is, and there within the rounding error of sums of terms as great as ``bound``."""
    assert found.shape == wanted.shape
    found = found.cpu().double()
    wanted = torch.where(wanted.isfinite() & (wanted.abs() > FINITE_LIMIT), wanted.sign() * math.inf, wanted)
    sure = bound.isnan() | bound.isinf() | (bound < FINITE_LIMIT)  # else which of two rounded sums overflows is chance
    differ = (found.isfinite() != wanted.isfinite()) & sure
    assert not differ.any(), f"finite or not, first at {differ.nonzero()[0].tolist()}"
    both = found.isfinite() & wanted.isfinite() & sure
    assert ((found - wanted).abs()[both] <= 1e-5 * bound[both] + slack[both] + 1e-44).all()


def drawn(choices: tuple[float, ...], length: int, seed: int, *, scarce: int) -> torch.Tensor:
    """Items of the last choice but for one in ``scarce``, which is any of them."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.tensor(choices)[torch.randint(len(choices), (length,), generator=generator)]
    return torch.where(torch.rand(length, generator=generator) < 1 / scarce, items, torch.tensor(choices[-1]))


PLAIN = (0.25, -1.0, 0.5)
TINY = (1e-40, 1e-45, -3e-39)
ITEMS = (math.nan, math.inf, -math.inf, 0.0, 0.0, -0.5, 1.0)
GATES = (math.nan, 0.0, 0.0, 1.0, -1.0, -0.5, 0.25)
INFINITE = (math.inf, -math.inf, 0.5)
# (gates, one in so many of them; items, one in so many of them; error of denormal results)
SPECIAL = [
    (GATES, 1, ITEMS, 1, 0.0),
    (GATES, 500, ITEMS, 500, 0.0),
    (PLAIN, 1, ITEMS, 300, 0.0),
    (GATES, 300, PLAIN, 1, 0.0),
    (INFINITE, 3, PLAIN, 1, 0.0),
    (INFINITE, 1000, PLAIN, 1, 0.0),
    # A product of gates that is denormal is exact to 2^-149, and so off by 2^-148 of the greatest item.
    ((*TINY, 0.5), 20, (1e38, -1e37, 1e38, 0.0), 10, 2.0**-148 * 1e38),
    ((0.5,), 1, (*TINY, 0.0), 4, 0.0),
    # Products of gates overflow or underflow: zeros stay 0, and an infinity is never finite again.
    ((2.0**100, -2.0), 1, (0.0,), 1, 0.0),
    ((2.0**100, 2.0**-100), 1, (math.inf, 0.0), 50, 0.0),
    ((2.0**-100,), 1, (math.inf, 0.0), 50, 0.0),
]


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_special_gates_and_items(name: str, reverse: bool, device: str) -> None:
    """NaN, infinities, zeros and denormals: no result is finite that the recurrence does not give.

    Behind an infinity a result is infinite or NaN, not always which: a product of gates that underflows makes it NaN,
    and a range of items with an infinite gate is no longer a gate and a value.
    """
    case = CASES[name]
    length, lines = case.shape[case.dim], math.prod(case.shape) // case.shape[case.dim]
    batches = []  # of as many rows of SPECIAL as there are lines
    for first in range(0, len(SPECIAL), lines):
        rows = [SPECIAL[(first + line) % len(SPECIAL)] for line in range(lines)]
        a, b = (
            torch.stack([drawn(row[k], length, 2 * (first + n) + k, scarce=row[k + 1]) for n, row in enumerate(rows)])
            for k in (0, 2)
        )
        slack = torch.tensor([row[4] for row in rows])[:, None].expand(lines, length)
        batches.append([laid(each, case) for each in (a, b, slack)])
    a, b, slack = map(torch.stack, zip(*batches, strict=True))
    both = (torch.stack([each, each.abs()]) for each in (a, b))
    wanted, bound = recurrence(*both, case.dim + 2, reverse=reverse)
    for k in range(len(batches)):
        found = scanops.linear_scan(a[k].to(device), b[k].to(device), case.dim, reverse=reverse)
        alike(found, wanted[k], bound[k], slack[k])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_decaying_averages(dtype: torch.dtype, device: str) -> None:
    """Of random gates and items, rounded once: halves are computed in float32."""
    generator = torch.Generator().manual_seed(4)
    a = (0.9 * torch.rand(5, 3000, generator=generator)).to(dtype)
    b = torch.randn(5, 3000, generator=generator).to(dtype)
    y = scanops.linear_scan(a.to(device), b.to(device), 1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu(), recurrence(a, b, 1).to(dtype))
