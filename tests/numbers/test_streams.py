"""A stream scanned in chunks, each starting from the carry-out of the one before it, equals one scan of the whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.requests.request import make_request
from tests.numbers.matrix import MULTIPROCESSORS
from tests.numbers.oracle import UNSIGNED, call, gates, scan, selection, values

# (outer sizes, inner sizes, lengths of the chunks); the last chunk is as long as the longest.
STREAMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "short rows": ((9,), (), (1, 3, 31, 33)),
    "rows": ((3,), (), (1, 64, 601, 2052)),
    "long rows": ((5,), (), (5, 33001)),
    "few rows": ((2,), (), (9000, 8193)),
    "columns": ((2,), (7,), (1, 30, 257)),
    "panels": ((1,), (32,), (1200, 1301)),
}
STRATEGIES = {"warp", "staged", "block", "wave", "split", "columns", "panels"}


def cut(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (begin, end) of the chunks: each length in turn, and the longest again, whose kernel is there by then."""
    return list(itertools.pairwise(itertools.accumulate((0, *lengths, max(lengths)))))


class Stream:
    """The operands of a whole stream, and the scan of its chunks."""

    def __init__(self, name: str, op: str, dtype: torch.dtype, *, segmented: bool, whole: bool) -> None:
        before, beside, self.lengths = STREAMS[name]
        self.op, self.dim = op, len(before)
        self.length = sum(self.lengths) + max(self.lengths)
        shape = (*before, self.length, *beside)
        seed = len(op) + len(name)
        self.x = (
            values(op, shape, dtype, seed=seed)
            if whole
            else torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        )
        self.x = self.x.abs() if op == "logcumsumexp" else self.x
        self.gate = gates(shape, dtype) if op == "linear" and whole else None
        if op == "linear" and not whole:
            self.gate = torch.rand(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        self.mask = selection(shape)
        self.starts = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.002 if segmented else None
        for edge, _ in cut(self.lengths)[1::2] if segmented else []:
            assert self.starts is not None
            self.starts.narrow(self.dim, edge, 1).fill_(True)  # segments that begin with a chunk

    def scanned(self, device: str, *, reverse: bool, exclusive: bool, first: Any) -> tuple[torch.Tensor, ...]:
        """Scan chunk after chunk, in reverse from the last one on."""
        found: list[tuple[torch.Tensor, ...]] = []
        carried = first
        chunks = cut(self.lengths)
        for begin, end in reversed(chunks) if reverse else chunks:

            def part(tensor: torch.Tensor | None, begin: int = begin, end: int = end) -> torch.Tensor | None:
                return None if tensor is None else tensor.narrow(self.dim, begin, end - begin).contiguous().to(device)

            x = part(self.x)
            assert x is not None
            *results, carried = call(
                x, self.op, self.dim, gate=part(self.gate), mask=part(self.mask), segment_starts=part(self.starts),
                initial=carried, reverse=reverse, exclusive=exclusive, final=True,
            )  # fmt: skip
            found.append(tuple(result.cpu() for result in results))
        parts = zip(*(reversed(found) if reverse else found), strict=True)
        return (*(torch.cat(part, self.dim) for part in parts), carried.cpu())


# (stream, operator, dtype, reverse): operators, dtypes and directions alternate.
EXACT = [
    ("short rows", "linear", torch.int64, True),
    ("rows", "affine", torch.int16, False),
    ("long rows", "sum", torch.uint8, True),
    ("few rows", "linear", torch.float32, False),
    ("columns", "max", torch.int64, True),
    ("panels", "linear", torch.int32, False),
    ("columns", "linear", torch.int32, False),
]


@pytest.mark.parametrize(("name", "op", "dtype", "reverse"), EXACT)
def test_whole_numbers_are_exact(name: str, op: str, dtype: torch.dtype, reverse: bool, device: str) -> None:
    """With masks, a carry-in, and head flags within chunks and at their edges."""
    stream = Stream(name, op, dtype, segmented=True, whole=True)
    stream.x = stream.x.abs() if dtype in UNSIGNED else stream.x
    first = 3 if op != "prod" else -1
    exclusive = reverse == (list(STREAMS).index(name) % 2 == 0)
    *found, final = stream.scanned(device, reverse=reverse, exclusive=exclusive, first=first)
    wanted = scan(
        stream.x, op, stream.dim, mask=stream.mask, gate=stream.gate, starts=stream.starts, initial=first,
        reverse=reverse, exclusive=exclusive, dtype=found[0].dtype,
    )  # fmt: skip
    assert torch.equal(found[0], wanted.outputs[0])
    assert torch.equal(final, wanted.final)


@pytest.mark.parametrize(("name", "reverse"), [("rows", True), ("few rows", False), ("panels", True)])
def test_greatest_values_are_exact(name: str, reverse: bool, device: str) -> None:
    """An index counts from the beginning of its chunk, and is -1 where the maximum lies in an earlier chunk."""
    stream = Stream(name, "cummax", torch.float32, segmented=False, whole=False)
    values_, indices, final = stream.scanned(device, reverse=reverse, exclusive=False, first=-0.5)
    wanted = scan(stream.x, "cummax", stream.dim, mask=stream.mask, initial=-0.5, reverse=reverse, dtype=torch.float32)
    assert torch.equal(values_, wanted.outputs[0]) and torch.equal(final, wanted.final)
    begins = torch.empty(stream.length, dtype=torch.int64)
    for begin, end in cut(stream.lengths):
        begins[begin:end] = begin
    shape = [-1 if d == stream.dim else 1 for d in range(stream.x.ndim)]
    met = indices >= 0
    places = (indices + begins.reshape(shape)).clamp(min=0)
    assert met.any() and not met.all()
    assert torch.equal(stream.x.gather(stream.dim, places)[met], values_[met])
    assert torch.equal(places[met], wanted.outputs[1][met])


CLOSE = [
    ("short rows", "logcumsumexp", torch.float32, False),
    ("rows", "sum", torch.bfloat16, True),
    ("few rows", "linear", torch.float16, True),
    ("panels", "sum", torch.bfloat16, False),
]


@pytest.mark.parametrize(("name", "op", "dtype", "reverse"), CLOSE)
def test_floats_are_close(name: str, op: str, dtype: torch.dtype, reverse: bool, device: str) -> None:
    """Chunks of halves lose nothing to rounding between them: the carry is float32, and results are rounded once."""
    stream = Stream(name, op, dtype, segmented=False, whole=False)
    found, final = stream.scanned(device, reverse=reverse, exclusive=False, first=0.25)
    assert final.dtype == torch.float32
    exact = scan(
        stream.x, op, stream.dim, mask=stream.mask, gate=stream.gate, initial=0.25, reverse=reverse,
        dtype=torch.float64,
    )  # fmt: skip
    rounding = 0.5001 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    torch.testing.assert_close(found.double(), exact.outputs[0], rtol=rounding, atol=1e-3)
    torch.testing.assert_close(final, exact.final.float(), rtol=1e-4, atol=1e-2)


def test_streams_reach_many_strategies() -> None:
    found = set()
    for before, beside, lengths in STREAMS.values():
        for length in lengths:
            x = torch.empty((*before, length, *beside))
            request = make_request(x, "sum", len(before), initial=0, final=True)
            found.add(make_plan(request.spec(x, MULTIPROCESSORS)).strategy)
    assert found == STRATEGIES


def test_empty_chunks_pass_on_the_carry(device: str) -> None:
    x = values("sum", (3, 8), torch.int64).to(device)
    y, carried = scanops.cumsum(x, 1, initial=5, return_final=True)
    nothing, after = scanops.cumsum(x[:, :0], 1, initial=carried, return_final=True)
    assert nothing.shape == (3, 0) and torch.equal(after, carried) and torch.equal(y[:, -1], carried)
