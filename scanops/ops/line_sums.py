"""Gradients of operands that are broadcast along the scanned dimension, from the sums of kernels over each line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from scanops.ops.saved import sum_to
from scanops.requests.call import Call
from scanops.requests.geometry import split_shape
from scanops.requests.request import Inputs, Tensors, check_request
from scanops.runtime.call_cache import run_on_tape
from scanops.runtime.recipes import Tape

ShapeAndType = tuple[torch.Size, torch.dtype]  # what a gradient is to be like

# Of all parts. H200, us after another scan, by a scan and by torch.sum: 2 x 12 x 48, 1.6, 4.2; 2 x 300 x 64, 2.4, 12.7;
# 160 x 512, 2.1, 8.0; 64 x 4096, 2.7, 5.4. A scan also writes what torch.sum does not.
MOST_PARTS = 2**20


def sums_lines(shape: torch.Size, whole: torch.Size, dim: int) -> bool:
    """Whether kernels sum the gradient of an operand over each line: one that is broadcast along columns of ``whole``.

    The sums of a line, one for each tile, are to be added by ``add_line_sums``.
    """
    outer, length, inner = split_shape(whole, dim)
    at = dim - len(whole) + len(shape)  # of the scanned dimension in ``shape``
    return outer > 0 and length > 1 and inner > 1 and (at < 0 or shape[at] == 1)


def add_line_sums(sums: torch.Tensor, dim: int, likes: Sequence[ShapeAndType], tape: Tape) -> Tensors:
    """Return gradients from sums over lines: of each one for each tile of a line.

    They are the carry-out of a scan where parts of one sum lie in front of what they are parts of, and are few.
    """
    shape, dtype = likes[0]
    count = _count_parts(sums.unsqueeze(dim + 2), shape) if len(set(likes)) == 1 else 0
    if count > 1 and sums.numel() <= MOST_PARTS and sums.is_complex() == dtype.is_complex:
        parts = tape.view(lambda whole: whole.view(len(likes), count, -1), sums)
        results = run_on_tape(check_request(Call("sum", 1, final=True), Inputs(parts)), tape)
        if results is not None:
            return tape.call(partial(_add_parts, shape=shape, dtype=dtype), results[-1])
    return tape.call(partial(_add_by_torch, dim=dim, likes=likes), sums)


def _count_parts(parts: torch.Tensor, shape: torch.Size) -> int:
    """How many parts a sum has, if all are in front of the dimensions of ``shape``; else 0."""
    ahead = parts.ndim - len(shape)
    sizes = (1,) * (ahead - 1) + tuple(shape)
    summed = [d for d, size in enumerate(sizes) if size == 1 != parts.shape[d + 1]]
    kept = [d for d, size in enumerate(sizes) if size != 1]
    in_front = not kept or not summed or summed[-1] < kept[0]
    return math.prod(parts.shape[d + 1] for d in summed) if in_front else 0


def _add_by_torch(sums: torch.Tensor, *, dim: int, likes: Sequence[ShapeAndType]) -> tuple[torch.Tensor, ...]:
    parts = sums.unsqueeze(dim + 2)
    if len(set(likes)) == 1:  # one operator for all
        return _add_parts(parts, *likes[0])
    return tuple(_add_parts(parts[n : n + 1], *like)[0] for n, like in enumerate(likes))


def _add_parts(parts: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    count = len(parts)
    if parts.numel() > count * shape.numel():
        ones = (1,) * (parts.ndim - 1 - len(shape))
        parts = sum_to(parts, shape=torch.Size((count, *ones, *shape)), dtype=parts.dtype)
    return parts.reshape(count, *shape).to(dtype).unbind()
