"""h[i] = a[i] * h[i-1] + b[i] on any numbers: what the recurrence computes item by item, in every strategy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import scanops
from tests.numbers.matrix import ROUTES
from tests.numbers.oracle import CASES, placed

FINITE_LIMIT = torch.finfo(torch.float32).max
CELLS = [(name, number % 2 > 0) for number, name in enumerate(CASES)]


def recurrence(a: torch.Tensor, b: torch.Tensor, dim: int, *, reverse: bool = False) -> torch.Tensor:
    """Item by item, in float64. NumPy takes a third of torch's time for an item."""
    x, g = (np.ascontiguousarray(each.double().movedim(dim, 0)) for each in (b, a.expand(b.shape)))
    h, found = np.zeros(x.shape[1:]), np.empty_like(x)
    with np.errstate(all="ignore"):
        for i in reversed(range(len(x))) if reverse else range(len(x)):
            h = g[i] * h + x[i]
            found[i] = h
    return torch.from_numpy(found).movedim(0, dim)


def alike(found: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor, slack: float = 1e-44) -> None:
    """Finite where ``wanted`` is, and there within the rounding error of sums of terms as great as ``bound``."""
    assert found.shape == wanted.shape
    found = found.cpu().double()
    wanted = torch.where(wanted.isfinite() & (wanted.abs() > FINITE_LIMIT), wanted.sign() * math.inf, wanted)
    sure = bound.isnan() | bound.isinf() | (bound < FINITE_LIMIT)  # else which of two rounded sums overflows is chance
    differ = (found.isfinite() != wanted.isfinite()) & sure
    assert not differ.any(), f"finite or not, first at {differ.nonzero()[0].tolist()}"
    both = found.isfinite() & wanted.isfinite() & sure
    assert ((found - wanted).abs()[both] <= 1e-5 * bound[both] + slack).all()


