"""Edges of segments and of chunks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import scanops
from tests.numbers.oracle import call, gates, scan, selection


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
