"""Whether results are right: slices against float64 or int64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from scanops.bench.tensors import Case
from scanops.fallback import scans
from scanops.fallback.accuracy import limit, max_error

__all__ = ["is_right", "same_bits"]

CHECKED_ITEMS = 2**22  # in each slice, one at either end and one in the middle
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_right(case: Case, y: torch.Tensor) -> bool:
    """Whether slices of ``y`` are the case's scan, to within what rounding explains."""
    what, dim = case.cell.what, case.cell.dim
    flags: dict[str, Any] = {"reverse": what.reverse, "exclusive": what.exclusive}
    for other, start, width in _slices(case.cell.shape, dim):
        x, got = case.x.narrow(other, start, width), y.narrow(other, start, width)
        mask = None if case.mask is None else case.mask.narrow(other, start, width)
        if not x.is_floating_point():
            if not torch.equal(got, scans.scan(x, what.op, dim, mask=mask, dtype=got.dtype, **flags)):
                return False
            continue
        length = case.cell.length
        bound = max(limit(what.op, length), 2 * math.sqrt(length / 64) * 2.0**-24) + torch.finfo(got.dtype).eps
        if not max_error(got, x, what.op, dim, mask=mask, **flags) <= bound:
            return False
    return True


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results are the same bit by bit, NaN or not."""
    bits = _BITS[first.element_size()]
    return torch.equal(first.view(bits), second.view(bits))


def _slices(shape: tuple[int, ...], dim: int) -> Iterator[tuple[int, int, int]]:
    """(other dimension, start, width) of slices of whole lines; the whole tensor where there is one line."""
    others = [d for d in range(len(shape)) if d != dim]
    other = max(others, key=lambda d: shape[d], default=dim)
    if other == dim:
        yield dim, 0, shape[dim]
        return
    size = shape[other]
    width = max(1, min(size, CHECKED_ITEMS * size // math.prod(shape)))
    for start in sorted({0, (size - width) // 2, size - width}):
        yield other, start, width
