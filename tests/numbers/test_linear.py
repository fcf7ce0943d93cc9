"""h[i] = a[i] * h[i-1] + b[i] on any numbers: what the recurrence computes item by item, in every strategy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import scanops
from tests.numbers.matrix import ROUTES
from tests.numbers.oracle import CASES, Case, placed

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


def drawn(choices: tuple[float, ...], shape: tuple[int, ...], seed: int, *, scarce: int = 1) -> torch.Tensor:
    """Items of the last choice but for one in ``scarce``, which is any of them."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.tensor(choices)[torch.randint(len(choices), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 1 / scarce, items, torch.tensor(choices[-1]))


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
]


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_special_gates_and_items(name: str, reverse: bool, device: str) -> None:
    """NaN, infinities, zeros and denormals: no result is finite that the recurrence does not give.

    Behind an infinity a result is infinite or NaN, not always which: a product of gates that underflows makes it NaN,
    and a range of items with an infinite gate is no longer a gate and a value.
    """
    case = CASES[name]
    length, lines = case.shape[case.dim], math.prod(case.shape) // case.shape[case.dim]
    for first in range(0, len(SPECIAL), lines):
        rows = [SPECIAL[(first + line) % len(SPECIAL)] for line in range(lines)]
        a, b = (
            laid([drawn(row[k], (length,), 2 * (first + n) + k, scarce=row[k + 1]) for n, row in enumerate(rows)], case)
            for k in (0, 2)
        )
        slack = laid([torch.full((length,), row[4]) for row in rows], case)
        wanted = recurrence(a, b, case.dim, reverse=reverse)
        bound = recurrence(a.abs(), b.abs(), case.dim, reverse=reverse)
        alike(products(device, name, a, b, reverse=reverse), wanted, bound, slack)


def laid(lines: list[torch.Tensor], case: Case) -> torch.Tensor:
    """These lines as a tensor of the case's shape."""
    beside = case.shape[: case.dim] + case.shape[case.dim + 1 :]
    return torch.stack(lines).reshape(*beside, -1).movedim(-1, case.dim).contiguous()


def products(device: str, name: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    return scanops.linear_scan(a.to(device), b.to(device), CASES[name].dim, **options)


STEADY = (2.0, 0.5, -2.0, 2.0**100, 2.0**-100)  # gates, one for each line


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_products_of_gates_that_overflow_or_vanish(name: str, reverse: bool, device: str) -> None:
    """The product of a range of gates overflows or underflows: zeros stay 0, an inf is never finite again."""
    case = CASES[name]
    length, dim = case.shape[case.dim], case.dim
    zeros, inf, one = torch.zeros(case.shape), torch.zeros(case.shape), torch.zeros(case.shape)
    inf.select(dim, -1 if reverse else 0).fill_(math.inf)
    one.select(dim, -1 if reverse else 0).fill_(1.0)
    lines = zeros.numel() // length
    for first in range(0, len(STEADY), lines):
        a = laid([torch.full((length,), STEADY[(first + line) % len(STEADY)]) for line in range(lines)], case)
        assert (products(device, name, a, zeros, reverse=reverse) == 0).all(), "0 times a product that overflows"
        assert not products(device, name, a, inf, reverse=reverse).isfinite().any(), "an inf never becomes finite"
    # Up and down again: 2^100 comes back to 1 though the gates between overflow in any stretch but from the start.
    place = torch.arange(length).reshape([-1 if d == dim else 1 for d in range(len(case.shape))])
    place = length - 1 - place if reverse else place
    a = torch.where((place // 60) % 2 == 0, 2.0, 0.5).expand(case.shape).contiguous()
    found = products(device, name, a, one, reverse=reverse).cpu().double()
    assert torch.equal(found, recurrence(a, one, dim, reverse=reverse))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_decaying_averages(dtype: torch.dtype, device: str) -> None:
    """Of random gates and items, rounded once: halves are computed in float32."""
    generator = torch.Generator().manual_seed(4)
    a = (0.9 * torch.rand(5, 3000, generator=generator)).to(dtype)
    b = torch.randn(5, 3000, generator=generator).to(dtype)
    y = scanops.linear_scan(a.to(device), b.to(device), 1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu(), recurrence(a, b, 1).to(dtype))


SPREADS = {
    "a row": lambda shape, dim: tuple(1 if d == dim else size for d, size in enumerate(shape)),
    "a channel": lambda shape, dim: tuple(size if d in (dim, len(shape) - 1) else 1 for d, size in enumerate(shape)),
    "a number": lambda shape, dim: (),
    "an item of each line": lambda shape, dim: tuple(size if d == dim else 1 for d, size in enumerate(shape)),
}


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        ("staged", "a row"),
        ("lanes", "a channel"),
        ("one_tile", "a number"),
        ("split", "an item of each line"),
        ("wide_columns", "a row"),
        ("column_ring", "an item of each line"),
        ("panels_chain", "a channel"),
        ("transposed_rows", "a number"),
    ],
)
def test_gates_are_never_copied(name: str, spread: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads a broadcast gate where it lies: the address it is given is the gate's."""
    route = ROUTES[name]
    a = drawn((-1.0, 0.0, 1.0), SPREADS[spread](route.shape, route.dim), 1)
    b = drawn((-2.0, 0.0, 1.0, 3.0), route.shape, 2)
    wanted = recurrence(a, b, route.dim)
    if route.turned:
        b = b.permute(route.turned).contiguous().permute([route.turned.index(d) for d in range(b.ndim)])
    there = placed(a, device)
    read: list[int] = []
    launch = scanops.runtime.launcher.Launcher.__call__

    def watched(self: Any, inputs: Any, outs: Any) -> None:
        read.append(inputs.gate.data_ptr())
        launch(self, inputs, outs)

    monkeypatch.setattr(scanops.runtime.launcher.Launcher, "__call__", watched)
    y = scanops.linear_scan(there, placed(b, device), route.dim)
    assert torch.equal(y.cpu().double(), wanted)
    assert read == [there.data_ptr()]


@pytest.mark.gpu
@pytest.mark.parametrize("spread", SPREADS)
def test_a_call_takes_the_memory_of_its_result(spread: str) -> None:
    b = torch.ones(1024, 4096, device="cuda")
    a = torch.ones(SPREADS[spread](b.shape, 1), device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        asked = torch.cuda.memory_stats()["requested_bytes.all.current"]
        y = scanops.linear_scan(a, b, 1)
        assert torch.cuda.memory_stats()["requested_bytes.all.peak"] - asked == y.nbytes
        del y
