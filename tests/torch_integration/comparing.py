"""Results and gradients of a call, and the comparisons that every check makes of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch_integration.rows import Tensors

__all__ = ["Noting", "close", "floating", "gradients", "hold", "leaves", "step", "weights"]


class Noting(TorchDispatchMode):
    """A mode that notes the scans it sees with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "scanops":
            self.calls.append((function, args, kwargs))
        return function(*args, **(kwargs or {}))


def floating(tensors: Tensors) -> list[torch.Tensor]:
    """Return the tensors that have or want a gradient."""
    return [each for each in tensors if each.is_floating_point()]


def leaves(tensors: Tensors) -> tuple[Tensors, list[torch.Tensor]]:
    """Return the tensors as new leaves of a graph, and those of them that a gradient is wanted of."""
    found = tuple(each.detach().requires_grad_(each.is_floating_point()) for each in tensors)
    return found, floating(found)


def weights(y: torch.Tensor) -> torch.Tensor:
    """Return the incoming gradient of a result: small whole numbers, other ones for neighbouring items."""
    return (torch.arange(y.numel(), device=y.device) % 7 + 1).to(y.dtype).reshape(y.shape)


def gradients(results: Tensors, wanted: list[torch.Tensor]) -> Tensors:
    """Return the gradients of all results together, weighted, and leave the leaves' own alone."""
    parts = floating(results)
    return torch.autograd.grad(parts, wanted, [weights(y) for y in parts]) if wanted else ()


def step(
    call: Callable[..., Tensors], tensors: Tensors, backward: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[Tensors, Tensors]:
    """Return results and gradients of a call on new leaves, the backward pass inside of ``backward()``."""
    given, wanted = leaves(tensors)
    found = call(*given)
    assert [y.requires_grad for y in found] == [bool(wanted) and y.is_floating_point() for y in found]
    parts = floating(found)
    with backward():
        if wanted:  # not by autograd.grad, which reentrant checkpoints refuse
            torch.autograd.backward(parts, [weights(y) for y in parts])
    assert all(each.grad is not None for each in wanted)
    return found, tuple(each.grad for each in wanted if each.grad is not None)


def hold(call: Callable[..., Tensors], right: Callable[..., Tensors], tensors: Tensors, **how: Any) -> None:
    """Compare two calls: results with their strides, and gradients, whose strides nobody promises."""
    (found, slopes), (expected, wanted) = step(call, tensors, **how), step(right, tensors)
    close(found, expected, check_stride=True)
    close(slopes, wanted)


def close(found: Any, expected: Any, **how: Any) -> None:
    """Compare tensors one by one."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, **how)
