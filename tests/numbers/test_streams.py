"""A stream scanned in chunks, each starting from the carry-out of the one before it, equals one scan of the whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from scanops.codegen.operators import OPERATORS
from tests.numbers.oracle import call, gates, scan, selection, values

# (outer sizes, inner sizes, lengths of the chunks); the last chunk is as long as the longest.
STREAMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((3,), (), (1, 31, 601, 2052)),
    "few rows": ((2,), (), (9000, 8193)),
    "columns": ((2,), (7,), (1, 30, 257)),
    "panels": ((1,), (32,), (1200, 1301)),
}
# (stream, operator, dtype, reverse): dtypes and directions alternate.
CHUNKED = [
    ("rows", "affine", torch.int16, False),
    ("few rows", "linear", torch.float32, False),
    ("columns", "max", torch.int64, True),
    ("panels", "linear", torch.int32, False),
    ("rows", "cummax", torch.float32, True),
    ("panels", "cummax", torch.float32, False),
    ("rows", "sum", torch.bfloat16, True),
    ("columns", "logcumsumexp", torch.float32, False),
]


def chunks(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (begin, end) of the chunks: each length in turn, and the longest again, whose kernel is there by then."""
    return list(itertools.pairwise(itertools.accumulate((0, *lengths, max(lengths)))))


@pytest.mark.parametrize(("name", "op", "dtype", "reverse"), CHUNKED)
def test_chunks_equal_the_whole(name: str, op: str, dtype: torch.dtype, reverse: bool, device: str) -> None:
    """With masks, a carry-in, and head flags within chunks and at their edges.

    Sums of halves lose nothing to rounding between chunks: the carry is float32, and results are rounded once. An index
    counts from the beginning of its chunk, and is -1 where the extremum lies in an earlier chunk.
    """
    before, beside, lengths = STREAMS[name]
    dim, cuts = len(before), chunks(lengths)
    shape = (*before, cuts[-1][1], *beside)
    rounded = dtype == torch.bfloat16 or op == "logcumsumexp"
    indexed = bool(OPERATORS[op].indices)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = x if rounded or indexed else values(op, shape, dtype)
    operands = {"mask": selection(shape)}
    if op == "linear":
        operands["gate"] = gates(shape, dtype)
    if not rounded and not indexed:
        operands["starts"] = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.002
        for edge, _ in cuts[1::2]:
            operands["starts"].narrow(dim, edge, 1).fill_(True)  # segments that begin with a chunk
    first = -0.5 if indexed else 3
    flags: dict[str, Any] = {"reverse": reverse, "exclusive": op == "affine"}
    found: list[tuple[torch.Tensor, ...]] = []
    carried: Any = first
    for begin, end in reversed(cuts) if reverse else cuts:
        there = {
            key.replace("starts", "segment_starts"): each.narrow(dim, begin, end - begin).contiguous().to(device)
            for key, each in {"x": x, **operands}.items()
        }
        *results, carried = call(there.pop("x"), op, dim, initial=carried, final=True, **flags, **there)
        found.append(tuple(result.cpu() for result in results))
    y, *places = (torch.cat(part, dim) for part in zip(*(reversed(found) if reverse else found), strict=True))
    out = torch.float64 if rounded else y.dtype
    wanted = scan(
        x, op, dim, **operands, initial=first, **flags, dtype=out, carry_dtype=torch.float64 if rounded else None
    )
    if rounded:
        assert carried.dtype == torch.float32
        rounding = 0.5001 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(y.double(), wanted.outputs[0], rtol=rounding, atol=1e-3)
        torch.testing.assert_close(carried.cpu(), wanted.final.float(), rtol=1e-4, atol=1e-2)
        return
    assert torch.equal(y, wanted.outputs[0]) and torch.equal(carried.cpu(), wanted.final)
    for indices in places:
        begins = torch.cat([torch.full((end - begin,), begin) for begin, end in cuts])
        met = indices >= 0
        assert met.any() and not met.all()
        whole = indices + begins.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        assert torch.equal(whole[met], wanted.outputs[1][met])
