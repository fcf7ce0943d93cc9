"""Boundary shapes: lengths and inner sizes next to a warp, a vector and a tile; dimensions in any order in memory."""

from __future__ import annotations

import math

import pytest
import torch

import scanops
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import make_request
from tests.numbers.matrix import MULTIPROCESSORS
from tests.numbers.oracle import hold, selection, sequential, values

LENGTHS = sorted({1, 2, 3, 7, 1009, *(2**k + d for k in (5, 8, 10, 12, 14) for d in (-1, 0, 1))})


def above_tiles() -> list[int]:
    """One item more than a tile, for the plan of each kind of row."""
    plans = [make_plan(ScanSpec(op="sum", dtype="float32", length=n)) for n in (4, 128, 2048, 4097, 40000)]
    few = make_plan(ScanSpec(op="sum", dtype="float32", length=2**20), few=True)
    return sorted({plan.tile + 1 for plan in plans} | {65537 + few.tile})


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *(((3, length), {"reverse": True}) for length in LENGTHS),
        *(((2, length, 5), {"exclusive": True}) for length in LENGTHS if 7 < length < 2000),
        *(((1, length), {}) for length in above_tiles()),
        *(((3, 77, inner), {"reverse": True}) for inner in (1, 2, 3, 4, 8, 31, 32, 33, 64, 100)),
        ((2, 3, 4, 3, 2, 5), {}),
    ],
    ids=str,
)
def test_boundaries(shape: tuple[int, ...], options: dict[str, bool], device: str) -> None:
    """Rows, columns, rows one above a tile, and inner sizes."""
    hold(values("affine", shape, torch.float32), "affine", 1, device, **options)


def lying(x: torch.Tensor, order: tuple[int, ...], pad: int = 0) -> torch.Tensor:
    """Return ``x`` with its dimensions in this order in memory, outermost first; rows are ``pad`` items longer."""
    turned = x.permute(order)
    storage = torch.zeros((*turned.shape[:-1], turned.shape[-1] + pad), dtype=x.dtype)
    storage[..., : turned.shape[-1]] = turned
    return storage[..., : turned.shape[-1]].permute([order.index(d) for d in range(x.ndim)])


# (shape, order of dimensions in memory, scanned dimension, padding)
TRANSPOSED = [
    ((64, 16), (1, 0), 1, 0),
    ((97, 33), (1, 0), 1, 0),
    ((48, 129), (1, 0), 1, 0),
    ((300, 97), (1, 0), 0, 0),
    ((127, 64), (1, 0), 0, 0),
    ((31, 64), (1, 0), 0, 4),
    ((2, 36, 5, 70), (0, 2, 3, 1), 3, 0),  # channels last, along the width
    ((2, 36, 5, 70), (0, 2, 3, 1), 1, 0),  # along the channels
    ((2, 36, 5, 70), (0, 2, 3, 1), 1, 3),  # of a larger tensor
    ((3, 40, 50), (2, 0, 1), 2, 0),
    ((40, 3, 50), (1, 2, 0), 2, 5),
    ((3, 100, 4, 20), (2, 0, 3, 1), 1, 1),  # columns in two dimensions that do not collapse
    ((3, 104, 4, 20), (2, 0, 3, 1), 1, 0),  # and whose runs no 16-byte access of a mask divides
    ((20, 20, 100), (2, 0, 1), 2, 0),  # lines in two dimensions that collapse
    ((2, 1, 40, 1, 50), (4, 0, 1, 3, 2), 4, 0),
]


def layout_of(x: torch.Tensor, dim: int) -> str:
    return make_request(x, "sum", dim).spec(torch.empty(x.shape), MULTIPROCESSORS).input_layout


@pytest.mark.parametrize(("shape", "order", "dim", "pad"), TRANSPOSED)
def test_transposed(shape: tuple[int, ...], order: tuple[int, ...], dim: int, pad: int, device: str) -> None:
    """Lengths next to a warp's and a tile's, any rank; a mask as the output lies."""
    x = lying(values("affine", shape, torch.float32), order, pad)
    assert layout_of(x, dim) == "transposed"
    hold(x, "affine", dim, device, mask=selection(shape), reverse=True)


