"""Scans as ``torch.nn`` modules, for ``Sequential`` and models that are pickled, copied or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scanops.api import cumsum, linear_scan
from scanops.forks import import_late
from scanops.relatives import cumprod

__all__ = ["CumProd", "CumSum", "LinearRecurrence", "MaskedCumSum"]


def __dir__() -> list[str]:
    return sorted(__all__)


class _Scan(torch.nn.Module):
    """Base of the modules: dimension, direction, and whether items are left out."""

    def __init__(self, dim: int = -1, *, reverse: bool = False, exclusive: bool = False, group: Any = None) -> None:
        super().__init__()
        self.group = group
        self.dim = dim
        self.reverse = reverse
        self.exclusive = exclusive

    def _scan(self, scan: Callable[..., Any], *tensors: Tensor | complex, **options: Any) -> Any:
        options |= {"reverse": self.reverse, "exclusive": self.exclusive}
        if self.group is None:
            return scan(*tensors, self.dim, **options)
        return getattr(import_late("scanops.distributed"), scan.__name__)(
            *tensors, self.dim, group=self.group, **options
        )

    def extra_repr(self) -> str:
        """Return the arguments that are not the default, for repr."""
        told = [f"{name}=True" for name in ("reverse", "exclusive") if getattr(self, name)]
        return ", ".join([f"dim={self.dim}", *told])


class CumSum(_Scan):
    """``y[i] = x[0] + x[1] + ... + x[i]`` along ``dim``.

    Args:
        dim: the dimension to scan along; the last by default.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``; the first result is 0.
        group: the ranks that ``dim`` is sharded over, as for ``scanops.distributed.scan``; None for one GPU.

    Shape:
        x of any shape; y of the same.

    Raises:
        UnsupportedRequest: at the call, as ``scanops.cumsum``.

    Example:
        >>> import torch, scanops.nn
        >>> scanops.nn.CumSum(dim=0, reverse=True)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([6., 5., 3.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the inclusive or exclusive sums of x."""
        found: Tensor = self._scan(cumsum, x)
        return found


class CumProd(_Scan):
    """``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``.

    Args:
        dim: the dimension to scan along; the last by default.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``; the first result is 1.
        group: the ranks that ``dim`` is sharded over, as for ``scanops.distributed.scan``; None for one GPU.

    Shape:
        x of any shape; y of the same.

    Raises:
        UnsupportedRequest: at the call, as ``scanops.cumprod``.

    Example:
        >>> import torch, scanops.nn
        >>> scanops.nn.CumProd(dim=0)(torch.tensor([2.0, 3.0, 4.0]))
        tensor([ 2.,  6., 24.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the inclusive or exclusive products of x."""
        found: Tensor = self._scan(cumprod, x)
        return found


class MaskedCumSum(_Scan):
    """``y[i] = m[0] x[0] + m[1] x[1] + ... + m[i] x[i]`` along ``dim``.

    A bool mask selects: an item where it is False counts as 0 whatever its value, NaN included. A numeric one,
    of integers too, multiplies.

    Args:
        dim: the dimension to scan along; the last by default.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``; the first result is 0.
        group: the ranks that ``dim`` is sharded over, as for ``scanops.distributed.scan``; None for one GPU.

    Shape:
        x of any shape; mask of one that broadcasts to it; y of x's.

    Raises:
        UnsupportedRequest: at the call, as ``scanops.cumsum``.

    Example:
        >>> import torch, scanops.nn
        >>> scanops.nn.MaskedCumSum()(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
        tensor([1., 1., 4.])
    """

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the sums of the selected or weighted items of x."""
        found: Tensor = self._scan(cumsum, x, mask=mask)
        return found


class LinearRecurrence(_Scan):
    """``h[i] = a[i] * h[i-1] + b[i]`` along ``dim``, from ``initial`` or 0.

    Args:
        dim: the dimension to scan along; the last by default.
        reverse: scan from the last item to the first.
        exclusive: the result at i is what h was before i.
        group: the ranks that ``dim`` is sharded over, as for ``scanops.distributed.scan``; None for one GPU.

    Shape:
        a and b of shapes that broadcast to one another, or a Python number as a; h of the one they broadcast to;
        initial of one that broadcasts to h's without ``dim``.

    Raises:
        UnsupportedRequest: at the call, as ``scanops.linear_scan``.

    Example:
        >>> import torch, scanops.nn
        >>> scanops.nn.LinearRecurrence()(torch.tensor(0.5), torch.tensor([8.0, 0.0, 0.0, 1.0]))
        tensor([8., 4., 2., 2.])

    Source: Blelloch, "Prefix Sums and Their Applications" (1990), section 1.4.
    """

    def forward(self, a: Tensor | complex, b: Tensor, initial: Tensor | None = None) -> Tensor:
        """Return h, from the carry-in ``initial`` or 0."""
        found: Tensor = self._scan(linear_scan, a, b, initial=initial)
        return found
