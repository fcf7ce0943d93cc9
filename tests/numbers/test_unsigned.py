"""uint16, uint32 and uint64 of any bits: compared as unsigned and wrapped, by kernels and by the fallback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

import scanops
from tests.numbers.oracle import hold, selection

DTYPES = pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
OPS = ("sum", "prod", "max", "min", "bitwise_and", "bitwise_or", "bitwise_xor", "cummax", "cummin")


@pytest.fixture(params=["kernels", "fallback"], autouse=True)
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    """Emulated kernels, and PyTorch's own operators."""
    with scanops.emulate() if request.param == "kernels" else nullcontext():
        yield


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits, those of the greatest and the least value among them."""
    x = torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(seed))
    x.flatten()[:2] = torch.tensor([-1, 0])
    return x.view(dtype) if dtype == torch.uint64 else x.to(dtype)


@DTYPES
@pytest.mark.parametrize("op", OPS)
def test_every_operator(op: str, dtype: torch.dtype) -> None:
    """Operators with and without masks by turns; strategies and directions are those of the matrix."""
    turn = OPS.index(op) + dtype.itemsize.bit_length()
    mask = selection((3, 300)) if turn % 2 else None
    hold(drawn((3, 300), dtype), op, 1, mask=mask, exclusive=turn % 3 > 0, reverse=turn % 3 == 1, dtype=dtype)


@DTYPES
def test_results_are_int64_by_default(dtype: torch.dtype) -> None:
    x = drawn((3, 300), dtype)
    for ours, theirs in ((scanops.cumsum, torch.cumsum), (scanops.cumprod, torch.cumprod)):
        assert torch.equal(ours(x, 1), theirs(x, 1)) and ours(x, 1).dtype == torch.int64


@DTYPES
def test_weights(dtype: torch.dtype) -> None:
    hold(drawn((2, 70), dtype), "sum", 1, mask=drawn((2, 70), dtype, 1), dtype=dtype)
    halves = scanops.cumsum(torch.tensor([1, 2, 3]).to(dtype), 0, mask=torch.tensor([0.5, 0.5, 0.5]))
    assert halves.dtype == torch.float32 and halves.tolist() == [0.5, 1.5, 3]
