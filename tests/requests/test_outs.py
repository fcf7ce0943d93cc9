"""Tensors that ``out=`` may be: the input, the weights, interleaved memory; autograd sees the write."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused


def test_out_may_be_interleaved(device: str) -> None:
    """Strides that do not nest, where no two items share an address."""
    out = torch.zeros(8, device=device).as_strided((2, 3), (3, 2))
    assert scanops.cumsum(torch.ones(2, 3, device=device), 1, out=out).tolist() == [[1, 2, 3]] * 2


def test_a_refused_call_leaves_out_alone(device: str) -> None:
    x, mask, out = torch.ones(3, device=device), torch.ones(4, device=device), torch.full((3,), 5.0, device=device)
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, mask=mask, out=out))
    assert (out == 5).all()


def test_out_may_be_the_weights_themselves_and_lie_beside_x(device: str) -> None:
    memory = torch.ones(12, device=device)
    scanops.cumsum(memory[:4], 0, mask=memory[4:8], out=memory[8:])
    assert memory[8:].tolist() == [1, 2, 3, 4]
    weights = torch.tensor([1.0, 0.0, 2.0], device=device)
    scanops.cumsum(torch.ones(3, device=device), 0, mask=weights, out=weights)
    assert weights.tolist() == [1, 1, 3]


def test_out_without_gradients_takes_tensors_that_require_them(device: str) -> None:
    x, out = torch.ones(3, device=device, requires_grad=True), torch.ones(3, device=device)
    with torch.no_grad():
        assert scanops.cumsum(x, 0, out=out).tolist() == [1, 2, 3]


@pytest.mark.parametrize("own", [True, False], ids=["contiguous", "strided"])
def test_autograd_knows_that_a_saved_out_was_changed(own: bool, device: str) -> None:
    """A kernel writes to it without torch."""
    weight = torch.ones(4, device=device, requires_grad=True)
    kept = torch.ones(4, device=device) if own else torch.ones(8, device=device)[::2]
    values, indices = torch.ones(4, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    for out, write in (
        (kept, lambda: scanops.cumsum(torch.ones(4, device=device), 0, out=kept)),
        (kept, lambda: scanops.cumsum(kept.detach(), 0, out=kept.detach())),
        (values, lambda: scanops.cummax(torch.ones(4, device=device), 0, out=(values, indices))),
        (indices, lambda: scanops.cummax(torch.ones(4, device=device), 0, out=(values, indices))),
    ):
        y = (weight * out).sum()
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
