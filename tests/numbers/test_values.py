"""NaN, infinities, masks at the extremes, rounding: what a scan does to values."""

from __future__ import annotations

import math

import pytest
import torch

import scanops
from scanops.codegen.lines import any_length
from scanops.requests.request import make_request
from tests.numbers.matrix import MULTIPROCESSORS, ROUTES
from tests.numbers.oracle import CASES, Case


def edges(case: Case) -> list[int]:
    """Positions around lanes, warps and tiles of the case's line."""
    length = case.shape[case.dim]
    marks = (0, 1, 3, 4, 31, 32, 33, 127, 128, 511, 512, 2047, 2048, 16383, 16384, 65536, length - 2, length - 1)
    return sorted({mark for mark in marks if 0 <= mark < length})


@pytest.mark.parametrize(
    ("name", "reverse", "special"),
    [(name, number % 2 > 0, special) for number, name in enumerate(CASES) for special in (math.nan, math.inf)],
)
def test_a_special_value_reaches_exactly_what_follows(name: str, reverse: bool, special: float, device: str) -> None:
    """A line for each edge, so that a launch tries many and lines with other edges, or none, must stay clean."""
    case = CASES[name]
    length = case.shape[case.dim]
    x = torch.ones(case.shape, device=device)
    lines = x.numel() // length
    left = edges(case)
    while left:
        hit = x.clone()
        at = torch.full((lines,), 2 * length, device=device)  # beyond the end: a line without
        for line, edge in enumerate(left[:lines]):
            _line(hit, case, line)[edge] = special
            at[line] = edge
        left = left[lines:]
        y = scanops.cumsum(hit, case.dim, reverse=reverse).movedim(case.dim, -1).reshape(lines, length)
        position = torch.arange(length, device=device)
        reached = (position <= at[:, None]) & (at[:, None] < length) if reverse else position >= at[:, None]
        assert y[~reached].isfinite().all()
        assert (y[reached].isnan() if math.isnan(special) else y[reached].isinf()).all()


def _line(x: torch.Tensor, case: Case, number: int) -> torch.Tensor:
    """A view of one line."""
    places = [size for d, size in enumerate(case.shape) if d != case.dim]
    view = x.movedim(case.dim, -1)
    for size in reversed(places):
        view = view.select(view.ndim - 2, number % size)
        number //= size
    return view


@pytest.mark.parametrize(("name", "reverse"), [(name, number % 2 > 0) for number, name in enumerate(CASES)])
def test_exclusive_never_reads_the_last_item(name: str, reverse: bool, device: str) -> None:
    case = CASES[name]
    x = torch.ones(case.shape, device=device)
    x.select(case.dim, 0 if reverse else -1).fill_(math.nan)
    y = scanops.cumsum(x, case.dim, reverse=reverse, exclusive=True)
    assert y.isfinite().all()
    assert (y.select(case.dim, -1 if reverse else 0) == 0).all()


@pytest.mark.parametrize(("name", "product"), [(name, number % 2 > 0) for number, name in enumerate(CASES)])
def test_a_masked_element_is_the_identity_whatever_its_value(name: str, product: bool, device: str) -> None:
    case = CASES[name]
    x = torch.full(case.shape, math.nan, device=device)
    nothing = torch.zeros(case.shape, dtype=torch.bool, device=device)
    scan = scanops.cumprod if product else scanops.cumsum
    assert (scan(x, case.dim, mask=nothing, exclusive=product) == int(product)).all()


def test_a_numeric_mask_multiplies(device: str) -> None:
    x = torch.tensor([1.0, math.nan, math.inf, 2.0], device=device)
    y = scanops.cumsum(x, 0, mask=torch.tensor([1.0, 0.0, 0.0, 1.0], device=device))
    assert y[0] == 1 and y[1:].isnan().all()  # NaN * 0 and inf * 0 are NaN, as in x * mask


@pytest.mark.parametrize(
    ("name", "dtype"), list(zip(CASES, 6 * [torch.float32, torch.float16, torch.bfloat16], strict=True)), ids=str
)
def test_rounding_stays_within_the_bound_of_tree_summation(name: str, dtype: torch.dtype, device: str) -> None:
    case = CASES[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(case.shape, generator=generator).to(dtype)
    y = scanops.cumsum(x.to(device), case.dim).cpu().double()
    exact = torch.cumsum(x.double(), case.dim)
    magnitude = torch.cumsum(x.double().abs(), case.dim)
    depth = 8 + 2 * math.log2(case.shape[case.dim])  # serial run in a thread, then trees over lanes, warps, tiles
    bound = depth * 2.0**-24 * magnitude + torch.finfo(dtype).eps * exact.abs() + 1e-6
    assert ((y - exact).abs() <= bound).all()


@pytest.mark.parametrize("name", ["split", "wave", "column_loop"])
def test_the_same_bits_every_run_and_in_any_company(name: str, device: str) -> None:
    case = CASES[name]
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(4)).to(device)
    first = scanops.cumsum(x, case.dim)
    for _ in range(3 if device == "cpu" else 50):
        assert torch.equal(scanops.cumsum(x, case.dim), first)


@pytest.mark.parametrize("name", ROUTES)
def test_the_order_of_threads_does_not_matter(name: str) -> None:
    """Bit for bit, in every strategy, fixed and runtime lengths."""
    route = ROUTES[name]
    x = torch.randn(route.shape, generator=torch.Generator().manual_seed(5))
    if route.turned:
        x = x.permute(route.turned).contiguous().permute([route.turned.index(d) for d in range(x.ndim)])
    spec = make_request(x, "sum", route.dim).spec(x, MULTIPROCESSORS)
    kernel = scanops.compile(any_length(spec) if route.generic else spec, "cpu")
    results = []
    for seed in range(3):
        with scanops.emulate(seed=seed):
            results.append(kernel(x, route.dim))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("out", [torch.int32, torch.float64, torch.float16], ids=str)
def test_dtype_converts_before_it_scans(out: torch.dtype, device: str) -> None:
    x = torch.tensor([1.9, 1.9, -1.9, 0.5])
    y = scanops.cumsum(x.to(device), 0, dtype=out)
    assert torch.equal(y.cpu(), torch.cumsum(x, 0, dtype=out))
