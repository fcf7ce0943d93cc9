"""Inputs whose unit stride is along another dimension than the output's: rows and columns transposed in tiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import transposed
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.targets import target_named
from scanops.requests.request import make_request
from tests.numbers.matrix import MULTIPROCESSORS
from tests.numbers.oracle import hold, selection, sequential, values, weights
from tests.numbers.test_realigned import built


def lying(x: torch.Tensor, order: tuple[int, ...], pad: int = 0) -> torch.Tensor:
    """Return ``x`` with its dimensions in this order in memory, outermost first; rows are ``pad`` items longer."""
    turned = x.permute(order)
    storage = torch.zeros((*turned.shape[:-1], turned.shape[-1] + pad), dtype=x.dtype)
    storage[..., : turned.shape[-1]] = turned
    return storage[..., : turned.shape[-1]].permute([order.index(d) for d in range(x.ndim)])


def spec_of(x: torch.Tensor, dim: int) -> ScanSpec:
    return make_request(x, "sum", dim).spec(torch.empty(x.shape), MULTIPROCESSORS)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("length", "lines"), list(zip([16, 31, 32, 33, 100, 127, 128, 129, 300], [48, 64, 97] * 3, strict=True))
)
def test_lengths(length: int, lines: int, dim: int, device: str) -> None:
    """Lengths next to a warp's and a tile's; numbers of lines next to a block's; directions alternate."""
    x = lying(values("affine", (lines, length) if dim else (length, lines), torch.float32), (1, 0))
    assert spec_of(x, dim).input_layout == "transposed"
    flag = (length + dim) % 2 > 0
    hold(x, "affine", dim, device, reverse=flag, exclusive=flag)


MASKS = {
    "as the output": lambda x: selection(tuple(x.shape)),
    "as the input": lambda x: lying(selection(tuple(x.shape)), (1, 0)),
    "one row": lambda x: selection((x.shape[1],)),
    "one column": lambda x: selection((x.shape[0], 1)),
    "weights": lambda x: lying(weights("affine", tuple(x.shape), x.dtype), (1, 0)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int8], ids=str)
def test_masks(mask: str, dtype: torch.dtype, device: str) -> None:
    """Layouts of the mask with accesses of 16 to 4 bytes and item by item; dimensions and directions alternate."""
    turn = list(MASKS).index(mask) + dtype.itemsize.bit_length()
    x = lying(values("affine", ((64, 160), (50, 131))[turn % 2], dtype), (1, 0))
    hold(x, "affine", turn // 2 % 2, device, mask=MASKS[mask](x), reverse=turn % 3 > 0, exclusive=turn % 3 == 0)


@pytest.mark.parametrize(
    ("shape", "order", "dim", "pad"),
    [
        ((2, 36, 5, 70), (0, 2, 3, 1), 3, 0),  # channels last, along the width
        ((2, 36, 5, 70), (0, 2, 3, 1), 1, 0),  # along the channels
        ((2, 36, 5, 70), (0, 2, 3, 1), 1, 3),  # of a larger tensor
        ((3, 40, 50), (0, 2, 1), 2, 0),
        ((3, 40, 50), (2, 0, 1), 2, 0),
        ((40, 3, 50), (1, 2, 0), 2, 5),
        ((3, 100, 4, 20), (2, 0, 3, 1), 1, 1),  # columns in two dimensions that do not collapse
        ((3, 104, 4, 20), (2, 0, 3, 1), 1, 0),  # and whose runs no 16-byte access of a mask divides
        ((20, 20, 100), (2, 0, 1), 2, 0),  # lines in two dimensions that collapse
        ((2, 1, 40, 1, 50), (4, 0, 1, 3, 2), 4, 0),
    ],
)
def test_ranks(shape: tuple[int, ...], order: tuple[int, ...], dim: int, pad: int, device: str) -> None:
    x = lying(values("affine", shape, torch.float32), order, pad)
    assert spec_of(x, dim).input_layout == "transposed"
    hold(x, "affine", dim, device, mask=selection(shape), reverse=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_offset_and_odd_strides(dim: int, device: str) -> None:
    base = values("affine", (100, 67), torch.float32)
    for x in (base.t()[3:, 1:], lying(base, (1, 0), pad=4)[1:, 2:]):
        assert not spec_of(x, dim).aligned and spec_of(x, dim).input_layout == "transposed"
        hold(x, "affine", dim, device, exclusive=True)


@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [((47, 100), 1, torch.float32), ((31, 100), 1, torch.float16), ((15, 64), 0, torch.float32)],
)
def test_few_lines_and_short_runs_are_gathered(
    shape: tuple[int, int], dim: int, dtype: torch.dtype, device: str
) -> None:
    """Few lines would leave a GPU idle; runs of less than 64 bytes waste bandwidth."""
    x = lying(values("affine", shape, dtype), (1, 0))
    assert spec_of(x, dim).input_layout == "strided"
    hold(x, "affine", dim, device)


@pytest.mark.parametrize("tail", ["", "-inner36"])
@pytest.mark.parametrize(
    "numbers",
    [{"threads": 64, "items": 8}, {"items": 16, "vector": 2}, {"stages": 1}, {"stages": 2, "items": 4}],
    ids=str,
)
def test_plans(tail: str, numbers: dict[str, Any]) -> None:
    spec = ScanSpec.parse(f"affine-f32-n300{tail}-reverse-transposed")
    made = dataclasses.replace(transposed.plan(spec, target_named("sm_90")), **numbers)
    plan = dataclasses.replace(made, tiles=ceil_div(300, made.tile))
    x = values("affine", (2, 300, 36) if spec.inner > 1 else (52, 300), torch.float32)
    with scanops.emulate(seed=5):
        y = built(plan)(lying(x, (0, 2, 1) if spec.inner > 1 else (1, 0)), 1)
    assert torch.equal(y, sequential(x, "affine", 1, reverse=True, dtype=torch.float32))
