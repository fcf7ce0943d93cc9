"""What gradients cost: what is kept for them, which kernels run, what is allocated; and corners of their values."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

import scanops
from tests.requests.test_allocations import allocated

ROWS, LENGTH = 4, 160
Call = Callable[[torch.Tensor], torch.Tensor]


def calls(device: str) -> dict[str, Call]:
    mask = torch.rand(ROWS, LENGTH, device=device) < 0.7
    gate = torch.rand(ROWS, LENGTH, device=device)
    return {
        "sum": lambda x: scanops.cumsum(x, 1),
        "sum, masked": lambda x: scanops.cumsum(x, 1, mask=mask),
        "sum, segments, exclusive": lambda x: scanops.cumsum(x, 1, segment_starts=mask, exclusive=True),
        "product": lambda x: scanops.cumprod(x, 1),
        "product, masked, reverse": lambda x: scanops.cumprod(x, 1, mask=mask, reverse=True),
        "cummax": lambda x: scanops.cummax(x, 1).values,
        "cummin, masked, exclusive": lambda x: scanops.cummin(x, 1, mask=mask, exclusive=True).values,
        "max": lambda x: scanops.scan(x, "max", 1),
        "logcumsumexp": lambda x: scanops.logcumsumexp(x, 1),
        "linear": lambda x: scanops.linear_scan(gate, x, 1),
    }


# Bytes that are kept for an item, beside what the caller has anyway: x where it is read again, mask and gate.
KEPT = {
    "sum": 0,
    "sum, masked": 1,
    "sum, segments, exclusive": 1,
    "product": 4,
    "product, masked, reverse": 4 + 1,
    "cummax": 8,
    "cummin, masked, exclusive": 8,
    "max": 4 + 4,
    "logcumsumexp": 4 + 4,
    "linear": 4,  # the gate, which is a constant: of a gate's gradient the result besides
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_and_what_is_allocated(name: str, kernels: str) -> None:
    call, kept = calls(kernels)[name], []
    leaf = torch.randn(ROWS, LENGTH, device=kernels).requires_grad_()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = call(leaf)
    assert sum(each.nbytes for each in kept) == KEPT[name] * leaf.numel()
    given = torch.ones_like(y)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, leaf, given, retain_graph=True)

    assert allocated(backward, kernels) == leaf.nbytes  # the gradient, and nothing on the way
    if name.startswith(("sum", "cum", "linear")):
        between = leaf * 1  # nothing holds what such a scan is of
        y, watched = call(between), weakref.ref(between)
        del between, kept[:]
        gc.collect()
        assert watched() is None and y.requires_grad


def test_kernels_of_a_backward_pass(kernels: str) -> None:
    """One forwards and one backwards, wherever rows are a block's; longer ones read what came before their items."""
    seen = {}
    for name, call in calls(kernels).items():
        x = torch.rand(ROWS, LENGTH, device=kernels).requires_grad_()
        with scanops.record() as used:
            call(x).sum().backward()
        seen[name] = [spec.op for spec in used]
    assert {name: ops[-1] for name, ops in seen.items()} == {
        "sum": "sum",
        "sum, masked": "sum_gradient",
        "sum, segments, exclusive": "sum",
        "product": "prod_gradient",
        "product, masked, reverse": "prod_gradient",
        "cummax": "runs_gradient",
        "cummin, masked, exclusive": "runs_gradient",
        "max": "max_gradient",
        "logcumsumexp": "logcumsumexp_gradient",
        "linear": "linear_gradient_of_terms",  # the gates are constants
    }
    x = torch.rand(2, 5000, device=kernels).requires_grad_()
    with scanops.record() as used:
        scanops.cumprod(x, 1).sum().backward()
    assert [(spec.op, spec.exclusive, spec.again) for spec in used] == [
        ("prod", False, False),
        ("prod", True, False),
        ("prod_gradient", True, False),
    ]
    x, gate = torch.rand(2, 2, 5000, device=kernels).unbind()
    with scanops.record() as used:
        scanops.linear_scan(gate.requires_grad_(), x.requires_grad_(), 1).sum().backward()
    assert [(spec.op, spec.exclusive, spec.again) for spec in used] == [
        ("linear", False, False),
        ("latest", True, False),  # not the recurrence once more: what it adds was not kept
        ("linear_gradient", True, False),
    ]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def recurrence(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``h[i] = gate[i] * h[i-1] + x[i]`` along rows."""
    h = [torch.zeros_like(x[:, 0])]
    for i in range(x.shape[1]):
        h.append(gate[:, i] * h[-1] + x[:, i])
    return torch.stack(h[1:], 1)


@pytest.mark.parametrize("spread", [transposed, lambda x: x[:1].expand_as(x)], ids=["transposed", "expanded"])
@pytest.mark.parametrize("name", ["product", "product, masked", "linear"])
def test_rows_that_lie_otherwise_are_copied(
    name: str, spread: Callable[[torch.Tensor], torch.Tensor], kernels: str
) -> None:
    """And not scanned forwards once more: neither gradients, nor masks, nor gates, nor the items of a product."""
    x, gate, given = (torch.rand(ROWS, LENGTH, device=kernels) + 0.5 for _ in range(3))
    mask = spread(torch.rand(ROWS, LENGTH, device=kernels) < 0.7)
    ours, theirs = {
        "product": (lambda x: scanops.cumprod(x, 1), lambda x: torch.cumprod(x, 1)),
        "product, masked": (
            lambda x: scanops.cumprod(x, 1, mask=mask),
            lambda x: torch.cumprod(torch.where(mask, x, 1), 1),
        ),
        "linear": (lambda x, gate: scanops.linear_scan(gate, x, 1), lambda x, gate: recurrence(gate, x)),
    }[name]
    leaves = [transposed(x).requires_grad_(), spread(gate / 2).requires_grad_()][: 1 + (name == "linear")]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(theirs(*wide), wide, spread(given).double())
    y = ours(*leaves)
    for _ in range(2):  # the second as it is remembered
        with scanops.record() as used:
            found = torch.autograd.grad(y, leaves, spread(given), retain_graph=True)
        assert [spec.again for spec in used] in ([True], [])
        torch.testing.assert_close([each.double() for each in found], list(expected), rtol=1e-4, atol=1e-4)


def test_logarithms_of_infinities(kernels: str) -> None:
    """An item of -inf has no part in any result, an infinite one all of those from it on; NaN is in all from it on."""
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, -inf, 1, -inf, 1], [0, inf, 1, 0, 2], [0, 0, -inf, nan, 1]]
    x = torch.tensor(rows, device=kernels, requires_grad=True)
    (found,) = torch.autograd.grad(scanops.logcumsumexp(x, 1), x, torch.ones_like(x))
    expected = [[0, 0, 1 + 1 + 0.5, 0, 0.5], [1, 4, 0, 0, 0], [nan, nan, 0, nan, nan]]
    torch.testing.assert_close(found, torch.tensor(expected, device=kernels), equal_nan=True)


def test_batches_of_gradients(device: str) -> None:
    """Under vmap torch must see inside the backward pass, too."""
    for name, call in calls(device).items():
        x = (torch.rand(ROWS, LENGTH, device=device) + 0.5).requires_grad_()
        given = torch.randn(3, ROWS, LENGTH, device=device)
        y = call(x)
        (found,) = torch.autograd.grad(y, x, given, is_grads_batched=True, retain_graph=True)
        for k in range(3):
            (expected,) = torch.autograd.grad(y, x, given[k], retain_graph=True)
            scale = expected.abs().max()
            torch.testing.assert_close(found[k] / scale, expected / scale, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "logcumsumexp", "linear"])
def test_exclusive_results_of_one_item_have_a_gradient(op: str, device: str) -> None:
    """Of zeros, as nothing is before the item: a backward pass goes through whatever the length."""
    x, gate = torch.rand(2, 3, 1, device=device).requires_grad_(), torch.rand(2, 3, 1, device=device).requires_grad_()
    y = scanops.linear_scan(gate, x, 2, exclusive=True) if op == "linear" else scanops.scan(x, op, 2, exclusive=True)
    leaves = (x, gate) if op == "linear" else (x,)
    for found in torch.autograd.grad(y, leaves, torch.ones_like(y)):
        assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
def test_lines_of_no_items_have_a_gradient(shape: tuple[int, ...], exclusive: bool, device: str) -> None:
    """An empty one, and what goes on from such lines that of what they began with."""
    a, b = (torch.rand(shape, device=device).requires_grad_() for _ in range(2))
    h = torch.rand(shape[:-1], device=device).requires_grad_()
    y, final = scanops.linear_scan(a, b, -1, initial=h, exclusive=exclusive, return_final=True)
    for found, like in zip(torch.autograd.grad((y, final), (a, b, h), (y, 2 * final)), (a, b, 2 * h), strict=True):
        assert torch.equal(found, like)
    for part in scanops.linear_scan(a, b, -1, exclusive=exclusive, return_final=True):
        assert all(each.shape == shape for each in torch.autograd.grad(part.sum(), (a, b), retain_graph=True))
    assert torch.equal(torch.autograd.grad(scanops.linear_scan(a, b, -1, initial=h).sum(), h)[0], 0 * h)


def test_what_keeps_nothing_is_walked_back_twice(device: str) -> None:
    """As torch's cumsum is, without retain_graph; what keeps something is not."""
    x = torch.rand(3, 5, device=device, requires_grad=True)
    y = scanops.cumsum(x, 1)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for _ in range(2)))
    y = scanops.cumsum(x, 1, mask=x.detach() > 0.5)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y.sum(), x)
