"""A stream scanned in chunks, each going on from what the one before it returned: the scan in one piece."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.requests.request import make_request
from tests.numbers.matrix import MULTIPROCESSORS
from tests.numbers.oracle import UNSIGNED, gates, scan, selection, values

# (lines before the stream, lines beside each other, how long chunks may be): chunks of each go to that strategy.
STREAMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "short rows": ((9,), (), (1, 3, 31, 33)),
    "rows": ((3,), (), (1, 64, 601, 2052)),
    "long rows": ((7,), (), (5, 4097, 33001)),
    "few rows": ((2,), (), (9000, 17001)),
    "columns": ((2,), (7,), (1, 30, 257)),
    "panels": ((1,), (32,), (1200, 1301)),
}
STRATEGIES = {"warp", "staged", "block", "wave", "split", "columns", "panels"}


def cut(length: int, lengths: tuple[int, ...], seed: int) -> list[tuple[int, int]]:
    """(begin, end) of chunks of these lengths, in turn and then as they are drawn."""
    draw, ends = random.Random(seed), [0]
    while ends[-1] < length:
        turn = len(ends) - 1
        size = lengths[turn] if turn < len(lengths) else draw.choice(lengths)
        ends.append(min(length, ends[-1] + size))
    return list(itertools.pairwise(ends))


def call(op: str, x: torch.Tensor, dim: int, gate: torch.Tensor | None, **options: Any) -> tuple[torch.Tensor, ...]:
    """Every output, then what goes on."""
    if op in ("cummax", "cummin"):
        found, final = getattr(scanops, op)(x, dim, return_final=True, **options)
        return (*found, final)
    if gate is not None:
        return scanops.linear_scan(gate, x, dim, return_final=True, **options)
    return scanops.scan(x, op, dim, return_final=True, **options)


class Stream:
    """Operands of a whole stream, and the scan of its chunks."""

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
        for edge, _ in cut(self.length, self.lengths, 0)[1::2] if segmented else []:
            assert self.starts is not None
            self.starts.narrow(self.dim, edge, 1).fill_(True)  # segments that begin with a chunk

    def scanned(
        self, device: str, seed: int, *, reverse: bool, exclusive: bool, first: Any
    ) -> tuple[torch.Tensor, ...]:
        """Chunk after chunk, in reverse from the last one on."""
        found: list[tuple[torch.Tensor, ...]] = []
        carried = first
        chunks = cut(self.length, self.lengths, seed)
        for begin, end in reversed(chunks) if reverse else chunks:

            def part(tensor: torch.Tensor | None, begin: int = begin, end: int = end) -> torch.Tensor | None:
                return None if tensor is None else tensor.narrow(self.dim, begin, end - begin).contiguous().to(device)

            x = part(self.x)
            assert x is not None
            *results, carried = call(
                self.op, x, self.dim, part(self.gate), mask=part(self.mask), segment_starts=part(self.starts),
                initial=carried, reverse=reverse, exclusive=exclusive,
            )  # fmt: skip
            found.append(tuple(result.cpu() for result in results))
        parts = zip(*(reversed(found) if reverse else found), strict=True)
        return (*(torch.cat(part, self.dim) for part in parts), carried.cpu())


# (stream, operator, dtype, reverse): directions take turns.
EXACT = [
    (name, op, dtype, (number + turn) % 2 == 0)
    for number, name in enumerate(STREAMS)
    for turn, (op, dtype) in enumerate(
        (
            ("sum", (torch.int32, torch.int64, torch.uint8)[number % 3]),
            ("linear", (torch.int64, torch.int32, torch.float32)[number % 3]),
            (("max", "bitwise_xor", "affine", "prod")[number % 4], (torch.int64, torch.int16)[number % 2]),
        )
    )
]


@pytest.mark.parametrize(("name", "op", "dtype", "reverse"), EXACT)
def test_whole_numbers_are_exact(name: str, op: str, dtype: torch.dtype, reverse: bool, device: str) -> None:
    """With masks, by flags that cut within chunks and at their edges, from something."""
    stream = Stream(name, op, dtype, segmented=True, whole=True)
    stream.x = stream.x.abs() if dtype in UNSIGNED else stream.x
    first = 3 if op != "prod" else -1
    exclusive = reverse == (list(STREAMS).index(name) % 2 == 0)
    *found, final = stream.scanned(device, 0, reverse=reverse, exclusive=exclusive, first=first)
    wanted = scan(
        stream.x, op, stream.dim, mask=stream.mask, gate=stream.gate, starts=stream.starts, initial=first,
        reverse=reverse, exclusive=exclusive, dtype=found[0].dtype,
    )  # fmt: skip
    assert torch.equal(found[0], wanted.outputs[0])
    assert torch.equal(final, wanted.final)


@pytest.mark.parametrize(("name", "reverse"), [(name, number % 2 > 0) for number, name in enumerate(STREAMS)])
def test_greatest_values_are_exact(name: str, reverse: bool, device: str) -> None:
    """And an index is that of the item in its chunk, -1 where a chunk before it has it."""
    stream = Stream(name, "cummax", torch.float32, segmented=False, whole=False)
    values_, indices, final = stream.scanned(device, 0, reverse=reverse, exclusive=False, first=-0.5)
    wanted = scan(stream.x, "cummax", stream.dim, mask=stream.mask, initial=-0.5, reverse=reverse, dtype=torch.float32)
    assert torch.equal(values_, wanted.outputs[0]) and torch.equal(final, wanted.final)
    begins = torch.empty(stream.length, dtype=torch.int64)
    for begin, end in cut(stream.length, stream.lengths, 0):
        begins[begin:end] = begin
    shape = [-1 if d == stream.dim else 1 for d in range(stream.x.ndim)]
    met = indices >= 0
    places = (indices + begins.reshape(shape)).clamp(min=0)
    assert met.any() and not met.all()
    assert torch.equal(stream.x.gather(stream.dim, places)[met], values_[met])
    assert torch.equal(places[met], wanted.outputs[1][met])


CLOSE = [
    (name, op, dtype, (number + turn) % 2 == 1)
    for number, name in enumerate(STREAMS)
    for turn, (op, dtype) in enumerate(
        (
            ("logcumsumexp", (torch.float32, torch.float16)[number % 2]),
            ("sum", (torch.float16, torch.bfloat16, torch.float32)[number % 3]),
            ("linear", (torch.float32, torch.float16, torch.bfloat16)[number % 3]),
        )
    )
    if turn == 0 or number % 2 == turn - 1
]


@pytest.mark.parametrize(("name", "op", "dtype", "reverse"), CLOSE)
def test_floats_are_close(name: str, op: str, dtype: torch.dtype, reverse: bool, device: str) -> None:
    """To float64, and halves as close as in one piece: what is carried is float32."""
    stream = Stream(name, op, dtype, segmented=False, whole=False)
    found, final = stream.scanned(device, 1, reverse=reverse, exclusive=False, first=0.25)
    assert final.dtype == torch.float32
    exact = scan(
        stream.x, op, stream.dim, mask=stream.mask, gate=stream.gate, initial=0.25, reverse=reverse,
        dtype=torch.float64,
    )  # fmt: skip
    one, _ = call(
        op, stream.x.to(device), stream.dim, None if stream.gate is None else stream.gate.to(device),
        mask=stream.mask.to(device), initial=0.25, reverse=reverse,
    )  # fmt: skip
    rounded = exact.outputs[0].to(dtype).double()
    rounding = (rounded - exact.outputs[0]).abs().max()
    within = 2 * (one.cpu().double() - exact.outputs[0]).abs().max() + rounding + 1e-4
    assert (found.double() - exact.outputs[0]).abs().max() <= within
    torch.testing.assert_close(final, exact.final.float(), rtol=1e-4, atol=1e-2)


def test_streams_reach_many_strategies() -> None:
    found = set()
    for before, beside, lengths in STREAMS.values():
        for length in lengths:
            x = torch.empty((*before, length, *beside))
            request = make_request(x, "sum", len(before), initial=0, final=True)
            found.add(make_plan(request.spec(x, MULTIPROCESSORS)).strategy)
    assert found == STRATEGIES


def test_empty_chunks_pass_on_what_came_before(device: str) -> None:
    x = values("sum", (3, 8), torch.int64).to(device)
    y, carried = scanops.cumsum(x, 1, initial=5, return_final=True)
    nothing, after = scanops.cumsum(x[:, :0], 1, initial=carried, return_final=True)
    assert nothing.shape == (3, 0) and torch.equal(after, carried) and torch.equal(y[:, -1], carried)
