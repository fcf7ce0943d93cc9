"""Boundary lengths: lanes, warps, accesses and tiles, one below, at and one above."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from tests.numbers.oracle import sequential, values

POWERS = [2**k + d for k in (4, 6, 8, 10, 12, 14) for d in (-1, 0, 1)]
PRIMES = [5, 7, 13, 97, 499, 1009, 4099]
LENGTHS = sorted({1, 2, 3, 31, 32, 33, *POWERS, *PRIMES})


def above_tiles() -> list[int]:
    """One item more than a tile, for the plan of each kind of row."""
    plans = [make_plan(ScanSpec(op="sum", dtype="float32", length=n)) for n in (4, 128, 2048, 4097, 40000)]
    few = make_plan(ScanSpec(op="sum", dtype="float32", length=2**20, lines="few"))
    return sorted({plan.tile + 1 for plan in plans} | {65537 + few.tile})


@pytest.mark.parametrize("length", LENGTHS)
def test_rows(length: int, device: str) -> None:
    x = values("affine", (3, length), torch.float32)
    y = scanops.scan(x.to(device), "affine", 1, reverse=True)
    assert torch.equal(y.cpu(), sequential(x, "affine", 1, reverse=True, dtype=torch.float32))


@pytest.mark.parametrize("length", [n for n in LENGTHS if n < 2000])
def test_columns(length: int, device: str) -> None:
    x = values("affine", (2, length, 5), torch.float32)
    y = scanops.scan(x.to(device), "affine", 1, exclusive=True)
    assert torch.equal(y.cpu(), sequential(x, "affine", 1, exclusive=True, dtype=torch.float32))


@pytest.mark.parametrize("length", above_tiles())
def test_one_above_a_tile(length: int, device: str) -> None:
    x = values("affine", (1, length), torch.float32)
    y = scanops.scan(x.to(device), "affine", 1)
    assert torch.equal(y.cpu(), sequential(x, "affine", 1, dtype=torch.float32))


@pytest.mark.parametrize("inner", [1, 2, 3, 4, 8, 31, 32, 33, 64, 100])
def test_inner_sizes(inner: int, device: str) -> None:
    x = values("affine", (3, 77, inner), torch.float32)
    y = scanops.scan(x.to(device), "affine", 1, reverse=True)
    assert torch.equal(y.cpu(), sequential(x, "affine", 1, reverse=True, dtype=torch.float32))