def drawn(choices: tuple[float, ...], shape: tuple[int, ...], seed: int, *, scarce: int = 1) -> torch.Tensor:
    """Items of the last choice but for one in ``scarce``, which is any of them."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.tensor(choices)[torch.randint(len(choices), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 1 / scarce, items, torch.tensor(choices[-1]))


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, 0.0, -0.5, 1.0)
SPECIAL_GATES = (math.nan, 0.0, 0.0, 1.0, -1.0, -0.5, 0.25)


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_special_gates_and_items(name: str, reverse: bool, device: str) -> None:
    """NaN, infinities and zeros in both operands or in one: no result is finite that the recurrence does not give.

    Behind an infinity a result is infinite or NaN, not always which: a product of gates that underflows makes it NaN.
    """
    case = CASES[name]
    plain = drawn((0.25, -1.0, 0.5), case.shape, 5)
    for number, (gates, items, scarce) in enumerate(
        ((SPECIAL_GATES, SPECIAL, 1), (SPECIAL_GATES, SPECIAL, 500), (None, SPECIAL, 300), (SPECIAL_GATES, None, 300))
    ):
        a = plain if gates is None else drawn(gates, case.shape, number, scarce=scarce)
        b = plain if items is None else drawn(items, case.shape, number + 10, scarce=scarce)
        wanted = recurrence(a, b, case.dim, reverse=reverse)
        bound = recurrence(a.abs(), b.abs(), case.dim, reverse=reverse)
        alike(products(device, name, a, b, reverse=reverse), wanted, bound)


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_infinite_gates(name: str, reverse: bool, device: str) -> None:
    """What lies before the first one is untouched. From there on nothing is finite: inf or NaN, not always which.

    A stretch with such a gate is no longer a gate and a value: whether it gives inf or -inf hangs on where another sum
    changes its sign.
    """
    case = CASES[name]
    for scarce in (3, 1000):
        a = drawn((math.inf, -math.inf, 0.5), case.shape, 1, scarce=scarce)
        b = drawn((0.25, -1.0, 0.5), case.shape, 2)
        wanted = recurrence(a, b, case.dim, reverse=reverse)
        y = products(device, name, a, b, reverse=reverse).cpu().double()
        finite = wanted.isfinite()
        assert torch.equal(y.isfinite(), finite)
        torch.testing.assert_close(y[finite], wanted[finite], rtol=1e-4, atol=1e-4)


def products(device: str, name: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    return scanops.linear_scan(a.to(device), b.to(device), CASES[name].dim, **options)


@pytest.mark.parametrize(("name", "reverse"), CELLS)
def test_products_of_gates_that_overflow_or_vanish(name: str, reverse: bool, device: str) -> None:
    """The product of a range of gates overflows or underflows: zeros stay 0, an inf is never finite again."""
    case = CASES[name]
    length, dim = case.shape[case.dim], case.dim
    zeros = torch.zeros(case.shape)
    first = -1 if reverse else 0
    along = [-1 if d == dim else 1 for d in range(len(case.shape))]
    for gate in (2.0, 0.5, -2.0, 2.0**100, 2.0**-100):
        a = torch.full(case.shape, gate)
        assert (products(device, name, a, zeros, reverse=reverse) == 0).all(), "0 times a product that overflows"
        inf = zeros.clone()
        inf.select(dim, first).fill_(math.inf)
        assert not products(device, name, a, inf, reverse=reverse).isfinite().any(), "an inf never becomes finite"
    # Up and down again: 2^100 comes back to 1 though the gates between overflow in any stretch but from the start.
    a = torch.full(case.shape, 2.0)
    place = torch.arange(length).reshape(along)
    place = length - 1 - place if reverse else place
    a = torch.where((place // 60) % 2 == 0, a, 1 / a)
    b = zeros.clone()
    b.select(dim, first).fill_(1.0)
    assert torch.equal(
        products(device, name, a, b, reverse=reverse).cpu().double(), recurrence(a, b, dim, reverse=reverse)
    )


@pytest.mark.parametrize("name", ["lanes", "staged_pieces", "one_tile_odd", "short_columns", "panels_odd", "split_odd"])
def test_denormal_gates_and_items(name: str, device: str) -> None:
    """Tiny gates on great values, and results that are denormal themselves.

    A product of gates that is denormal is as exact as such numbers are: what it multiplies is off by 2^-148 of that.
    """
    case = CASES[name]
    tiny = (1e-40, 1e-45, -3e-39)
    a = drawn((*tiny, 0.5), case.shape, 1, scarce=20)
    b = drawn((1e38, -1e37, 1e38, 0.0), case.shape, 2, scarce=10)
    for gates, items in ((a, b), (torch.full(case.shape, 0.5), drawn((*tiny, 0.0), case.shape, 3, scarce=4))):
        wanted, bound = (recurrence(*each, case.dim) for each in ((gates, items), (gates.abs(), items.abs())))
        alike(products(device, name, gates, items), wanted, bound, 1e-44 + 2.0**-148 * float(items.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_decaying_averages(dtype: torch.dtype, device: str) -> None:
    """Of random gates and items, rounded once: halves are computed in float32."""
    generator = torch.Generator().manual_seed(4)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a = (0.9 * torch.rand(5, 3000, generator=generator)).to(dtype)
    b = torch.randn(5, 3000, generator=generator).to(dtype)
    x, g, h, found = b.to(wide), a.to(wide), torch.zeros(5, dtype=wide), []
    for i in range(3000):
        h = g[:, i] * h + x[:, i]
        found.append(h)
    y = scanops.linear_scan(a.to(device), b.to(device), 1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu(), torch.stack(found, 1).to(dtype))


SPREADS = {
    "a row": lambda shape, dim: tuple(1 if d == dim else size for d, size in enumerate(shape)),
    "a channel": lambda shape, dim: tuple(size if d in (dim, len(shape) - 1) else 1 for d, size in enumerate(shape)),
    "a number": lambda shape, dim: (),
    "an item of each line": lambda shape, dim: tuple(size if d == dim else 1 for d, size in enumerate(shape)),
}


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        (name, spread)
        for number, name in enumerate(name for name, route in ROUTES.items() if not route.generic)
        for turn, spread in enumerate(SPREADS)
        if (number + turn) % 4 == 0
    ],
)
def test_gates_are_broadcast_and_never_copied(
    name: str, spread: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel reads the gate where it lies: the address it is given is the gate's."""
    route = ROUTES[name]
    a = drawn((-1.0, 0.0, 1.0), SPREADS[spread](route.shape, route.dim), 1)
    a = a * (a.ndim > 0) + 1.0 * (a.ndim == 0)
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
