"""The scans that the models call: by scanops, and by torch's own operations.

A model is given a ``Scans`` and calls ``scans.cumsum(...)`` where it would call ``scanops.cumsum(...)``, so that one
text is trained with and without.
"""

from __future__ import annotations

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
    """The same scans of items, and with results, that are off by rounding: each times 1 + e, e normal of deviation eps.

    eps is the distance from 1 to the dtype's next number: a multiplication and an addition round by half of it each. An
    item that is off is off in all results that it is part of, as what a scan has rounded is; results that are off have
    gradients that are, and those are scanned likewise.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def off(x: Tensor) -> Tensor:
        if x.device not in generators:
            generators[x.device] = torch.Generator(x.device).manual_seed(seed)
        drawn = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generators[x.device])
        return x * (1 + drawn * torch.finfo(x.dtype).eps)

    def disturbed(scan: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *given, **options: off(
            scan(*(off(each) if isinstance(each, Tensor) else each for each in given), **options)
        )

    return Scans(
        cumsum=disturbed(scans.cumsum),
        cumprod=disturbed(scans.cumprod),
        logcumsumexp=disturbed(scans.logcumsumexp),
        linear_scan=disturbed(scans.linear_scan),
    )
