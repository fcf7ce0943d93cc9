"""What a scan does to values: NaN, infinities, rounding, wider accumulators, compensation; chunks of a stream."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import scanops
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.lines import any_length, choose_variant
from scanops.codegen.operators import OPERATORS
from scanops.requests.request import make_request
from scanops.runtime.kernels import obtain
from scanops.runtime.policies import STRICT
from tests.numbers.matrix import MULTIPROCESSORS, ROUTES
from tests.numbers.oracle import CASES, Case, call, gates, laid, of_same_turn, scan, selection

UNIT = 2.0**-24  # half the distance of neighbours in float32, of numbers near 1
# Positions around lanes, warps and tiles, and those before the end.
MARKS = (0, 1, 3, 4, 31, 32, 33, 127, 128, 511, 512, 2047, 2048, 16383, 16384, 65536, -2, -1)


# Two halves of the cases, with every strategy in each; directions alternate.
CELLS = [(name, number % 4 > 1) for number, name in enumerate(CASES)]
HALF, OTHERS = CELLS[::2], CELLS[1::2]


@pytest.mark.parametrize(("name", "reverse"), HALF)
def test_a_special_value_reaches_exactly_what_follows(name: str, reverse: bool, device: str) -> None:
    """A line for each, so that a launch tries many, and lines with other ones, or none, must stay clean."""
    case = CASES[name]
    length, lines = case.shape[case.dim], math.prod(case.shape) // case.shape[case.dim]
    places = sorted({mark % length for mark in MARKS if mark < length})
    hits = list(zip(places, itertools.cycle((math.nan, math.inf)), strict=False))
    for first in range(0, len(hits), lines):
        items = torch.ones(lines, length)
        for line, (place, special) in enumerate(hits[first : first + lines]):
            items[line, place] = special
        wanted = items.flip(1).cumsum(1).flip(1) if reverse else items.cumsum(1)
        y = scanops.cumsum(laid(items, case).to(device), case.dim, reverse=reverse).cpu()
        torch.testing.assert_close(y, laid(wanted, case), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "reverse"), OTHERS)
def test_what_is_masked_or_excluded_is_never_read(name: str, reverse: bool, device: str) -> None:
    """A masked element counts as the identity whatever its value; an exclusive scan leaves out the last item."""
    case = CASES[name]
    mask = torch.rand(case.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    mask.select(case.dim, 0 if reverse else -1).fill_(True)
    x = torch.where(mask, 1.0, math.nan)
    x.select(case.dim, 0 if reverse else -1).fill_(math.nan)
    y = scanops.cumsum(x.to(device), case.dim, mask=mask.to(device), reverse=reverse, exclusive=True).cpu()
    assert torch.equal(y, scanops.cumsum(mask.float(), case.dim, reverse=reverse, exclusive=True))


def test_a_numeric_mask_multiplies(device: str) -> None:
    x = torch.tensor([1.0, math.nan, math.inf, 2.0], device=device)
    y = scanops.cumsum(x, 0, mask=torch.tensor([1.0, 0.0, 0.0, 1.0], device=device))
    assert y[0] == 1 and y[1:].isnan().all()  # NaN * 0 and inf * 0 are NaN, as in x * mask


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


# One route of each strategy, with a length of its own and with one that is an argument.
EACH = {(route.strategy, route.generic): name for name, route in ROUTES.items()}.values()


@pytest.mark.parametrize("op", ["sum", "logcumsumexp"])
@pytest.mark.parametrize(("name", "dtype"), [(name, DTYPES[number % 3]) for number, name in enumerate(EACH)], ids=str)
def test_rounding_is_bounded_and_the_same_under_every_schedule(name: str, dtype: torch.dtype, op: str) -> None:
    """Within the bound of tree summation; the same bits whatever the order of threads and what shared memory held."""
    route = ROUTES[name]
    x = torch.randn(route.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    if route.turned:
        x = x.permute(route.turned).contiguous().permute([route.turned.index(d) for d in range(x.ndim)])
    request = make_request(x, op, route.dim)
    spec = request.spec(x)
    key = KernelKey(spec, "cpu", choose_variant(spec, request.line_shape.numel(), MULTIPROCESSORS))
    kernel = obtain(any_length(key) if route.generic else key, STRICT)
    assert kernel is not None
    results = []
    for seed in range(3):
        with scanops.emulate(seed=seed):
            results.append(kernel(x, route.dim))
    assert all(torch.equal(result, results[0]) for result in results)
    if op == "sum":
        assert_rounded(results[0], x, route.dim)


def assert_rounded(y: torch.Tensor, x: torch.Tensor, dim: int) -> None:
    """Compare running sums with float64: serial runs in threads, then trees over lanes, warps and tiles."""
    exact = torch.cumsum(x.double(), dim)
    depth = 8 + 2 * math.log2(x.shape[dim])
    bound = depth * UNIT * torch.cumsum(x.double().abs(), dim) + torch.finfo(x.dtype).eps * exact.abs() + 1e-6
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_every_run(name: str) -> None:
    case = CASES[name]
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(4)).cuda()
    first = scanops.cumsum(x, case.dim)
    assert_rounded(first, x, case.dim)
    assert all(torch.equal(scanops.cumsum(x, case.dim), first) for _ in range(50))


SPECIAL = (math.nan, math.inf, -math.inf, 1.0, 1.0, -2.0, 0.0)


def special(case: Case, seed: int, choices: tuple[float, ...] = SPECIAL, scarce: int = 1) -> torch.Tensor:
    """Lines of these values; those that are not finite are replaced by 0 but once in ``scarce`` draws."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor(choices)[torch.randint(len(choices), case.shape, generator=generator)]
    kept = torch.rand(case.shape, generator=generator) < 1 / scarce
    return torch.where(kept | x.isfinite(), x, torch.zeros(()))