@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [((47, 100), 1, torch.float32), ((31, 100), 1, torch.float16), ((15, 64), 0, torch.float32)],
)
def test_few_lines_and_short_runs_are_gathered(
    shape: tuple[int, int], dim: int, dtype: torch.dtype, device: str
) -> None:
    """Few lines would leave a GPU idle; runs of less than 64 bytes waste bandwidth."""
    x = lying(values("affine", shape, dtype), (1, 0))
    assert layout_of(x, dim) == "strided"
    hold(x, "affine", dim, device)


@pytest.mark.parametrize("shape", [(37, 4), (3, 2052), (1, 131076), (2, 1030, 7), (2, 1100, 32), (2, 1100, 4)])
def test_outputs_in_place_and_off_the_boundary(shape: tuple[int, ...], device: str) -> None:
    x = values("affine", shape, torch.float32)
    y = x.clone().to(device)
    for out in (torch.empty(x.numel() + 1, device=device)[1:].view(shape), y):
        scanops.scan(y, "affine", 1, out=out)
        assert torch.equal(out.cpu(), sequential(x, "affine", 1, dtype=torch.float32))


# ---- rows staged in shared memory: every way a row is shared out, and nothing written outside the output

GUARD, MARK = 64, 77  # items around an operand


def placed(x: torch.Tensor, offset: int, pitch: int = 0) -> torch.Tensor:
    """Copy ``x`` to so many items past a 16-byte boundary, its rows ``pitch`` items apart, with marks around them."""
    *outer, width = x.shape
    rows = math.prod(outer)
    room = torch.full((rows * (pitch or width) + 2 * GUARD,), MARK, dtype=torch.int64).to(x.dtype).to(x.device)
    assert room.data_ptr() % 16 == 0 and offset < GUARD
    begin = GUARD // 2 + offset
    view = room[begin : begin + rows * (pitch or width)].view(*outer, pitch or width)[..., :width]
    return view.copy_(x)


def marked(view: torch.Tensor) -> bool:
    """Whether nothing was written around what ``placed`` made, which is overwritten."""
    view.fill_(MARK)
    return bool((view._base == MARK).all())


# Lanes take whole rows, pieces kept in registers, pieces read twice.
RAGGED = (
    "affine-f32-n1", "affine-f32-n6-mask_b8", "affine-f32-n100", "affine-f32-n255", "affine-f32-n599-mask_b8",
    "affine-f16-n511", "affine-bf16-n20-out_f32-mask_b8", "affine-f64-n65-mask_b8", "sum-i8-n31-out_i8", "sum-b8-n9",
    "affine-i32-n129-out_i64-mask_b8",
)  # fmt: skip


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("slug", RAGGED)
def test_ragged_rows(slug: str, aligned: bool, device: str) -> None:
    """One row, and one more than a block has; directions alternate."""
    spec = ScanSpec.parse(slug)
    plan, reverse = make_plan(spec), aligned == (spec.capacity % 2 > 0)
    offsets = (0, 0, 0) if aligned else (1, 2, 3)
    for rows in (1, plan.warps * plan.rows + 1):
        shape, dtype = (rows, spec.capacity), getattr(torch, spec.out_dtype)
        x = values(spec.op, shape, torch.int64).to(getattr(torch, spec.dtype))
        mask = selection(shape) if spec.mask else None
        there = None if mask is None else placed(mask.to(device), offsets[1])
        y = placed(torch.zeros(shape, dtype=dtype, device=device), offsets[2])
        scanops.scan(placed(x.to(device), offsets[0]), spec.op, 1, mask=there, reverse=reverse, dtype=dtype, out=y)
        assert torch.equal(y.cpu(), sequential(x, spec.op, 1, mask=mask, reverse=reverse, dtype=dtype))
        assert marked(y)


def test_ragged_rows_are_scanned_in_every_way() -> None:
    plans = [make_plan(ScanSpec.parse(slug)) for slug in RAGGED]
    assert {plan.strategy for plan in plans} == {"staged"}
    assert {(plan.lanes > 1, plan.kept) for plan in plans} == {(False, False), (True, True), (True, False)}
    assert {plan.on_boundary for plan in plans} == {plan.in_place for plan in plans} == {True, False}
