"""What a checkpoint computes again is what was computed before, whoever was watching then and is now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import scanops

Block = Callable[[torch.Tensor], torch.Tensor]

KEEP = torch.tensor([True, False, True, True, True])
SCANS: dict[str, Block] = {
    "sum": lambda x: scanops.cumsum(x, 1),
    "sum, masked": lambda x: scanops.cumsum(x, 1, mask=KEEP, exclusive=True),
    "sum, weighted": lambda x: scanops.cumsum(x, 1, mask=x[0]),
    "product": lambda x: scanops.cumprod(x, 1, initial=x[:, 0]),
    "logcumsumexp": lambda x: scanops.logcumsumexp(x, 1, segment_starts=KEEP),
    "cummax": lambda x: scanops.cummax(x, 1).values,
    "max": lambda x: scanops.scan(x, "max", 1, mask=KEEP),
    "linear": lambda x: scanops.linear_scan(x[:1], x.cos(), 1, mask=x, initial=x[:, 0]),
    "gates": lambda x: scanops.linear_scan(x, KEEP.float(), 1, reverse=True),
}
TORCHS: dict[str, Block] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: torch.cumprod(x, dim=1),
    "cummin": lambda x: torch.cummin(x, 1).values,
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def slopes(
    block: Block,
    x: torch.Tensor,
    forwards: AbstractContextManager[Any] | None = None,
    backwards: AbstractContextManager[Any] | None = None,
    **how: Any,
) -> torch.Tensor:
    """The gradient of a block, by a checkpoint where ``how`` says of which kind."""
    x = x.clone().requires_grad_()
    with forwards or nullcontext():
        y = checkpoint(block, x, **how) if how else block(x)
    with backwards or nullcontext():
        y.backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("watched", ["forwards", "backwards"])
@pytest.mark.parametrize("name", SCANS)
def test_a_mode_in_one_pass_alone(name: str, watched: str) -> None:
    scan = SCANS[name]

    def block(x: torch.Tensor) -> torch.Tensor:
        return (scan(x.sin()).tanh() * scan(x.cos()).exp()).sum()

    x = torch.rand(3, 5)
    with scanops.emulate():
        for _ in range(3):  # by Python, and where it is loaded by C++
            found = slopes(block, x, **{watched: Watching()}, use_reentrant=False)
            torch.testing.assert_close(found, slopes(block, x))


@pytest.mark.parametrize("around", ["forwards", "both"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", TORCHS)
def test_a_patched_model(name: str, reentrant: bool, around: str) -> None:
    """The second time is never patched: torch calls no mode while it walks back."""
    scan = TORCHS[name]

    def block(x: torch.Tensor) -> torch.Tensor:
        return (scan(x.sin()).tanh() * scan(x.cos()).exp()).sum()

    x = torch.rand(3, 5)
    expected = slopes(block, x)
    with scanops.emulate():
        if around == "both":
            with scanops.patch_torch():
                found = slopes(block, x, use_reentrant=reentrant)
        else:
            found = slopes(block, x, forwards=scanops.patch_torch(), use_reentrant=reentrant)
    torch.testing.assert_close(found, expected)
