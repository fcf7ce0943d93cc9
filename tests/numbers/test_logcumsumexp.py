"""logcumsumexp against torch: its error, terms far apart, infinities, and angles of complex numbers."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch

import scanops
from tests.numbers.oracle import CASES, of_same_turn

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
