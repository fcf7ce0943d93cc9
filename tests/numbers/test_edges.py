"""Empty, 0-d and single-item tensors with segments and carries; carried values in any layout."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import scanops
from tests.numbers.oracle import call, gates, hold, scan, selection, values

FLAGS = list(itertools.product((False, True), (False, True)))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "cummax", "logical_or", "logcumsumexp", "linear"])
@pytest.mark.parametrize("initial", [None, 1])
@pytest.mark.parametrize("shape", [(3, 0), (0,), (2, 0, 5), (0, 4)])
def test_empty_lines(shape: tuple[int, ...], initial: int | None, op: str, device: str) -> None:
    """What goes on from lines of no items is what came in, or what nothing amounts to."""
    dim = min(1, len(shape) - 1)
    x = torch.empty(shape, device=device)
    first = True if op == "logical_or" and initial else initial
    *results, final = call(x, op, dim, gate=x if op == "linear" else None, initial=first, final=True)
    assert [y.dtype for y in results[1:]] == [torch.int64] * (op == "cummax")
    nothing = {"prod": 1, "max": -torch.inf, "cummax": -torch.inf, "logcumsumexp": -torch.inf}.get(op, 0)
    lines = shape[:dim] + shape[dim + 1 :]
    assert all(y.shape == shape for y in results) and final.shape == lines
    assert torch.equal(final.cpu(), torch.full(lines, nothing if initial is None else initial).to(final.dtype))


def test_empty_lines_by_segments(device: str) -> None:
    x = torch.empty(2, 0, device=device)
    for options in (
        {"offsets": torch.tensor([0, 0], device=device)},
        {"offsets": torch.tensor([0, 0, 0], device=device)},
        {"segment_starts": torch.empty(2, 0, dtype=torch.bool, device=device)},
    ):
        y, final = scanops.cumsum(x, 1, initial=3.0, return_final=True, **options)
        assert y.shape == (2, 0) and final.tolist() == [3, 3]


def test_zero_dimensional(device: str) -> None:
    x = torch.tensor(7.0, device=device)
    flag = torch.tensor(True, device=device)
    offsets = torch.tensor([0, 1], device=device)

    def found(**options: Any) -> tuple[float, float]:
        y, final = scanops.cumsum(x, 0, initial=2, return_final=True, **options)
        assert y.shape == final.shape == ()
        return y.item(), final.item()

    assert found() == (9, 9) and found(exclusive=True) == (2, 9)
    assert found(mask=torch.tensor(False, device=device)) == (2, 2) and scanops.cumsum(x, -1).shape == ()
    assert found(segment_starts=flag) == (7, 7) and found(segment_starts=flag, exclusive=True) == (0, 7)
    assert found(segment_starts=flag, reverse=True) == (9, 0)
    assert found(offsets=offsets) == (9, 9) and found(offsets=offsets, reverse=True, exclusive=True) == (2, 9)
    assert found(offsets=torch.tensor([0, 0, 1], device=device)) == (7, 7)
    h, final = scanops.linear_scan(torch.tensor(3.0, device=device), x, 0, initial=2, return_final=True)
    assert (h.item(), final.item()) == (13, 13)
    (value, index), last = scanops.cummax(x, 0, initial=8, return_final=True)
    assert (value.item(), index.item(), last.item()) == (8, -1, 8)


@pytest.mark.parametrize(
    ("shape", "dim"), [((1,), 0), ((1, 1), 1), ((5, 1), 1), ((1, 5), 1), ((5, 1, 3), 1), ((1, 6, 1), 1), ((1, 1, 4), 0)]
)
def test_dimensions_of_one(shape: tuple[int, ...], dim: int, device: str) -> None:
    x = values("affine", shape, torch.float32)
    lines = shape[:dim] + shape[dim + 1 :]
    for number, (reverse, exclusive) in enumerate(FLAGS):
        starts = torch.full((1,) * len(shape), number % 2 == 0)
        initial = values("sum", lines, torch.float32) if number < 2 else torch.tensor([2.0]).reshape((1,) * len(lines))
        hold(x, "affine", dim, device, final=True, starts=starts, initial=initial, reverse=reverse, exclusive=exclusive)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_carried_values_lie_anywhere(dim: int, device: str) -> None:
    """One for each line, however strided, expanded or narrow; the final ones are contiguous."""
    x = values("sum", (4, 33, 5), torch.float32)
    lines = tuple(size for d, size in enumerate(x.shape) if d != dim)
    drawn = values("sum", lines[::-1], torch.float32)
    for initial in (drawn.t(), drawn.t()[:1].expand(lines), drawn.t().to(torch.int8), drawn.t()[:, :1], drawn[0, 0]):
        hold(x, "sum", dim, device, final=True, initial=initial)


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

# (shape, lengths of chunks along dimension 1, operator, dtype, reverse): rows, few rows, columns and panels
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
