"""Recurrences and logcumsumexp on any numbers: what is computed item by item or by torch, in every strategy."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch

import scanops
from tests.numbers.oracle import CASES, laid, of_same_turn

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


# ---- logcumsumexp against torch: its error, terms far apart, infinities, and angles of complex numbers

SPREADS = {
    "randn": lambda n, g: torch.randn(n, generator=g),
    "a huge spread": lambda n, g: 1e3 * torch.randn(n, generator=g),
    "near overflow": lambda n, g: 88 + torch.rand(n, generator=g),
    "equal": lambda n, g: torch.zeros(n),
    "small beside great": lambda n, g: torch.where(torch.arange(n) == 0, 0.0, -12 + torch.rand(n, generator=g)),
    "falling": lambda n, g: -torch.arange(n) / 8.0,
}


def torchs_on_a_gpu(x: torch.Tensor) -> torch.Tensor:
    """logcumsumexp as torch computes it on a GPU, by pairs in float32; on a CPU torch accumulates in double."""
    y, distance = x.float(), 1
    while distance < x.shape[1] and not x.is_cuda:
        y = torch.cat([y[:, :distance], torch.logaddexp(y[:, :-distance], y[:, distance:])], 1)
        distance *= 2
    return torch.logcumsumexp(x, 1) if x.is_cuda else y.to(x.dtype)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("length", [1000, 40000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_logcumsumexp_is_as_exact_as_torchs(spread: str, length: int, dtype: torch.dtype, device: str) -> None:
    """The error against float64 is at most that of torch on a GPU, in the maximum and on average."""
    x = SPREADS[spread](length, torch.Generator().manual_seed(7)).to(dtype).expand(2, length)
    exact = torch.logcumsumexp(x.double(), 1)
    ours = (scanops.logcumsumexp(x.to(device), 1).cpu().double() - exact).abs()
    theirs = (torchs_on_a_gpu(x.to(device)).cpu().double() - exact).abs()
    tie = 1.001  # halves that lie between two are rounded by the last bit of a float
    assert ours.max() <= tie * theirs.max() + 1e-12
    assert ours.mean() <= tie * theirs.mean() + 1e-12


@pytest.mark.parametrize("name", ["lanes", "one_tile", "wave", "column_loop", "panels_odd"])
def test_terms_that_are_far_from_the_first_of_their_thread(name: str, device: str) -> None:
    """logcumsumexp where a thread's first term is no good reference: after -inf, masked items, jumps, infinities."""
    case = CASES[name]
    length, shape = case.shape[case.dim], [-1 if d == case.dim else 1 for d in range(len(case.shape))]
    place = torch.arange(length)
    jumps = torch.where(place % 7 == 3, 300.0, -200.0) + place
    late = torch.where(place < 5, -math.inf, torch.linspace(0, 1, length))
    ends = torch.where(place == length // 2, math.inf, torch.where(place == length - 3, math.nan, -1.0 * place))
    steep, last = 1000.0 - 90 * (place % 11), torch.where(place >= length - 2, math.inf, 0.0)
    for number, line in enumerate((jumps, steep, late, last, ends)):
        x = line.reshape(shape).expand(case.shape).contiguous()
        mask = (place % 4 > 1).reshape(shape).expand(case.shape).contiguous() if number % 2 else None
        counted = x if mask is None else x.masked_fill(~mask, -math.inf)
        found = scanops.scan(x.to(device), "logcumsumexp", case.dim, mask=None if mask is None else mask.to(device))
        wanted = torch.logcumsumexp(counted.double(), case.dim).float()
        torch.testing.assert_close(found.cpu(), wanted, equal_nan=True, rtol=2e-7, atol=1e-6)


NAN, INF = math.nan, math.inf
LINES = {
    "angles of several turns": (1 + 9j, 2 - 9j, 5j, 1.99 + 40j),
    "-inf first": (complex(-INF, 0), complex(-INF, 2), 1 + 2j, complex(-INF, 3)),
    "+inf": (1 + 2j, complex(INF, 1), 3 + 1j),
    "NaN in the real part": (1 + 2j, complex(NAN, 1), 3 + 1j),
    "NaN in the imaginary part": (1 + 1j, complex(1, NAN), 3 + 1j),
    "NaN beside -inf": (complex(-INF, NAN), 1 + 1j),
    "NaN first": (complex(NAN, 0), 1 + 1j),
    "a great spread": (-1000 + 1j, 1000 + 2j, 1000 - 1j, 1e4 + 3j),
    "terms that nearly cancel": (1 + 0j, 1 + 3.14j, 1 + 1j),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("length", [4, 300, 3000])
def test_logarithms_of_sums_are_torchs(line: str, length: int, device: str) -> None:
    """At the start of a line and within it, to whole turns of the angle."""
    x = torch.zeros(2, length, dtype=torch.complex128)
    x[0, : len(LINES[line])] = torch.tensor(LINES[line])
    x[1, length // 2 : length // 2 + len(LINES[line])] = torch.tensor(LINES[line])[: length - length // 2]
    wanted = torch.logcumsumexp(x, 1)
    found = scanops.logcumsumexp(x.to(device), 1).cpu()
    torch.testing.assert_close(of_same_turn(found, wanted), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_terms_that_are_next_to_nothing(dtype: torch.dtype) -> None:
    """Fractions of the greatest that are no normal numbers, with a kernel and without one."""
    for apart in (60, 87.5, 90, 95, 103, 700, 710, 740, 744, 800):
        x = torch.tensor([complex(-apart, 1), 1j, complex(-apart, 2)], dtype=dtype)
        for around in (contextlib.nullcontext, scanops.emulate):
            with around():
                y, final = scanops.logcumsumexp(x, 0, initial=complex(-2 * apart, 3), return_final=True)
            torch.testing.assert_close(torch.stack([*y, final]), x[[0, 1, 1, 1]])


@pytest.mark.parametrize("name", ["lanes", "one_tile_odd", "split", "column_loop", "panels_odd", "wave_odd"])
def test_the_angle_does_not_depend_on_the_strategy(name: str, device: str) -> None:
    """It is that of the term of the greatest real part, plus less than half a turn."""
    case = CASES[name]
    x = 3 * torch.randn(case.shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(8))
    y = scanops.logcumsumexp(x.to(device), case.dim).cpu()
    greatest = torch.cummax(x.real, case.dim).indices
    off = y.imag - x.imag.gather(case.dim, greatest)
    assert (off.abs() <= math.pi).all()
    torch.testing.assert_close(y.real, torch.logcumsumexp(x, case.dim).real)
