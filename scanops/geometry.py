"""Where the operands of a launch lie: the struct every kernel takes, filled from tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from scanops.codegen.spec import Layout
from scanops.errors import UnsupportedRequest

__all__ = [
    "ALIGNMENT",
    "MAX_RANK",
    "ScanArguments",
    "fill_geometry",
    "is_aligned",
    "is_dense",
    "layout_of",
    "split_shape",
]

MAX_RANK = 24  # size of the arrays in the kernels' Geometry
ALIGNMENT = 16  # bytes; the widest access of a thread


class _Geometry(ctypes.Structure):
    _fields_ = (
        ("rank", ctypes.c_int),
        ("size", ctypes.c_longlong * MAX_RANK),
        ("input_stride", ctypes.c_longlong * MAX_RANK),
        ("mask_stride", ctypes.c_longlong * MAX_RANK),
        ("input_step", ctypes.c_longlong),
        ("mask_step", ctypes.c_longlong),
    )


class ScanArguments(ctypes.Structure):
    """templates/stages/geometry.cuh.j2 declares the same; kernels of dense operands read all but the geometry."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("lines", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("multiprocessors", ctypes.c_int),
        ("geometry", _Geometry),
    )


def split_shape(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """(outer, length, inner): the sizes before, at and after ``dim``; a 0-d tensor is one item."""
    if not shape:
        return 1, 1, 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def is_dense(tensor: torch.Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor lies in memory exactly as a contiguous tensor of ``shape`` does."""
    return tensor.shape == torch.Size(shape) and tensor.is_contiguous()


def layout_of(tensor: torch.Tensor, shape: Sequence[int], dim: int) -> Layout:
    """How an operand broadcast to ``shape`` lies, in ``ScanSpec``'s words."""
    if is_dense(tensor, shape):
        return "dense"
    if math.prod(shape[dim + 1 :]) == 1:
        return "rows" if tensor.stride(dim) == 1 else "strided"
    return "columns" if _run_on(tensor, shape, dim) else "strided"


def _run_on(tensor: torch.Tensor, shape: Sequence[int], dim: int) -> bool:
    """Whether the dimensions after ``dim`` are one stretch of memory."""
    step = 1
    for d in range(len(shape) - 1, dim, -1):
        if shape[d] != 1 and tensor.stride(d) != step:
            return False
        step *= shape[d]
    return True


def is_aligned(tensor: torch.Tensor, layout: Layout, dim: int) -> bool:
    """Whether an operand keeps to the boundary of a thread's accesses, as far as its layout lets it be read by them."""
    if layout not in ("dense", "columns"):
        return True
    steps = [tensor.stride(d) for d in range(dim + 1) if tensor.shape[d] != 1] if layout == "columns" else []
    return all(at % ALIGNMENT == 0 for at in (tensor.data_ptr(), *(step * tensor.element_size() for step in steps)))


def fill_geometry(arguments: ScanArguments, x: torch.Tensor, mask: torch.Tensor | None, dim: int) -> None:
    """Write sizes and strides of the dimensions that are not scanned, neighbours merged where they run on."""
    other = mask if mask is not None else x
    geometry = arguments.geometry
    rows = [(x.shape[d], x.stride(d), other.stride(d)) for d in range(x.ndim) if d != dim and x.shape[d] != 1]
    merged: list[tuple[int, int, int]] = []
    for size, input_stride, mask_stride in rows:
        if merged and merged[-1][1:] == (input_stride * size, mask_stride * size):
            merged[-1] = (merged[-1][0] * size, input_stride, mask_stride)
        else:
            merged.append((size, input_stride, mask_stride))
    if len(merged) > MAX_RANK:
        raise UnsupportedRequest(
            "a scan of a tensor whose strides need this many dimensions",
            allowed=f"{MAX_RANK} after merging those that run on",
            value=f"{len(merged)} dimensions",
            hint="call x.contiguous() first",
        )
    geometry.rank = len(merged)
    for d, (size, input_stride, mask_stride) in enumerate(merged):
        geometry.size[d], geometry.input_stride[d], geometry.mask_stride[d] = size, input_stride, mask_stride
    geometry.input_step = x.stride(dim) if x.ndim else 0
    geometry.mask_step = other.stride(dim) if x.ndim else 0
