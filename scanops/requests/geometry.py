"""Shapes and strides of a launch: the struct of arguments that every kernel takes, filled from tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from scanops.errors import UnsupportedRequest
from scanops.torch_private import has_storage, is_functional

if TYPE_CHECKING:
    from scanops.codegen.layouts import Layout

OperandTensors = Mapping[str, torch.Tensor]
"""The tensors a kernel reads item by item, by parameter name, as views with x's shape; x, named input, comes first."""

MAX_RANK = 24  # size of the arrays in the kernels' Geometry
ALIGNMENT = 16  # bytes; the widest access of a thread


_OPERANDS = ("input", "mask", "gate", "starts")
FURTHER = tuple(f"further{n}" for n in range(1, 8))  # operands of a fused scan beside the input
_STEP, _STRIDES = ctypes.c_longlong, ctypes.c_longlong * MAX_RANK


class _Geometry(ctypes.Structure):
    _fields_ = (
        ("rank", ctypes.c_int),
        ("size", _STRIDES),
        # of a kernel those that it has: further ones may lie past the end of its parameter
        *(
            (f"{name}_{what}", kind)
            for name in (*_OPERANDS, *FURTHER)
            for what, kind in (("stride", _STRIDES), ("step", _STEP))
        ),
    )


class Neighbours(ctypes.Structure):
    """Adjacent lines in some operand: those of one dimension, or of several dimensions that merge."""

    _fields_ = (
        ("size", ctypes.c_longlong),  # of the dimension
        ("lines", ctypes.c_longlong),  # from one of its lines to the next one's number
        *((f"{name}_stride", ctypes.c_longlong) for name in _OPERANDS),  # and in items
    )


_POINTERS = (*_OPERANDS, "output", "indices", "carry_in", "carry_out", "workspace", "offsets")


class ScanArguments(ctypes.Structure):
    """The kernel arguments, rare ones last.

    A parameter of a kernel is the bytes of a field: ``codegen.launch.FIELDS`` tells which can be. The offsets and the
    numbers behind them are one parameter, and so is the part of the geometry that a kernel has. A number that a kernel
    takes in 32 bits is the low half of the field, as hosts of GPUs are little-endian.
    """

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int) for name in ("segments", "chunk")),
        *((name, ctypes.c_longlong) for name in ("offsets_end", "carry_in_step", "lines", "length")),
        *((name, ctypes.c_int) for name in ("multiprocessors", "rows", "lane_bits", "piece", "stripes")),
        *((name, ctypes.c_void_p) for name in ("saved", *FURTHER, "third", "fourth")),
        ("neighbours", Neighbours),
        ("geometry", _Geometry),
    )


BEFORE_FURTHER = ScanArguments.geometry.offset + _Geometry.further1_stride.offset  # bytes that other scans have


