"""What a checkpoint computes again is what was computed before, whatever mode is active then and now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import scanops
from tests.torch_integration.comparing import floating, hold
from tests.torch_integration.rows import DIM, ROWS, Tensors, flat

# Each kind of gradient, and each kind of operand
NAMES = (
    "`cumsum`", "`cumprod`", "`logcumsumexp`", "`cummax`", '`scan(x, "max")`', "`linear_scan`", "`mask` that selects",
    "`mask` that multiplies", "`initial`, `return_final`", "`segment_starts`",
)  # fmt: skip


class Watching(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def block_of(call: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Return two scans with operations around them, whose saved tensors must not be taken for one another."""

    def block(*tensors: torch.Tensor) -> Tensors:
        one, other = (
            floating(call(*(curve(each) if each.is_floating_point() else each for each in tensors)))
            for curve in (torch.sin, torch.cos)
        )
        return tuple(y.tanh() * z.exp() for y, z in zip(one, other, strict=True))

    return block


@pytest.mark.parametrize("watched", ["forwards", "backwards"])
@pytest.mark.parametrize("name", NAMES)
def test_a_mode_in_one_pass_alone(name: str, watched: str) -> None:
    block = block_of(ROWS[name])
    forwards, backwards = (Watching if watched == part else nullcontext for part in ("forwards", "backwards"))

    def call(*tensors: torch.Tensor) -> Tensors:
        with forwards():
            return checkpoint(block, *tensors, use_reentrant=False)

    with scanops.emulate():
        for _ in range(3):  # by Python, and where it is loaded by C++
            hold(call, block, ROWS[name].tensors(), backward=backwards)


@pytest.mark.parametrize("around", ["forwards", "both"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummin", "logcumsumexp"])
def test_a_patched_model(name: str, reentrant: bool, around: str) -> None:
    """The recomputation is never patched: torch calls no mode in a backward pass."""
    block = block_of(lambda x: flat(getattr(torch, name)(x, DIM)))

    def call(x: torch.Tensor) -> Tensors:
        with scanops.patch_torch():
            return checkpoint(block, x, use_reentrant=reentrant)

    backwards = scanops.patch_torch if around == "both" else nullcontext
    with scanops.emulate():
        hold(call, block, ROWS[f"`{name}`"].tensors(), backward=backwards)
