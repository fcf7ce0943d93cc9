"""The error of a result relative to the magnitude that rounding acts on, and its limit."""

from __future__ import annotations

import math

import torch

from scanops.fallback import reference, scans

__all__ = ["limit", "max_error"]


def max_error(
    out: torch.Tensor,
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> float:
    """The largest of ``|out - exact| / magnitude``; inf where a NaN came out.

    The exact result is float64's, the magnitude of a result the same scan of ``|x|``: sums that cancel are not held to
    their small value, nor products that grow to an absolute bound.
    """
    # The sequential reference takes a minute on a GPU for long rows; PyTorch's operators replace it there.
    exactly = scans.scan if x.is_cuda else reference.scan
    wide = torch.float64
    exact = exactly(x.to(wide), op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=wide)
    magnitude = scans.scan(x.to(wide).abs(), op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=wide)
    off = (out.to(wide) - exact).abs_() / magnitude.clamp_min_(torch.finfo(wide).tiny)
    return float(off.nan_to_num_(nan=math.inf).max())


def limit(op: str, length: int) -> float:
    """What rounding to float32 explains for rows of ``length``, and a lost, doubled or misplaced item exceeds.

    A sum: an item passes through some dozens of additions on its way into a result, each off by at most 2^-24 of a
    partial sum, which is at most the running sum of magnitudes; 128 is above that for every plan. A product multiplies
    the relative errors of all its n factors: about sqrt(n) * 2^-24 if they are independent, and eight times that is
    out of reach of chance.
    """
    roundings = {"sum": min(128.0, length), "prod": min(8.0 * math.sqrt(length), length)}
    return roundings[op] * 2.0**-24
