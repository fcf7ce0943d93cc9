"""uint16, uint32 and uint64: compared as unsigned, wrapped as integers are, by kernels and by torch's operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.operators import BUILT_IN
from tests.numbers.oracle import CASES

BITS = {torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}
DTYPES = pytest.mark.parametrize("dtype", BITS, ids=str)


@pytest.fixture(params=["kernels", "composed"])
def where(request: pytest.FixtureRequest) -> Any:
    """Emulated kernels, and torch's operations."""
    if request.param == "composed":
        yield
        return
    with scanops.emulate():
        yield


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits, those of the greatest and the least among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
    x.flatten()[:2] = torch.tensor([-1, 0])
    return x.view(dtype) if dtype == torch.uint64 else x.to(dtype)


def lists(x: torch.Tensor) -> list[list[int]]:
    return [[int(item) for item in line] for line in x.tolist()]


STEPS: dict[str, tuple[Callable[[int, int], int], Callable[[int], int]]] = {
    "sum": (lambda h, x: h + x, lambda bits: 0),
    "prod": (lambda h, x: h * x, lambda bits: 1),
    "max": (max, lambda bits: 0),
    "min": (min, lambda bits: 2**bits - 1),
    "bitwise_and": (lambda h, x: h & x, lambda bits: 2**bits - 1),
    "bitwise_or": (lambda h, x: h | x, lambda bits: 0),
    "bitwise_xor": (lambda h, x: h ^ x, lambda bits: 0),
}


@DTYPES
@pytest.mark.parametrize("op", STEPS)
@pytest.mark.parametrize("masked", [False, True])
def test_every_operator(op: str, dtype: torch.dtype, masked: bool, where: None) -> None:
    step, start = STEPS[op]
    x = drawn((3, 300), dtype)
    keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5 if masked else torch.ones(3, 300) > 0
    y = scanops.scan(x, op, 1, mask=keep if masked else None, exclusive=True, dtype=dtype)
    assert y.dtype == dtype
    for line, kept, found in zip(lists(x), keep.tolist(), lists(y), strict=True):
        begin = start(BITS[dtype])
        walk = itertools.accumulate(
            zip(line, kept, strict=True), lambda h, k: step(h, k[0]) if k[1] else h, initial=begin
        )
        assert found == [h % 2 ** BITS[dtype] for h in list(walk)[:-1]]


@DTYPES
@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_sums_and_products_are_torchs(scan: Callable[..., torch.Tensor], dtype: torch.dtype, where: None) -> None:
    x = drawn((3, 300), dtype)
    y = getattr(scanops, scan.__name__)(x, 1)
    wanted = scan(x, 1)
    assert y.dtype == wanted.dtype == torch.int64 and torch.equal(y, wanted)


@DTYPES
@pytest.mark.parametrize("op", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
def test_extremes_with_indices(op: str, dtype: torch.dtype, reverse: bool, where: None) -> None:
    x = drawn((3, 300), dtype)
    values, indices = getattr(scanops, op)(x, 1, reverse=reverse)
    assert values.dtype == dtype and indices.dtype == torch.int64
    row = BUILT_IN[op]
    for line, found, places in zip(lists(x), lists(values), indices.tolist(), strict=True):
        items = list(enumerate(line))[:: -1 if reverse else 1]
        start = (0 if op == "cummax" else 2 ** BITS[dtype] - 1, -1)
        walk = list(itertools.accumulate(items, lambda h, item: row.step(h, item[1], item[0]), initial=start))[1:]
        walk = walk[:: -1 if reverse else 1]
        assert found == [h[0] for h in walk] and places == [h[1] for h in walk]


@pytest.mark.parametrize("name", CASES)
def test_every_strategy(name: str, device: str) -> None:
    case, dtype = CASES[name], list(BITS)[list(CASES).index(name) % 3]
    x = drawn(case.shape, dtype)
    y = scanops.scan(x.to(device), "max", case.dim).cpu()
    signed = x.view(torch.int64) ^ -(2**63) if dtype == torch.uint64 else x.to(torch.int64)
    wanted = torch.cummax(signed, case.dim).values
    assert torch.equal(y, (wanted ^ -(2**63)).view(dtype) if dtype == torch.uint64 else wanted.to(dtype))


@DTYPES
def test_weights(dtype: torch.dtype, where: None) -> None:
    x, weights = drawn((2, 70), dtype), drawn((2, 70), dtype, 1)
    y = scanops.scan(x, "sum", 1, mask=weights, dtype=dtype)
    for line, by, found in zip(lists(x), lists(weights), lists(y), strict=True):
        products = [a * b for a, b in zip(line, by, strict=True)]
        assert found == [h % 2 ** BITS[dtype] for h in itertools.accumulate(products)]
    whole = torch.tensor([1, 2, 3]).to(dtype)
    halves = scanops.cumsum(whole, 0, mask=torch.tensor([0.5, 0.5, 0.5]))
    assert halves.dtype == torch.float32 and halves.tolist() == [0.5, 1.5, 3]
