"""What gradients cost: the bytes that are saved for them, the kernels that run, and what these allocate."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

import scanops
from tests.requests.derivatives import walked
from tests.requests.test_allocations import allocated

ROWS, LENGTH = 4, 160
MASK, GATE = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 3 > 0, torch.rand(ROWS, LENGTH)

# A scan, with MASK and GATE on its device; the bytes saved for each item beside what the caller has anyway, which are x
# where it is read again, the mask and the gate; the last kernel of the backward pass.
Scan = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SCANS: dict[str, tuple[Scan, int, str]] = {
    "sum": (lambda x, mask, gate: scanops.cumsum(x, 1), 0, "sum"),
    "sum, masked": (lambda x, mask, gate: scanops.cumsum(x, 1, mask=mask), 1, "sum_gradient"),
    "sum, segments": (lambda x, mask, gate: scanops.cumsum(x, 1, segment_starts=mask, exclusive=True), 1, "sum"),
    "product": (lambda x, mask, gate: scanops.cumprod(x, 1), 4, "prod_gradient"),
    "product, masked": (lambda x, mask, gate: scanops.cumprod(x, 1, mask=mask, reverse=True), 4 + 1, "prod_gradient"),
    "cummax": (lambda x, mask, gate: scanops.cummax(x, 1).values, 8, "runs_gradient"),
    "cummin, masked": (
        lambda x, mask, gate: scanops.cummin(x, 1, mask=mask, exclusive=True).values,
        8,
        "runs_gradient",
    ),
    "max": (lambda x, mask, gate: scanops.scan(x, "max", 1), 4 + 4, "max_gradient"),
    "logcumsumexp": (lambda x, mask, gate: scanops.logcumsumexp(x, 1), 4 + 4, "logcumsumexp_gradient"),
    # The gate, which is a constant: the gradient of a gate reads the result besides.
    "linear": (lambda x, mask, gate: scanops.linear_scan(gate, x, 1), 4, "linear_gradient_of_terms"),
}


@pytest.mark.parametrize("name", SCANS)
def test_what_is_saved_launched_and_allocated(name: str, kernels: str) -> None:
    scan, bytes_saved, last = SCANS[name]
    mask, gate, saved = MASK.to(kernels), GATE.to(kernels), []
    leaf = torch.randn(ROWS, LENGTH, device=kernels).requires_grad_()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = scan(leaf, mask, gate)
    assert sum(each.nbytes for each in saved) == bytes_saved * leaf.numel()
    given = torch.ones_like(y)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, leaf, given, retain_graph=True)

    with scanops.record() as used:
        backward()
    assert [spec.op for spec in used] == [last]
    assert allocated(backward, kernels) == leaf.nbytes  # the gradient, and nothing on the way
    if name.startswith(("sum", "cum", "linear")):
        between = leaf * 1  # nothing keeps the input of such a scan alive
        y, watched = scan(between, mask, gate), weakref.ref(between)
        del between, saved[:]
        gc.collect()
        assert watched() is None and y.requires_grad


def test_kernels_of_longer_rows(kernels: str) -> None:
    """They read what came before their items, by an exclusive scan: of a recurrence the latest result, not it again."""
    x, gate = (each.requires_grad_() for each in torch.rand(2, 2, 5000, device=kernels).unbind())
    with scanops.record() as used:
        scanops.cumprod(x, 1).sum().backward()
        scanops.linear_scan(gate, x, 1).sum().backward()
    assert [(spec.op, spec.exclusive, spec.again) for spec in used] == [
        ("prod", False, False),
        ("prod", True, False),
        ("prod_gradient", True, False),
        ("linear", False, False),
        ("latest", True, False),
        ("linear_gradient", True, False),
    ]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("spread", [transposed, lambda x: x[:1].expand_as(x)], ids=["transposed", "expanded"])
@pytest.mark.parametrize("name", ["product", "product, masked", "linear"])
def test_rows_of_other_strides_are_copied(
    name: str, spread: Callable[[torch.Tensor], torch.Tensor], kernels: str
) -> None:
    """And not scanned forwards once more: neither gradients, nor masks, nor gates, nor the items of a product."""
    x, gate, given = (torch.rand(ROWS, LENGTH, device=kernels) + 0.5 for _ in range(3))
    mask = spread(MASK.to(kernels)) if name == "product, masked" else None
    leaves = [transposed(x).requires_grad_(), *([spread(gate / 2).requires_grad_()] if name == "linear" else [])]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    if name == "linear":
        y, theirs = scanops.linear_scan(leaves[1], leaves[0], 1), walked("linear", wide[0], a=wide[1])[0]
    else:
        y, theirs = scanops.cumprod(leaves[0], 1, mask=mask), walked("prod", wide[0], mask=mask)[0]
    expected = torch.autograd.grad(theirs, wide, spread(given).double())
    for _ in range(2):  # the second as it is remembered
        with scanops.record() as used:
            found = torch.autograd.grad(y, leaves, spread(given), retain_graph=True)
        assert [spec.again for spec in used] in ([True], [])
        torch.testing.assert_close([each.double() for each in found], list(expected), rtol=1e-4, atol=1e-4)


def test_a_scan_that_saves_nothing_goes_backward_twice(device: str) -> None:
    """As torch's cumsum does, without retain_graph; one that saves something does not."""
    x = torch.rand(3, 5, device=device, requires_grad=True)
    y = scanops.cumsum(x, 1)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for _ in range(2)))
    y = scanops.cumsum(x, 1, mask=x.detach() > 0.5)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y.sum(), x)