def split_shape(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """Return (outer, length, inner): the sizes before, at and after ``dim``; a 0-d tensor is one item."""
    if not shape:
        return 1, 1, 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def line_shape(shape: Sequence[int], dim: int) -> torch.Size:
    """Return ``shape`` without the scanned dimension: one element per line."""
    return torch.Size(size for d, size in enumerate(shape) if d != dim)


def carry_shape(shape: Sequence[int], dim: int, offsets: torch.Tensor | None) -> torch.Size:
    """Return the shape of carries: one element per line, or with ``offsets`` per segment of each line."""
    if offsets is None:
        return line_shape(shape, dim)
    return torch.Size(offsets.numel() - 1 if d == dim else size for d, size in enumerate(shape))


def lengthen(shape: torch.Size, dim: int) -> torch.Size:
    """Return a shape with one item more along ``dim``."""
    return torch.Size(size + int(d == dim) for d, size in enumerate(shape))


def layout_of(tensor: torch.Tensor, shape: Sequence[int], dim: int) -> Layout:
    """Return the layout of an operand broadcast to ``shape``, as ``ScanSpec`` names it."""
    if tensor.is_contiguous() and tensor.shape == torch.Size(shape):
        return "dense"
    if shape[dim] > 1 and tensor.stride(dim) == 0 and _run_on(tensor, shape, dim, any_stride=True):
        return "line"
    if math.prod(shape[dim + 1 :]) == 1:
        return "rows" if tensor.stride(dim) == 1 else "strided"
    if _run_on(tensor, shape, dim):
        return "columns"
    return "step" if _repeats_items(tensor, shape, dim) else "strided"


def layouts_of(operands: Iterable[torch.Tensor], shape: Sequence[int], dim: int) -> list[Layout]:
    """Return the layouts of operands, of which the first is the input and has an item for each item of the result."""
    found = [layout_of(each, shape, dim) for each in operands]
    found[0] = "strided" if found[0] in ("line", "step") else found[0]
    # Beside columns that are not adjacent each is read alone.
    return ["strided" if each == "step" and found[0] not in ("dense", "columns") else each for each in found]


def _repeats_items(tensor: torch.Tensor, shape: Sequence[int], dim: int) -> bool:
    """Return whether as many neighbouring columns as any thread reads at once have one item."""
    inner, run = math.prod(shape[dim + 1 :]), 1
    for d in range(len(shape) - 1, dim, -1):
        if shape[d] != 1 and tensor.stride(d) != 0:
            break
        run *= shape[d]
    return run == inner or run % ALIGNMENT == 0  # one byte each at least


def _run_on(tensor: torch.Tensor, shape: Sequence[int], dim: int, any_stride: bool = False) -> bool:
    """Return whether the dimensions after ``dim`` are contiguous, or with ``any_stride`` merge to one of any stride."""
    behind = [d for d in range(len(shape) - 1, dim, -1) if shape[d] != 1]
    step = tensor.stride(behind[0]) if any_stride and behind else 1
    for d in behind:
        if tensor.stride(d) != step:
            return False
        step *= shape[d]
    return True


def is_aligned(tensor: torch.Tensor, layout: Layout, dim: int) -> bool:
    """Return whether an operand is 16-byte aligned, as far as vectorised accesses read its layout."""
    if layout not in ("dense", "columns"):
        return True
    steps = [tensor.stride(d) for d in range(dim + 1) if tensor.shape[d] != 1] if layout == "columns" else []
    return all(at % ALIGNMENT == 0 for at in (tensor.data_ptr(), *(step * tensor.element_size() for step in steps)))


def _other_dims(operands: OperandTensors, dim: int) -> list[tuple[int, ...]]:
    """Return (size, stride of each operand) of the unscanned dimensions, adjacent ones merged if all allow."""
    x = operands["input"]
    merged: list[tuple[int, ...]] = []
    for d, size in enumerate(x.shape):
        if d == dim or size == 1:
            continue
        strides = tuple(tensor.stride(d) for tensor in operands.values())
        if merged and merged[-1][1:] == tuple(stride * size for stride in strides):
            merged[-1] = (merged[-1][0] * size, *strides)
        else:
            merged.append((size, *strides))
    return merged


def fill_geometry(arguments: ScanArguments, operands: OperandTensors, dim: int) -> None:
    """Write sizes and strides of the unscanned dimensions into the arguments, adjacent ones merged."""
    geometry = arguments.geometry
    merged = _other_dims(operands, dim)
    if len(merged) > MAX_RANK:
        raise UnsupportedRequest(
            "a scan: strides must need few enough dimensions",
            allowed=f"at most {MAX_RANK} dimensions after merging adjacent ones",
            value=f"{len(merged)} dimensions",
            hint="call x.contiguous() first",
        )
    geometry.rank = len(merged)
    for d, (size, *strides) in enumerate(merged):
        geometry.size[d] = size
        for name, stride in zip(operands, strides, strict=True):
            getattr(geometry, f"{name}_stride")[d] = stride
    for name, tensor in operands.items():
        setattr(geometry, f"{name}_step", tensor.stride(dim) if tensor.ndim else 0)


def neighbours_of(operands: OperandTensors, dim: int) -> Neighbours | None:
    """Return the adjacent lines of a transposed scan: of x where rows are written, of the output where rows are read.

    None where input and output are contiguous along the same dimension: x is not transposed.
    """
    x = operands["input"]
    inner = split_shape(x.shape, dim)[2]
    merged = _other_dims(operands, dim)
    if (x.ndim and x.stride(dim) == 1) != (inner > 1):
        return None
    if inner > 1:  # dimensions before the scanned one may run on with those behind it
        size, *strides = merged[-1]
        return _neighbours(operands, min(size, inner), 1, strides)
    for number, (size, *strides) in enumerate(merged):
        if strides[0] == 1:
            return _neighbours(operands, size, math.prod(row[0] for row in merged[number + 1 :]), strides)
    return None


def _neighbours(operands: OperandTensors, size: int, lines: int, strides: Sequence[int]) -> Neighbours:
    named = {f"{name}_stride": stride for name, stride in zip(operands, strides, strict=True) if name in _OPERANDS}
    return Neighbours(size=size, lines=lines, **named)


def overlaps_itself(out: torch.Tensor) -> bool:
    """Whether two items share an address. Strides that each exceed the reach of all smaller ones need no look."""
    steps = sorted((stride, size) for size, stride in zip(out.shape, out.stride(), strict=True) if size > 1)
    reach, nested = 0, True
    for stride, size in steps:
        nested &= stride > reach
        reach += stride * (size - 1)
    if nested:
        return False
    places = torch.zeros(1, dtype=torch.int64)
    for stride, size in steps:
        places = (places[:, None] + torch.arange(size) * stride).flatten()
    return len(set(places.tolist())) < places.numel()


def span_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the first and the last byte address that a tensor touches; None where its items lie at no address.

    So do those of traced, batched, fake tensors and other subclasses, and of what ``torch.func.functionalize`` wraps,
    which has a storage, at no address.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    plain = plain and not is_functional(tensor)
    if not (plain and tensor.device.type != "meta" and has_storage(tensor) and tensor.numel() > 0):
        return None
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() - 1


def separate(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
    """Return the results contiguous, each in memory of its own, which is not that of a tensor in ``given``.

    PyTorch's operators may return views, and a fused scan an operand, or one result twice. A batch of gradients has no
    memory that could be compared: it is copied.
    """
    found, known = [], {each.untyped_storage().data_ptr() for each in given if has_storage(each)}
    for y in results:
        memory = y.untyped_storage() if has_storage(y) else None
        is_own = memory is not None and memory.nbytes() == y.nbytes and memory.data_ptr() not in known
        found.append(y if is_own and y.is_contiguous() else y.clone(memory_format=torch.contiguous_format))
        if memory is not None:
            known.add(memory.data_ptr())
    return found
