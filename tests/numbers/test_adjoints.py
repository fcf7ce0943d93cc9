"""Kernels of gradients, in every strategy, against PyTorch's gradients of the fallback."""

from __future__ import annotations

import contextlib
import contextvars

import pytest
import torch

import scanops
from scanops.codegen.operators import GRADIENTS
from tests.numbers.oracle import call

# The shapes of rows of a warp, staged, of a block, and of a wave; of columns and panels of them.
PLACES: dict[str, tuple[int, ...]] = {
    "warp": (3, 64),
    "staged": (5, 31),
    "block": (2, 1003),
    "wave": (2, 20004),
    "columns": (2, 37, 6),
    "panels": (1, 70, 130),
}
NAMES = sorted(GRADIENTS.keys() - {"latest"})  # which gives the gradient of gates what was before an item
PAIRS = [(name, list(PLACES)[k % len(PLACES)]) for k, name in enumerate(NAMES)]  # each strategy with several rows


def slopes(name: str, shape: tuple[int, ...], device: str) -> tuple[torch.Tensor, ...]:
    """The gradients that the kernel of a row computes: of exclusive scans, and of recurrences with constant gates."""
    g = torch.Generator().manual_seed(len(name))
    op = name.partition("_")[0].replace("runs", "cummax")
    x = 1 + 0.01 * torch.randn(shape, generator=g, dtype=torch.float64)  # products of any length are near 1
    gate, given = (torch.rand(shape, generator=g, dtype=torch.float64) * 0.9 + 0.2 for _ in range(2))
    mask = torch.rand(shape, generator=g) < 0.8
    x, gate, given, mask = (each.to(device) for each in (x, gate, given, mask))
    leaves = [x.requires_grad_(), *([gate.requires_grad_()] if op == "linear" and "terms" not in name else [])]
    y, *_ = call(x, op, 1, gate=gate if op == "linear" else None, mask=mask, exclusive="after" in name)
    return torch.autograd.grad(y, leaves, given)


@pytest.mark.parametrize(("name", "place"), PAIRS)
def test_a_row_in_a_strategy(name: str, place: str, device: str) -> None:
    with scanops.record() as used:
        found = slopes(name, PLACES[place], device)
    assert list(used)[-1].op == name
    expected = contextvars.Context().run(slopes, name, PLACES[place], "cpu")  # outside scanops.emulate()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("length", "reverse", "masked"), [(131, False, True), (256, True, False), (256, True, True), (2048, False, False)]
)
def test_products_and_recurrences_scanned_again(length: int, reverse: bool, masked: bool, device: str) -> None:
    """Before each item by the other kernel, and in the tile: exact where all is whole numbers, zeros among them."""
    g = torch.Generator().manual_seed(length)
    factors = torch.randint(-1, 2, (3, length), generator=g).double()
    factors[0], factors[1, length // 2] = torch.where(factors[0] == 0, 1, factors[0]), 0
    x = factors.to(device).requires_grad_()
    mask = (torch.rand(length, generator=g) < 0.9).to(device) if masked else None
    mask = None if mask is None else mask.expand(3, length).contiguous()
    given = torch.randint(-9, 9, (3, length), generator=g).double().to(device)
    with scanops.record() as used:
        (found,) = torch.autograd.grad(scanops.cumprod(x, 1, mask=mask, reverse=reverse), x, given)
    assert [spec.former for spec in used] == [False, True]
    terms = x if mask is None else torch.where(mask, x, torch.ones_like(x))
    y = torch.cumprod(terms.flip(1) if reverse else terms, 1)
    (expected,) = torch.autograd.grad(y.flip(1) if reverse else y, x, given)
    assert torch.equal(found, expected)
    gate = torch.rand(3, length, generator=g, dtype=torch.float64).to(device).requires_grad_()
    both = torch.autograd.grad(scanops.linear_scan(gate, x, 1, mask=mask, reverse=reverse), (gate, x), given)
    columns = [each if each is None else each.detach().t().contiguous() for each in (gate, x, mask, given)]
    down, items = (each.requires_grad_() for each in columns[:2])  # not a tile: what is before items is read
    with scanops.record() as used:
        y = scanops.linear_scan(down, items, 0, mask=columns[2], reverse=reverse)
        others = torch.autograd.grad(y, (down, items), columns[3])
    assert [spec.op for spec in used] == ["linear", "latest", "linear_gradient"]
    for one, other in zip(both, others, strict=True):
        torch.testing.assert_close(one, other.t(), rtol=1e-11, atol=1e-11)


def test_the_gradient_of_cummax_is_the_same_bits_every_time(device: str) -> None:
    x, given = torch.randn(2, 5000, device=device).sort(1).values.round(decimals=1), torch.randn(2, 5000, device=device)
    y = scanops.cummax(x.requires_grad_(), 1).values
    (found,) = torch.autograd.grad(y, x, given, retain_graph=True)
    with scanops.emulate(seed=99) if device == "cpu" else contextlib.nullcontext():  # threads take other turns
        assert torch.equal(torch.autograd.grad(y, x, given)[0], found)
