"""Operators of several tensors and fields, by emulated kernels and by PyTorch, against float64 loops over the items."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import scanops
from scanops.fusion.operators import FieldOperator
from tests.scripts import loaded

EXAMPLES = loaded("docs/examples/fields.py")
SHAPES = ((3, 1), (33, 2), (2, 31), (2, 129), (2, 33, 5), (1, 301, 40))
NAMES = ("matrices", "quaternions", "log_product", "farthest", "filter", "filtered")
LONG = (("matrices", (2, 4097)), ("filter", (1, 20003)), ("filtered", (1, 2100, 8)), ("farthest", (1, 20003)))


def expected(op: FieldOperator, tensors: Any, dim: int, mask: Any, reverse: bool, exclusive: bool) -> Any:
    """The results item by item: the functions of the operator are called with tensors of one item of each line."""
    state, project = op._state, op.project or (lambda state: tuple(state))
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    lines = list(zip(*(each.expand(shape).unbind(dim) for each in tensors), strict=True))
    keep = [torch.tensor(True)] * len(lines) if mask is None else mask.unbind(dim)
    s = state(*(torch.full_like(lines[0][0], number) for number in op.start))
    found = []
    for at in reversed(range(len(lines))) if reverse else range(len(lines)):
        if op.step is not None:
            after = op.step(s, *lines[at])
        else:
            lifted = op.lift(*lines[at]) if op.lift else lines[at]
            after = op.combine(s, state(**lifted) if isinstance(lifted, dict) else state(*lifted))
        after = after if isinstance(after, tuple) else (after,)
        after = state(*(torch.where(keep[at], one, other) for one, other in zip(after, s, strict=True)))
        made = project(s if exclusive else after)
        found.append(made if isinstance(made, tuple) else (made,))
        s = after
    return tuple(torch.stack(each[:: -1 if reverse else 1], dim) for each in zip(*found, strict=True))


def drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> list[torch.Tensor]:
    """Tensors of which long scans stay in range: of rotations, of stable filters, of factors near 1."""
    items = [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    if name == "matrices":
        return [items[0].cos(), -items[0].sin(), items[0].sin(), items[0].cos()]
    if name == "quaternions":
        size = sum(each * each for each in items).sqrt()
        return [each / size for each in items]
    if name == "log_product":
        return [(items[0] - 0.3) * 1.8]
    if name == "filtered":
        return [items[0] - 0.5, -1.2 + 0.3 * items[1][..., :1], 0.5 + 0.3 * items[2]]
    return [items[0] - 0.5, items[1] * 9][: 1 + (name != "filter")]


@pytest.mark.parametrize(("name", "shape"), [*itertools.product(NAMES, SHAPES), *LONG], ids=str)
def test_values_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    """Masks, directions and dtypes alternate; gradients are those of the loop, second ones those of PyTorch."""
    turn = len(name) + sum(shape)
    generator = torch.Generator().manual_seed(turn)
    op, dtype = getattr(EXAMPLES, name), (torch.float64, torch.float32)[turn % 2]
    mask = torch.rand(shape, generator=generator) < 0.8 if turn % 3 == 0 else None
    options: Any = {"mask": mask, "reverse": turn % 4 > 1, "exclusive": turn % 5 > 2}
    tensors = [each.to(dtype).requires_grad_() for each in drawn(name, shape, generator)]
    wide = [each.detach().double().requires_grad_() for each in tensors]
    wanted, found = expected(op, wide, 1, **options), []
    weights = [torch.rand(each.shape, generator=generator, dtype=torch.float64) for each in wanted]
    small = max(shape) < 200
    for emulated in (True, False):
        with scanops.emulate(seed=turn) if emulated else torch.enable_grad():
            y = scanops.scan(tensors, op, 1, **options)
            y = y if isinstance(y, tuple) else (y,)
            assert all(each.dtype == dtype for each in y)
            loss = sum((each * w).sum() for each, w in zip(y, weights, strict=True))
            first = torch.autograd.grad(loss, tensors, create_graph=small, materialize_grads=True)
            total = sum(each.square().sum() for each in first) + sum(each.sum() for each in tensors)
            again = torch.autograd.grad(total, tensors, materialize_grads=True) if small else ()
            found.append((*y, *first, *again))
    exact = torch.autograd.grad(
        sum((each * w).sum() for each, w in zip(wanted, weights, strict=True)), wide, materialize_grads=True
    )
    for one, other in [*zip(found[0], (*wanted, *exact), strict=False), *zip(*found, strict=True)]:
        scale = max(1.0, float(other.detach().abs().max())) * (1 if dtype == torch.float64 else 1e5)
        torch.testing.assert_close(one.double() / scale, other.double() / scale, rtol=0, atol=1e-9)
