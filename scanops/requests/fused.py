"""Fused scans: the shape that their tensors have together, the order in which a kernel reads them, and its outputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.compiler import is_compiling

from scanops.codegen.dtypes import DTYPES, accumulator_of
from scanops.requests.geometry import layout_of
from scanops.requests.torch_state import is_traced

if TYPE_CHECKING:
    from scanops.codegen.fusion.fusion import Fusion

_PLACES = ("output", "indices", "third", "fourth")  # the fields of ScanArguments for outputs


def broadcast_shape(tensors: Sequence[torch.Tensor]) -> torch.Size:
    """Return the shape that tensors broadcast to. Raises RuntimeError where there is none."""
    if is_compiling() or is_traced():  # in comparisons symbols of sizes would be constants
        return torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-any-return, no-untyped-call]
    shapes = [each.shape for each in tensors]
    if all([each == shapes[0] for each in shapes]):
        return shapes[0]
    try:
        return _broadcast(*shapes)
    except TypeError:  # symbols have no hash
        return _broadcast.__wrapped__(*shapes)


@functools.lru_cache(maxsize=1024)
def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return, no-untyped-call]


def order_operands(fusion: Fusion, tensors: Sequence[torch.Tensor], shape: torch.Size, dim: int) -> tuple[int, ...]:
    """Return the operands that the expressions read, first one that lies as the output does, if there is any."""
    layouts = [layout_of(each.expand(shape), shape, dim) for each in tensors]
    read = fusion.read or (0,)
    moved = {place for place, each in enumerate(fusion.operands) if each.start is not None}
    first = min(read, key=lambda at: (at in moved, layouts[at] != "dense", layouts[at] == "line", at))
    return tuple(sorted(read, key=lambda place: place != first))


def list_places(fusion: Fusion, shape: torch.Size) -> list[tuple[str, torch.Size, torch.dtype]]:
    """Return kernel argument, shape and dtype of each output."""
    dtypes = [getattr(torch, dtype) for _, dtype in fusion.outputs]
    return [(name, shape, dtype) for name, dtype in zip(_PLACES, dtypes, strict=False)]


def carry_dtype_of(fusion: Fusion) -> torch.dtype:
    """Return the dtype of carry-in and carry-out."""
    found: torch.dtype = getattr(torch, accumulator_of(DTYPES[fusion.scanned]).name)
    return found if found.is_floating_point else getattr(torch, fusion.scanned)
