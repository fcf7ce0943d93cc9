"""Packed sequences: carries of segments; compared with each segment scanned alone.

Values of every operator, dtype and strategy are in tests/numbers: the value "carried" of the axis segments.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest

CUTS = [0, 0, 3, 3, 10, 31, 40, 40]


def scan(x: torch.Tensor, op: str, dim: int, gate: torch.Tensor | None = None, **options: Any) -> Any:
    return scanops.scan(x, op, dim, **options) if gate is None else scanops.linear_scan(gate, x, dim, **options)


def apart(x: torch.Tensor, op: str, dim: int, cuts: list[int], initial: torch.Tensor | None, **options: Any) -> Any:
    """Results and carries-out, segment after segment."""
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        own = {n: t.narrow(dim, begin, end - begin) if isinstance(t, torch.Tensor) else t for n, t in options.items()}
        start = None if initial is None else initial.select(dim, number)
        found.append(scan(x.narrow(dim, begin, end - begin), op, dim, initial=start, return_final=True, **own))
    return torch.cat([y for y, _ in found], dim), torch.stack([final for _, final in found], dim)


@pytest.mark.parametrize("exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("op", ["sum", "prod", "linear", "max", "logcumsumexp"])
@pytest.mark.parametrize(("shape", "dim"), [((3, 40), 1), ((2, 40, 6), 1)], ids=["rows", "columns"])
def test_gradients_of_carries(
    kernels: str, shape: tuple[int, ...], dim: int, op: str, reverse: bool, exclusive: bool
) -> None:
    """Gradients of items, gates, numeric masks and carries-in, through results and carries-out."""
    generator = torch.Generator().manual_seed(1)
    carries = [len(CUTS) - 1 if d == dim else size for d, size in enumerate(shape)]
    options = {"x": shape, "gate" if op == "linear" else "mask": shape, "initial": carries}
    drawn = {name: torch.rand(size, generator=generator) + 0.5 for name, size in options.items()}
    offsets = torch.tensor(CUTS, dtype=torch.int32, device=kernels)

    def results(alone: bool) -> tuple[torch.Tensor, ...]:
        given = {name: each.to(kernels).requires_grad_() for name, each in drawn.items()}
        further = {"reverse": reverse, "exclusive": exclusive}
        if alone:
            y, final = apart(op=op, dim=dim, cuts=CUTS, **given, **further)
        else:
            y, final = scan(op=op, dim=dim, offsets=offsets, return_final=True, **given, **further)
        weights = (torch.linspace(0.5, 1.5, each.numel(), device=kernels).view_as(each) for each in (y, final))
        total = sum((each * weight).sum() for each, weight in zip((y, final), weights, strict=True))
        return y, final, *torch.autograd.grad(total, tuple(given.values()))

    for found, wanted in zip(results(False), results(True), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_transforms_of_carries(reverse: bool) -> None:
    """Tangents, second derivatives, batches, also of offsets, and a compiler."""
    x = torch.rand(3, 12, dtype=torch.float64, requires_grad=True)
    initial = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([[0, 5, 5, 9, 12], [0, 5, 5, 9, 12], [0, 1, 2, 3, 12]])

    def f(x: torch.Tensor, initial: torch.Tensor, offsets: torch.Tensor = offsets[0]) -> Any:
        return scan(x, "prod", -1, initial=initial, offsets=offsets, return_final=True, reverse=reverse)

    assert torch.autograd.gradcheck(f, (x, initial), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (x, initial))
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)(x, initial)
    for found in (compiled, torch.vmap(f)(x, initial)):
        torch.testing.assert_close(found, f(x, initial))
    gradients = (torch.autograd.grad(y.sum() + final.sum(), (x, initial)) for y, final in (compiled, f(x, initial)))
    torch.testing.assert_close(*gradients)
    batched = torch.vmap(f)(x, initial, offsets)
    torch.testing.assert_close(batched[0][2], f(x[2], initial[2], offsets[2])[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"offsets": None}, "carries of segments need offsets: got offsets=None"),
        ({"x": torch.tensor(1.0), "dim": 0, "offsets": torch.tensor([0, 1])}, r"x of shape \(\)"),
        ({"initial": torch.zeros(2, 3)}, r"initial must broadcast to x.shape with the segments"),
        ({"return_final": "lines"}, "return_final must be a bool or 'segments': got return_final='lines'"),
    ],
    ids=["no offsets", "no dimension", "shape", "word"],
)
def test_refusals_of_carries(options: dict[str, Any], words: str) -> None:
    given = {"x": torch.ones(2, 4), "op": "sum", "dim": 1, "offsets": torch.tensor([0, 1, 4])}
    with pytest.raises(UnsupportedRequest, match=words):
        scan(**{**given, "return_final": "segments", **options})
