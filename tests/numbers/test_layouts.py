"""Requests of random shapes, strides and masks; out= in any layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scanops
from tests.numbers.oracle import hold, selection, sequential, values, weights


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


def test_an_output_off_the_boundary(device: str) -> None:
    for shape in ((2, 1100, 32), (2, 1100, 4)):
        x = values("affine", shape, torch.float32)
        out = torch.empty(x.numel() + 1, device=device)[1:].view(shape)
        scanops.scan(x.to(device), "affine", 1, out=out)
        assert torch.equal(out.cpu(), sequential(x, "affine", 1, dtype=torch.float32))
