"""Boundary shapes, lengths above all; dimensions in any order in memory; kernels that take their length."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import scanops
from scanops.codegen.kernel_key import KernelKey, variant_for
from scanops.codegen.planner import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.requests.request import make_request
from scanops.runtime.kernels import default_target, obtain
from scanops.runtime.policies import STRICT
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
    ((47, 100), (1, 0), 1, 0),  # few lines, which are read item by item
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


# Runs of less than 64 bytes waste bandwidth: the same, and the dtype.
GATHERED = [
    ((31, 100), (1, 0), 1, 0, torch.float16),
    ((15, 64), (1, 0), 0, 0, torch.float32),
]


@pytest.mark.parametrize(
    ("shape", "order", "dim", "pad", "dtype", "layout"),
    [*((*row, torch.float32, "transposed") for row in TRANSPOSED), *((*row, "strided") for row in GATHERED)],
)
def test_transposed(
    shape: tuple[int, ...], order: tuple[int, ...], dim: int, pad: int, dtype: torch.dtype, layout: str, device: str
) -> None:
    """Lengths next to a warp's and a tile's, any rank; a mask as the output lies."""
    x = lying(values("affine", shape, dtype), order, pad)
    request = make_request(x, "sum", dim)
    assert request.spec(torch.empty(x.shape)).input_layout == layout
    hold(x, "affine", dim, device, mask=selection(shape), reverse=True)


@pytest.mark.parametrize(
    ("shape", "mask_shape", "layout"),
    [
        ((2, 300, 33), (2, 300, 1), "step"),
        ((1, 1100, 40), (1, 1100, 1), "step"),
        ((2, 70, 3, 32), (2, 70, 3, 1), "step"),  # one for each head, whose columns are whole accesses
        ((2, 70, 3, 8), (2, 70, 3, 1), "strided"),
        ((2, 70, 3, 8), (70, 1, 1), "step"),
    ],
)
def test_one_item_for_several_columns(
    shape: tuple[int, ...], mask_shape: tuple[int, ...], layout: str, device: str
) -> None:
    """A mask that is broadcast across columns."""
    x, mask = values("affine", shape, torch.float32), selection(mask_shape)
    request = make_request(x, "sum", 1, mask=mask)
    assert request.spec(torch.empty(shape)).mask_layout == layout
    hold(x, "affine", 1, device, mask=mask.expand(shape), reverse=True)


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
    "affine-f32-n1",
    "affine-f32-n6-mask_b8",
    "affine-f32-n100",
    "affine-f32-n255",
    "affine-f32-n599-mask_b8",
    "affine-f16-n511",
    "affine-bf16-n20-out_f32-mask_b8",
    "affine-f64-n65-mask_b8",
    "sum-i8-n31-out_i8",
    "sum-b8-n9",
    "affine-i32-n129-out_i64-mask_b8",
)


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


# ---- kernels that take their length: one library, many lengths

# What follows "affine-f32-" in the kernel's name, its strategy, and the lengths it is run on: one, those around
# lanes, accesses and tiles, the greatest.
KERNELS: dict[str, tuple[str, tuple[int, ...]]] = {
    "any-le512-by4": ("warp", (4, 128, 132, 508, 512)),
    "any-le512": ("staged", (1, 2, 3, 5, 16, 21, 22, 31, 32, 33, 64, 127, 128, 129, 339, 341, 511, 512)),
    "any-le512-unaligned": ("staged", (1, 4, 16, 33, 512)),
    "any-le512-strided": ("warp", (1, 5, 128, 509, 512)),
    "any-le8192-by4": ("block", (4, 1028, 4096, 8188, 8192)),
    "any-le8192": ("block", (1, 1025, 4097, 8191, 8192)),
    "any-le1073741824": ("persistent", (1, 31, 12288, 12289, 40001)),
    "any": ("persistent", (5, 13001)),
    "any-le65536-few": ("split", (1, 8193, 40001)),
    "any-le128-inner64": ("columns", (1, 5, 127, 128)),
    "any-le1024-inner5": ("columns", (3, 515, 1024)),
    "any-le8192-inner64": ("columns_lookback", (1, 255, 256, 257, 1300)),
    "any-le8192-inner4": ("columns", (1, 4096, 4353)),
    "any-le512-transposed-unaligned": ("transposed", (16, 33, 128, 129, 512)),
    "any-le512-inner40-transposed-unaligned": ("transposed", (16, 33, 128, 129, 512)),
    "any-le512-rows": ("warp", (1, 127, 509)),
    "any-le8192-rows": ("block", (1, 509, 1025, 4099)),
    "any-le65536-few-rows": ("split", (1, 509, 4099)),
    "any-le1073741824-rows": ("persistent", (1, 509, 4099)),
    "any-le8192-inner64-few": ("columns_lookback", (1, 384, 385, 1300)),
}
FLAGS = ("", "-reverse-exclusive", "-mask_b8-reverse")
ORDER = ("le", "by", "inner", "mask", "reverse", "exclusive", "rows", "strided", "transposed", "unaligned")


def spec_of(tail: str, *, op: str = "affine") -> ScanSpec:
    words = tail.split("-")
    found = [word for kind in ORDER for word in words if word.startswith(kind)]
    return ScanSpec.parse("-".join([op, "f32", "any", *found]))


@functools.lru_cache(maxsize=64)
def kernel_of(spec: ScanSpec, device: str, few: bool = False) -> scanops.Kernel:
    kernel = obtain(KernelKey(spec, "cpu" if device == "cpu" else default_target(), variant_for(few)), STRICT)
    assert kernel is not None
    return kernel


@pytest.mark.parametrize(("tail", "flags"), [(tail, FLAGS[number % 3]) for number, tail in enumerate(KERNELS)])
def test_one_kernel_many_lengths(tail: str, flags: str, device: str) -> None:
    """Directions and masks alternate; the routes of the matrix combine them with everything else."""
    spec, few = spec_of(tail + flags), "few" in tail
    assert make_plan(spec, few=few).strategy == KERNELS[tail][0]
    for length in KERNELS[tail][1]:
        short = length < 200 or spec.input_layout == "transposed"
        rows = 37 if short and spec.inner == 1 else 3  # an odd number, so that the last block is partial
        x = values("affine", (rows, length, spec.inner) if spec.inner > 1 else (rows, length), torch.float32)
        there = x.to(device)
        if spec.input_layout == "rows":  # of a larger tensor: they begin on every boundary in turn
            there = torch.nn.functional.pad(there, (1, 7 - length % 2))[:, 1 : length + 1]
        elif spec.input_layout == "transposed":
            there = there.mT.contiguous().mT if spec.inner > 1 else there.t().contiguous().t()
        elif spec.input_layout == "strided":
            there = torch.stack([there, there], dim=-1)[..., 0]
        elif not spec.aligned:
            there = torch.cat([there.new_zeros(1), there.flatten()])[1:].view(x.shape)
        mask = selection(tuple(x.shape)) if spec.mask else None
        y = kernel_of(spec, device, few)(there, 1, mask=None if mask is None else mask.to(device))
        flipped = {"reverse": spec.reverse, "exclusive": spec.exclusive}
        assert y.cpu().equal(sequential(x, "affine", 1, mask=mask, dtype=x.dtype, **flipped)), f"length {length}"


def test_an_empty_line_and_a_single_number(device: str) -> None:
    kernel = kernel_of(spec_of("any-le512", op="sum"), device)
    assert kernel(torch.tensor(7.0, device=device), 0).item() == 7
    assert kernel(torch.empty(0, 5, device=device)).shape == (0, 5)
