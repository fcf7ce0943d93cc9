"""Boundary lengths: lanes, warps, accesses and tiles, one below, at and one above."""

from __future__ import annotations

import pytest
import torch

from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from tests.numbers.oracle import hold, values

POWERS = [2**k + d for k in (5, 8, 10, 12, 14) for d in (-1, 0, 1)]
LENGTHS = sorted({1, 2, 3, 5, 7, 13, 97, 499, 1009, *POWERS})


def above_tiles() -> list[int]:
    """One item more than a tile, for the plan of each kind of row."""
    plans = [make_plan(ScanSpec(op="sum", dtype="float32", length=n)) for n in (4, 128, 2048, 4097, 40000)]
    few = make_plan(ScanSpec(op="sum", dtype="float32", length=2**20, lines="few"))
    return sorted({plan.tile + 1 for plan in plans} | {65537 + few.tile})


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *(((3, length), {"reverse": True}) for length in LENGTHS),
        *(((2, length, 5), {"exclusive": True}) for length in LENGTHS if length < 2000),
        *(((1, length), {}) for length in above_tiles()),
        *(((3, 77, inner), {"reverse": True}) for inner in (1, 2, 3, 4, 8, 31, 32, 33, 64, 100)),
    ],
    ids=str,
)
def test_boundaries(shape: tuple[int, ...], options: dict[str, bool], device: str) -> None:
    """Rows, columns, rows one above a tile, and inner sizes."""
    hold(values("affine", shape, torch.float32), "affine", 1, device, **options)
