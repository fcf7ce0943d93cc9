"""Strides, ranks, broadcast masks, out=, empty and 0-d tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scanops
from tests.numbers.oracle import hold, selection, sequential, values, weights

VIEWS = {
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "sliced": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "offset": lambda x: torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:1].expand(x.shape),
}


SCANS = (
    ("affine", torch.float32),
    ("cummax", torch.float32),
    ("logcumsumexp", torch.float32),
    ("sum", torch.complex64),
)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("op", "dtype"), SCANS)
def test_any_strides(op: str, dtype: torch.dtype, view: str, dim: int, device: str) -> None:
    """States of one and several fields, one and two outputs; dimensions and directions alternate but for affine."""
    if op == "affine" or dim == 1 + list(VIEWS).index(view) % 2:
        hold(VIEWS[view](values(op, (6, 70, 12), dtype)), op, dim, device, reverse=dim == 1, exclusive=dim == 2)


@pytest.mark.parametrize("rank", [1, 2, 4, 6])
def test_any_rank_any_dim(rank: int, device: str) -> None:
    x = values("affine", (2, 3, 4, 3, 2, 5)[:rank], torch.float32)
    for dim in range(-rank, rank):
        hold(x, "affine", dim, device, exclusive=True)


@pytest.mark.parametrize("shape", [(), (1,), (12,), (70, 12), (1, 70, 1), (6, 1, 1), (6, 1, 12), (6, 70, 12)])
@pytest.mark.parametrize("selects", [False, True])
def test_broadcast_masks(selects: bool, shape: tuple[int, ...], device: str) -> None:
    mask = selection(shape) if selects else weights("sum", shape, torch.float32)
    hold(values("sum", (6, 70, 12), torch.float32), "sum", 1 + (len(shape) + selects) % 2, device, mask=mask)


def test_a_mask_of_another_dtype_promotes_as_multiplication_does(device: str) -> None:
    x = torch.arange(6, dtype=torch.int32)
    for dtype in (torch.float64, torch.float16, torch.int64, torch.uint8):
        mask = torch.tensor([1, 0, 2, 1, 1, 3]).to(dtype)
        y = scanops.cumsum(x.to(device), 0, mask=mask.to(device))
        expected = torch.cumsum(x * mask, 0)
        assert y.dtype == expected.dtype
        assert torch.equal(y.cpu(), expected)
    scalar = torch.tensor(2.0, dtype=torch.float64)  # 0-d: lends its kind, not its width
    assert scanops.cumsum(x.float().to(device), 0, mask=scalar.to(device)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32, torch.float32, torch.float16], ids=str)
def test_half_products_are_not_rounded_to_half(dtype: torch.dtype) -> None:
    """Before they are scanned, whatever the result's dtype: with a kernel and without one."""
    x = torch.arange(1, 129, dtype=torch.int16)
    mask = (torch.arange(128) % 7 + 1.0625).to(torch.bfloat16)
    wanted = scanops.scan(x.float() * mask.float(), "max", 0).to(dtype)
    assert not torch.equal(wanted, scanops.scan((x * mask).float(), "max", 0).to(dtype))
    assert torch.equal(scanops.scan(x, "max", 0, mask=mask, dtype=dtype), wanted)
    with scanops.emulate():
        assert torch.equal(scanops.scan(x, "max", 0, mask=mask, dtype=dtype), wanted)


def test_what_is_multiplied_by_a_half_is_rounded_to_one() -> None:
    """As torch promotes it, with a kernel and without one: 2049 lies between two numbers of float16."""
    x, mask = torch.ones(2, dtype=torch.float16), torch.tensor([2049, -2048], dtype=torch.int16)
    for options in ({"mask": mask}, {"mask": mask, "dtype": torch.float32}):
        assert scanops.cumsum(x, 0, **options).tolist() == [2048, 0]
        with scanops.emulate():
            assert scanops.cumsum(x, 0, **options).tolist() == [2048, 0]


def test_a_gate_widens_what_items_are_multiplied_in(device: str) -> None:
    x, mask = torch.tensor([2049, 1], dtype=torch.int16), torch.tensor([1.0, 1.0], dtype=torch.float16)
    gate = torch.ones(2, dtype=torch.float32)
    assert scanops.linear_scan(gate, x, 0, mask=mask).tolist() == [2049, 2050]
    assert scanops.linear_scan(*(t.to(device) for t in (gate, x)), 0, mask=mask.to(device)).tolist() == [2049, 2050]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_elements_are_converted_to_a_half_before_they_are_scanned(dtype: torch.dtype) -> None:
    """As torch does it, with a kernel and without one; not where a wider accumulator is asked for."""
    x = torch.tensor([1.001, 2.003, 3.0007], dtype=torch.float64)
    weighted = {"mask": torch.full((3,), 1.25, dtype=torch.float32)}
    for options in ({}, weighted, {"accumulate": torch.float64}):
        terms = x * 1.25 if "mask" in options else x
        terms = terms if "accumulate" in options else terms.to(dtype).double()
        for call in (scanops.cumsum, emulated):
            _, final = call(x, 0, dtype=dtype, return_final=True, **options)
            assert final.item() == terms.sum().item(), options


