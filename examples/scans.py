"""The scans that the models call: by scanops, and by torch's own operations.

A model is given a ``Scans`` and calls ``scans.cumsum(...)`` where it would call ``scanops.cumsum(...)``, so that one
text is trained with and without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import scanops

__all__ = ["DOUBLING", "SCANOPS", "TORCH", "Scans", "rounded_otherwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """What the models need of ``scanops``, under the same names and with the same arguments."""

    cumsum: Callable[..., Tensor] = scanops.cumsum
    cumprod: Callable[..., Tensor] = scanops.cumprod
    logcumsumexp: Callable[..., Tensor] = scanops.logcumsumexp
    linear_scan: Callable[..., Tensor] = scanops.linear_scan


def _cumsum(x: Tensor, dim: int, *, exclusive: bool = False) -> Tensor:
    return torch.cumsum(_one_later(x, dim, 0.0) if exclusive else x, dim)


def _cumprod(x: Tensor, dim: int, *, exclusive: bool = False) -> Tensor:
    return torch.cumprod(_one_later(x, dim, 1.0) if exclusive else x, dim)


def _one_later(x: Tensor, dim: int, first: float) -> Tensor:
    """x with ``first`` in front and without its last item: of this an inclusive scan is x's exclusive one."""
    return torch.cat((torch.full_like(x.narrow(dim, 0, 1), first), x.narrow(dim, 0, x.shape[dim] - 1)), dim)


def _item_by_item(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``h[i] = a[i] * h[i-1] + b[i]`` as it is written: a multiplication and an addition for each item of a line.

    In torch's operations nothing shorter is as exact. ``p * cumsum(b / p)`` with the products p of the gates divides by
    what vanishes within some hundred items.
    """
    h, results = torch.zeros_like(b.select(dim, 0)), []
    for gate, item in zip(a.unbind(dim), b.unbind(dim), strict=True):
        h = torch.addcmul(item, gate, h)
        results.append(h)
    return torch.stack(results, dim)


def _doubling(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """The same in log2(n) passes over the whole: joined in each is what lies twice as far apart as in the one before.

    Source: Hillis and Steele, "Data parallel algorithms" (1986), on the pairs of ``scanops.linear_scan``.
    """
    length, distance = b.shape[dim], 1
    while distance < length:
        newer = a.narrow(dim, distance, length - distance)
        older_a, older_b = (each.narrow(dim, 0, length - distance) for each in (a, b))
        joined = torch.addcmul(b.narrow(dim, distance, length - distance), newer, older_b)
        b = torch.cat((b.narrow(dim, 0, distance), joined), dim)
        a = torch.cat((a.narrow(dim, 0, distance), newer * older_a), dim)
        distance *= 2
    return b


SCANOPS = Scans()
TORCH = Scans(cumsum=_cumsum, cumprod=_cumprod, logcumsumexp=torch.logcumsumexp, linear_scan=_item_by_item)
DOUBLING = replace(TORCH, linear_scan=_doubling)


def rounded_otherwise(scans: Scans, seed: int) -> Scans:
    """The same scans with each result off by rounding: ``y[i] * (1 + e[i])``, e normal with deviation sqrt(n) u.

    n is the length of a line and u the unit roundoff of its dtype: n roundings of either sign, one after the other, add
    up to about sqrt(n) of them. What reads the results and what their gradients go through is off likewise.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def disturbed(scan: Callable[..., Tensor], inputs: int) -> Callable[..., Tensor]:
        def call(*given: object, **options: bool) -> Tensor:
            y, dim = scan(*given, **options), given[inputs]
            assert isinstance(dim, int)
            if y.device not in generators:
                generators[y.device] = torch.Generator(y.device).manual_seed(seed)
            drawn = torch.randn(y.shape, dtype=y.dtype, device=y.device, generator=generators[y.device])
            return y * (1 + drawn * (math.sqrt(y.shape[dim]) * torch.finfo(y.dtype).eps / 2))

        return call

    return Scans(
        cumsum=disturbed(scans.cumsum, 1),
        cumprod=disturbed(scans.cumprod, 1),
        logcumsumexp=disturbed(scans.logcumsumexp, 1),
        linear_scan=disturbed(scans.linear_scan, 2),
    )
