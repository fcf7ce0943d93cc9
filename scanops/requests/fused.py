"""Fused scans: the shape that their tensors have together, the order in which a kernel reads them, and its outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling

from scanops.codegen.dtypes import DTYPES, accumulator_of
from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.geometry import layout_of
from scanops.requests.torch_state import is_traced

if TYPE_CHECKING:
    from scanops.codegen.fusion.fusion import Fusion
    from scanops.requests.call import Call

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


def without_dims(shape: Sequence[int], dims: Sequence[int]) -> torch.Size:
    """Return a shape without some dimensions: that of the results of a scan that are summed over them."""
    return torch.Size(size for d, size in enumerate(shape) if d not in dims)


def list_places(fusion: Fusion, shape: torch.Size) -> list[tuple[str, torch.Size, torch.dtype]]:
    """Return kernel argument, shape and dtype of each output, of the shape of the results."""
    dtypes = [getattr(torch, dtype) for _, dtype in fusion.outputs]
    return [(name, shape, dtype) for name, dtype in zip(_PLACES, dtypes, strict=False)]


def carry_dtype_of(fusion: Fusion) -> torch.dtype:
    """Return the dtype of carry-in and carry-out."""
    found: torch.dtype = getattr(torch, accumulator_of(DTYPES[fusion.scanned]).name)
    return found if found.is_floating_point else getattr(torch, fusion.scanned)


MOST_SUMMED = 256  # lines whose results are added up


def check_summed(who: str, dims: Any, shape: torch.Size, dim: int) -> tuple[int, ...]:
    """Return the dimensions that results are summed over, each counted from 0, in order.

    Raises UnsupportedRequest for such that the broadcast shape has not, the scanned one, and too many lines.
    """
    given = list(dims) if isinstance(dims, tuple | list) else [dims]
    rank = len(shape)
    if (
        not given
        or any([type(each) is not int or not -rank <= each < rank for each in given])
        or len({each % rank for each in given}) < len(given)
        or dim in [each % rank for each in given]
    ):
        raise UnsupportedRequest(
            f"{who}: sum must name dimensions that are not scanned",
            allowed=f"dimensions from {-rank} to {rank - 1} of the broadcast shape, each once, not {dim}",
            value=f"sum={format_value(dims)}, shape {tuple(shape)}, dim={dim}",
            hint="pass sum=1, for example, or sum=(1, 2)",
        )
    found = tuple(sorted(each % rank for each in given))
    count = math.prod(shape[each] for each in found)
    if not 1 <= count <= MOST_SUMMED:
        raise UnsupportedRequest(
            f"{who}: sum adds up the results of 1 to {MOST_SUMMED} lines",
            allowed=f"dimensions of together 1 to {MOST_SUMMED} lines",
            value=f"{count} lines, sum={format_value(dims)}, shape {tuple(shape)}",
            hint="leave sum out, and call .sum(d) of the result",
        )
    return found


def check_operands_of_sums(who: str, fusion: Fusion, tensors: Sequence[torch.Tensor], call: Call) -> None:
    """Raise unless what is computed of sums reads tensors alone that do not vary over the summed dimensions."""
    rank = max(each.ndim for each in tensors)
    for place in fusion.read_above:
        shape = tensors[place].shape
        sizes = [shape[d - rank] for d in call.summed if d - rank >= -len(shape)]
        if any([size != 1 for size in sizes]):
            raise UnsupportedRequest(
                f"{who}: finish reads tensor {place}, which varies over the dimensions that are summed",
                allowed="tensors of size 1 in the dimensions of sum",
                value=f"tensor {place} of shape {tuple(shape)}, sum={call.summed}",
                hint="read it in then, which sees every line",
            )
