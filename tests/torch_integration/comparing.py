"""What results and gradients are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close

from tests.torch_integration.rows import LENGTH, Row, Tensors

__all__ = [
    "GPU", "NO_GRADIENT", "OTHERS", "YES",
    "agree", "close", "floating", "gradients", "leaves", "values", "weights",
]  # fmt: skip

YES = "yes"
NO_GRADIENT = "whole numbers"
OTHERS = "not torch's"
GPU = "on a GPU"


def floating(tensors: Tensors) -> list[torch.Tensor]:
    return [each for each in tensors if each.is_floating_point()]


def leaves(row: Row, length: int = LENGTH, seed: int = 0) -> tuple[Tensors, list[torch.Tensor]]:
    """Arguments, and those of them that gradients are wanted of."""
    tensors = row.tensors(length, seed)
    return tensors, [each.requires_grad_() for each in floating(tensors)]


def values(row: Row) -> Callable[..., Tensors]:
    """The results that have gradients."""
    return lambda *tensors: tuple(floating(row(*tensors)))


def weights(y: torch.Tensor) -> torch.Tensor:
    """What a sum that is different for each item multiplies them with."""
    return torch.arange(1.0, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)


def gradients(results: Tensors, wanted: list[torch.Tensor]) -> Tensors:
    """Of such a sum."""
    parts = floating(results)
    return torch.autograd.grad(parts, wanted, [weights(y) for y in parts])


def agree(found: Any, expected: Any) -> None:
    """Results, which are contiguous everywhere."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, check_stride=True)


def close(found: Any, expected: Any) -> None:
    """Gradients, whose strides are nobody's promise."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
