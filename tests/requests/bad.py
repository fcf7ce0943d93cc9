"""What calls that make no sense are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import scanops
from scanops.errors import ScanopsError, UnsupportedRequest

__all__ = ["Bad", "cumsum", "elsewhere", "f32", "indices", "ones", "sparse", "starts"]

f32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A call that makes no sense."""

    call: Callable[[str], object]  # with tensors on this device
    value: str  # stands in the error's value
    kind: type[ScanopsError] = UnsupportedRequest


def ones(device: str, *shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def elsewhere(device: str, *shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    """A tensor on a device that is not ``device``, on any machine."""
    return torch.ones(shape, dtype=dtype, device="meta" if device == "cpu" else "cpu")


def cumsum(device: str, *shape: int, dim: Any = 0, **options: Any) -> object:
    return scanops.cumsum(ones(device, *shape), dim, **options)


def sparse(device: str) -> torch.Tensor:
    return ones(device, 3, 3).to_sparse()


def indices(device: str, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def starts(device: str, *shape: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
