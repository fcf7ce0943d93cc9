"""Rows of gradients: each against its own recurrence, in kernels of every strategy, and against torch's gradients."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.operators import GRADIENTS, Operator
from scanops.requests.call import Call
from scanops.requests.request import Inputs, Request
from scanops.runtime.calls import run

# (shape, dim): rows of a warp, staged, of a block, of a wave, split over blocks; columns and panels of them.
PLACES: dict[str, tuple[tuple[int, ...], int]] = {
    "warp": ((3, 64), 1),
    "staged": ((5, 31), 1),
    "block": ((2, 1003), 1),
    "wave": ((2, 20004), 1),
    "columns": ((2, 37, 6), 1),
    "panels": ((1, 70, 130), 1),
}
NAMES = sorted(GRADIENTS)
PAIRS = [(row, list(PLACES)[k % len(PLACES)]) for k, row in enumerate(NAMES)]  # each strategy with several rows


def mentions(row: Operator, word: str) -> bool:
    return any(re.search(rf"\b{word}\b", text) for text in row.lift)


def operands(row: Operator, shape: tuple[int, ...], dim: int, device: str) -> dict[str, torch.Tensor]:
    """Random ones, such as a forward scan leaves: results that never fall, indices in runs."""
    g = torch.Generator().manual_seed(len(row.name) + shape[dim])

    def floats(low: float, high: float) -> torch.Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low

    found = {"x": floats(-1, 1)}
    if row.masked:
        found["mask"] = torch.rand(shape, generator=g) < 0.8
    terms = floats(-2, 2)
    if mentions(row, "g"):
        found["gate"] = floats(0.2, 1.1) if "before" in row.fields or row.before else terms
    if row.saved == "value":
        found["saved"] = {
            "logcumsumexp_gradient": torch.logcumsumexp(terms, dim),
            "max_gradient": torch.cummax(terms, dim).values,
            "min_gradient": torch.cummin(terms, dim).values,
        }.get(row.name.removesuffix("_after"), floats(-2, 2))
    if row.saved == "place":
        found["saved"] = torch.cummax(terms, dim).indices
    return {name: each.to(device) for name, each in found.items()}


def walked(row: Operator, read: dict[str, torch.Tensor], dim: int, exclusive: bool) -> torch.Tensor:
    """The recurrence of a row, walked from the last item to the first."""
    lines = {name: each.movedim(dim, -1).cpu() for name, each in read.items()}
    shape, length = lines["x"].shape[:-1], lines["x"].shape[-1]
    flat = {name: each.reshape(-1, length).tolist() for name, each in lines.items()}
    words = {"x": "x", "g": "gate", "v": "saved", "m": "mask"}
    found = []
    for line in range(len(flat["x"])):
        h, results = row.start, [0.0] * length
        for k in reversed(range(length)):
            given = [flat[name][line][k] for word, name in words.items() if word == "x" or name in flat]
            new = row.step(h, *given, *([k] if row.places_items else []))
            passed = len(new) - len(row.own)
            assert row.output is not None
            results[k] = row.output((*(h if exclusive else new)[:passed], *new[passed:]))
            h = new
        found.append(results)
    return torch.tensor(found, dtype=torch.float64).reshape(*shape, length).movedim(-1, dim)


def scanned(row: str, read: dict[str, torch.Tensor], dim: int, exclusive: bool, **options: Any) -> Any:
    dtype = read["x"].dtype
    again = options.pop("again", False)
    call = Call(row, dim, **{"reverse": True, "exclusive": exclusive, "dtype": dtype, **options})
    found = run(Request(call=call, inputs=Inputs(**read), carry_dtype=dtype, again=again))
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("name", "place"), PAIRS)
def test_a_row_against_its_recurrence(name: str, place: str, device: str) -> None:
    row, (shape, dim) = GRADIENTS[name], PLACES[place]
    exclusive = name not in ("sum_gradient", "logcumsumexp_gradient", "runs_gradient")
    read = operands(row, shape, dim, device)
    found = scanned(name, read, dim, exclusive)
    expected = walked(row, read, dim, exclusive)
    torch.testing.assert_close(found[0].cpu(), expected, rtol=1e-9, atol=1e-9)
    if row.second:  # the gradient of the gates is that of the terms, times what was before
        torch.testing.assert_close(found[1].cpu(), expected * read["saved"].cpu(), rtol=1e-9, atol=1e-9)


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
    assert [spec.again for spec in used] == [False, True]
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
    indices = torch.cummax(x, 1).indices
    read = {"x": given, "saved": indices}
    found = scanned("runs_gradient", read, 1, False)[0]
    if device == "cpu":
        with scanops.emulate(seed=99):  # threads take other turns
            assert torch.equal(scanned("runs_gradient", read, 1, False)[0], found)
    assert torch.equal(scanned("runs_gradient", read, 1, False)[0], found)