def emulated(x: torch.Tensor, dim: int, **options: Any) -> Any:
    with scanops.emulate():
        return scanops.cumsum(x, dim, **options)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 5)])
def test_empty(shape: tuple[int, ...], device: str) -> None:
    for dim in range(len(shape)):
        y = scanops.cumsum(torch.empty(shape, dtype=torch.int32, device=device), dim)
        assert y.shape == shape and y.dtype == torch.int64


def test_out(device: str) -> None:
    x = values("sum", (4, 300), torch.float32).to(device)
    expected = torch.cumsum(x.cpu(), 1)
    out = torch.full_like(x, float("nan"))
    assert scanops.cumsum(x, 1, out=out) is out and torch.equal(out.cpu(), expected)
    wide = torch.empty(4, 300, dtype=torch.float64, device=device)
    assert torch.equal(scanops.cumsum(x, 1, out=wide).cpu(), expected.double())
    strided = torch.empty(300, 4, device=device).t()
    assert scanops.cumsum(x, 1, out=strided) is strided and torch.equal(strided.cpu(), expected)
    shifted = torch.empty(4 * 300 + 1, device=device)[1:].view(4, 300)
    assert torch.equal(scanops.cumsum(x, 1, out=shifted).cpu(), expected)


@pytest.mark.parametrize("shape", [(37, 4), (3, 2052), (1, 131076), (2, 1030, 7)])
def test_in_place(shape: tuple[int, ...], device: str) -> None:
    x = values("sum", shape, torch.float32)
    y = x.clone().to(device)
    scanops.cumsum(y, 1, out=y)
    assert torch.equal(y.cpu(), torch.cumsum(x, 1))


@settings(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from((1, 2, 3, 8, 33)), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.sampled_from((1, 2)),
    flags=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(("none", "bool", "weights")),
    data=st.data(),
)
def test_any_request_is_right(
    sizes: list[int], order: object, step: int, flags: tuple[bool, bool], kind: str, data: st.DataObject
) -> None:
    """Random shapes, permutations, slices, masks of random broadcast shapes, directions: emulated, and exact."""
    rank = len(sizes)
    permutation = list(range(rank))
    order.shuffle(permutation)  # type: ignore[attr-defined]
    x = values("affine", tuple(size * step for size in sizes), torch.float32)
    x = x[tuple(slice(None, None, step) for _ in sizes)].permute(permutation)
    dim = data.draw(st.integers(-rank, rank - 1))
    shape = tuple(data.draw(st.sampled_from((1, size))) for size in x.shape)
    mask = {"none": None, "bool": selection(shape), "weights": weights("affine", shape, torch.float32)}[kind]
    reverse, exclusive = flags
    with scanops.emulate(seed=1):
        hold(x, "affine", dim, mask=mask, reverse=reverse, exclusive=exclusive)


COLUMNS = {
    "half of the columns": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every other row": lambda x: torch.stack([x, x], dim=2)[:, :, 0],
    "batches and rows exchanged": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "all rows are one": lambda x: x[:, :1].expand(x.shape),
    "one item off": lambda x: torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape),
    "half of the columns, two items off": lambda x: torch.cat([x, x], dim=-1)[..., 2 : x.shape[-1] + 2],
}


SHAPES = ((5, 21, 64), (3, 1100, 32), (2, 1100, 4), (3, 1104, 16))
SELECTIONS = (None, "dense", "as x", "a row")


@pytest.mark.parametrize(
    ("view", "shape", "mask"),
    [
        (view, shape, SELECTIONS[(number + turn) % len(SELECTIONS)])
        for number, view in enumerate(COLUMNS)
        for turn, shape in enumerate(SHAPES)
    ],
)
def test_neighbouring_columns(view: str, shape: tuple[int, int, int], mask: str | None, device: str) -> None:
    """Whole accesses along a row, wherever rows lie; a tile of registers, the wave, lanes that exchange rows."""
    x = COLUMNS[view](values("affine", shape, torch.float32))
    m = None if mask is None else selection(shape[2:] if mask == "a row" else shape)
    m = COLUMNS[view](m) if m is not None and mask == "as x" else m
    reverse = mask in (None, "as x")
    hold(x, "affine", 1, device, mask=m, reverse=reverse)


def test_an_output_off_the_boundary(device: str) -> None:
    for shape in ((2, 1100, 32), (2, 1100, 4)):
        x = values("affine", shape, torch.float32)
        out = torch.empty(x.numel() + 1, device=device)[1:].view(shape)
        scanops.scan(x.to(device), "affine", 1, out=out)
        assert torch.equal(out.cpu(), sequential(x, "affine", 1, dtype=torch.float32))
