"""``linear_scan`` with gates and items that are not ordinary numbers, beside the recurrence item by item."""

from __future__ import annotations

import math

import pytest
import torch

import scanops

ODD = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e-30])


def drawn(odd: torch.Tensor, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.tensor([1.0, -1.0, 0.5])[torch.randint(3, shape, generator=generator)]
    chosen = odd[torch.randint(len(odd), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.05, chosen, plain)


def recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h, results = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        h = a[:, i] * h + b[:, i]
        results.append(h)
    return torch.stack(results, 1)


@pytest.mark.parametrize("length", [5, 64, 601, 2047, 4100])
def test_no_gate_is_infinite(length: int, device: str) -> None:
    """Zero gates, NaN of both and infinite items come out as the recurrence has them."""
    a = drawn(torch.tensor([0.0, -0.0, math.nan]), (37, length), 1)
    b = drawn(torch.tensor([0.0, math.inf, -math.inf, math.nan]), (37, length), 2)
    y, wanted = scanops.linear_scan(a.to(device), b.to(device), 1).cpu(), recurrence(a, b)
    torch.testing.assert_close(y, wanted, equal_nan=True)


@pytest.mark.parametrize("length", [5, 64, 601, 2047, 4100])
def test_infinite_gates(length: int, device: str) -> None:
    """Nothing finite from the first of them on, and what comes before is right."""
    a, b = drawn(torch.tensor([0.0, math.inf, -math.inf]), (37, length), 3), drawn(ODD[:1], (37, length), 4)
    y, wanted = scanops.linear_scan(a.to(device), b.to(device), 1).cpu(), recurrence(a, b)
    assert torch.equal(y.isfinite(), wanted.isfinite())
    torch.testing.assert_close(y[y.isfinite()], wanted[y.isfinite()])


def test_a_long_way_down_and_up_again(device: str) -> None:
    """The product of gates leaves float32 in either direction, and comes back; the recurrence does not notice."""
    a = torch.tensor([1e-30] * 8 + [1e30] * 8).repeat(1, 4)
    b = torch.zeros_like(a)
    b[:, ::16] = 1.0
    y, wanted = scanops.linear_scan(a.to(device), b.to(device), 1).cpu(), recurrence(a, b)
    torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_lends_its_kind_and_not_its_width(swapped: bool, device: str) -> None:
    wide, narrow = torch.tensor(0.5, dtype=torch.float64, device=device), torch.ones(4, device=device)
    a, b = (narrow, wide) if swapped else (wide, narrow)
    assert scanops.linear_scan(a, b, 0).dtype == (a * b).dtype == torch.float32
    truth = torch.tensor(True, device=device)
    assert scanops.linear_scan(truth, narrow, 0).tolist() == [1, 2, 3, 4]