SELECTIVE = ("max", "min", "cummax", "cummin", "logcumsumexp")
SIX = ("lanes", "staged", "one_tile_odd", "split_odd", "short_columns", "panels_odd")


@pytest.mark.parametrize(("name", "op"), list(itertools.product(SIX, SELECTIVE))[::2])
def test_special_values_are_torchs(name: str, op: str, device: str) -> None:
    """NaN, infinities and ties, where they come often and where they are rare; -inf alone; NaN alone."""
    case = CASES[name]
    for seed, (choices, scarce) in enumerate(((SPECIAL, 1), (SPECIAL, 400), ((-math.inf,), 1), (SPECIAL[2:], 1))):
        x = special(case, seed, choices, scarce)
        function = getattr(torch, OPERATORS[op].torch_name or "")
        wanted = function(x, case.dim)
        wanted = (wanted,) if isinstance(wanted, torch.Tensor) else tuple(wanted)
        for y, expected in zip(call(x.to(device), op, case.dim), wanted, strict=False):
            torch.testing.assert_close(y.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("op", ["cummax", "cummin"])
def test_masked_infinities_have_no_index(op: str) -> None:
    """Where all elements so far equal the start value, the index is that of the last unmasked one."""
    x = torch.full((7,), -math.inf if op == "cummax" else math.inf)
    mask = torch.tensor([False, True, False, False, True, False, False])
    for around in (contextlib.nullcontext, scanops.emulate):
        with around():
            assert call(x, op, 0, mask=mask)[1].tolist() == [-1, 1, 1, 1, 4, 4, 4]
            assert call(x, op, 0, mask=mask, reverse=True)[1].tolist() == [1, 1, 4, 4, 4, -1, -1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_gate_of_nan_is_told_where_a_segment_begins(reverse: bool, device: str) -> None:
    """As at a line's first item: NaN times the nothing before it is NaN, until the next segment begins."""
    gate, x = torch.ones(2, 40), torch.arange(80.0).reshape(2, 40)
    starts = torch.zeros(2, 40, dtype=torch.bool)
    starts[:, [10, 25]] = True
    at = 24 if reverse else 10  # the segment's first item in the direction of the scan
    gate[1, at] = math.nan
    y = scanops.linear_scan(gate.to(device), x.to(device), 1, segment_starts=starts.to(device), reverse=reverse).cpu()
    hit = torch.zeros(2, 40, dtype=torch.bool)
    hit[1, 10:25] = True
    assert torch.equal(y.isnan(), hit)
    clean = torch.ones(2, 40).to(device)
    wanted = scanops.linear_scan(clean, x.to(device), 1, segment_starts=starts.to(device), reverse=reverse).cpu()
    assert torch.equal(y[~hit], wanted[~hit])


# ---- chunks of a stream, each starting from the carry-out of the one before it

# (shape, lengths of chunks along dimension 1, operator, dtype, reverse): rows, few rows, columns and column tiles
CHUNKED = [
    ((3, 4736), (1, 31, 601, 2052, 2051), "sum", torch.bfloat16, True),
    ((2, 17193), (9000, 8193), "linear", torch.float32, False),
    ((2, 288, 7), (1, 30, 257), "logcumsumexp", torch.float32, False),
    ((1, 2501, 32), (1200, 1301), "cummax", torch.float32, True),
]


@pytest.mark.parametrize(("shape", "lengths", "op", "dtype", "reverse"), CHUNKED, ids=str)
def test_chunks_equal_the_whole(
    shape: tuple[int, ...], lengths: tuple[int, ...], op: str, dtype: torch.dtype, reverse: bool, device: str
) -> None:
    """Sums of halves lose nothing to rounding between chunks: the carry is float32, and results are rounded once.

    An index counts from the beginning of its chunk, and is -1 where the extremum lies in an earlier chunk.
    """
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    operands = {"x": x, "mask": selection(shape)} | ({"gate": gates(shape, dtype)} if op == "linear" else {})
    begins = [0, *itertools.accumulate(lengths[:-1])]
    found, carried = {}, torch.tensor(-0.5, device=device)
    for begin, length in sorted(zip(begins, lengths, strict=True), reverse=reverse):
        there = {name: each.narrow(1, begin, length).contiguous().to(device) for name, each in operands.items()}
        *found[begin], carried = call(op=op, dim=1, initial=carried, final=True, reverse=reverse, **there)
    y, *places = (torch.cat(parts, 1).cpu() for parts in zip(*(found[begin] for begin in begins), strict=True))
    wanted = scan(op=op, dim=1, initial=-0.5, reverse=reverse, dtype=torch.float64, **operands)
    assert carried.dtype == torch.float32
    rounding = 0.5001 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y.double(), wanted.outputs[0], rtol=rounding, atol=1e-3)
    torch.testing.assert_close(carried.cpu().double(), wanted.final, rtol=1e-4, atol=1e-2)
    for indices in places:
        met = indices >= 0
        assert met.any() and not met.all()
        first = torch.repeat_interleave(torch.tensor(begins), torch.tensor(lengths))[:, None]
        assert torch.equal((indices + first)[met], wanted.outputs[1][met])


# ---- what a scan is computed in: wider dtypes, and sums and products that keep what rounding loses


def spread(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Great and small numbers that cancel: a plain sum loses most of the small ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x * 2.0 ** torch.randint(-12, 13, shape, generator=generator)).float()


@pytest.mark.parametrize(("number", "name", "reverse"), [(number, *cell) for number, cell in enumerate(OTHERS)])
def test_a_sum_keeps_to_its_bound(number: int, name: str, reverse: bool, device: str) -> None:
    """In every strategy and in the fallback, rounded once; dtypes, masks and directions alternate."""
    case = CASES[name]
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
def test_special_values_in_wider_dtypes(items: tuple[float, ...], accumulate: torch.dtype | str, device: str) -> None:
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


# ---- recurrences and logcumsumexp on any numbers: what is computed item by item or by torch, in every strategy

FINITE_LIMIT = torch.finfo(torch.float32).max


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
COMBINED = [
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


@pytest.mark.parametrize(("name", "reverse"), HALF)
def test_special_gates_and_items(name: str, reverse: bool, device: str) -> None:
    """NaN, infinities, zeros and denormals: no result is finite that the recurrence does not give.

    Behind an infinity a result is infinite or NaN, not always which: a product of gates that underflows makes it NaN,
    and a range of items with an infinite gate is no longer a gate and a value.
    """
    case = CASES[name]
    length, lines = case.shape[case.dim], math.prod(case.shape) // case.shape[case.dim]
    batches = []  # of as many rows of COMBINED as there are lines
    for first in range(0, len(COMBINED), lines):
        rows = [COMBINED[(first + line) % len(COMBINED)] for line in range(lines)]
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


@pytest.mark.parametrize("name", ["lanes", "one_tile", "persistent", "column_loop", "panels_odd"])
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
