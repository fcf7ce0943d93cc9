"""Packed sequences as calls of plain scans: chunks of lines and of segments, and nested tensors of jagged layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.codegen.operators import find_operator
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.checks import check_dim, check_operand, check_out, check_tensor
from scanops.requests.constants import make_constant
from scanops.requests.geometry import carry_shape
from scanops.requests.request import Inputs
from scanops.requests.segments import MAX_CHUNK, check_chunk, make_line_offsets
from scanops.requests.torch_state import is_symbol
from scanops.torch_private import ragged_dim

Outs = tuple[Tensor | None, ...]


class PlainCall(NamedTuple):
    """The call of a plain scan, not checked yet, and what makes the packed results of its own."""

    call: Call
    inputs: Inputs
    outs: Outs
    restore: Callable[[Any], Any]


def is_jagged(x: Any) -> bool:
    """Whether x is a nested tensor of jagged layout."""
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def split_chunks(call: Call, inputs: Inputs, outs: Outs) -> PlainCall:
    """Return the call for a scan that begins again every so many items, or raise UnsupportedRequest.

    Lines of whole chunks are a view with a dimension more. Otherwise the chunks of segments are found where the scan
    is computed, from the values that the offsets have then; a line is one segment.
    """
    x: Any = inputs.x
    _, mask, _, starts, offsets, initial, *_ = inputs
    who, chunk = call.name, call.chunk
    flags = {"return_final": call.final, "complete": call.complete}
    check_chunk(who, chunk, segment_starts=starts, initial=initial, **flags)
    check_tensor(who, "x", x)
    dim, chunk = check_dim(who, x.shape, call.dim), min(cast(int, chunk), MAX_CHUNK)
    chunked, call = replace(call, dim=dim, chunk=chunk), replace(call, dim=dim, chunk=None)
    plain = PlainCall(call, Inputs(x, mask, offsets=offsets), outs, lambda y: y)
    if not x.ndim:
        return plain
    length = x.shape[dim]
    if offsets is None and is_symbol(length):  # which must not be compared
        return plain._replace(call=chunked)
    if offsets is not None or length % min(chunk, max(1, length)):
        if offsets is None and not (is_compiling() and type(x) is Tensor):  # else where the operator is computed
            offsets = make_constant(partial(make_line_offsets, x, dim), x.device, "offsets", length)
            plain = plain._replace(inputs=Inputs(x, mask, offsets=offsets))
        return plain._replace(call=chunked)
    if length <= chunk:
        return plain
    if mask is not None:
        mask = check_operand(who, "mask", mask, x)
        mask = mask.expand(x.shape) if mask.ndim else mask
    (out,) = outs
    if out is not None:
        check_out(who, "out", out, x, {"x": x, "mask": mask}, call.dtype, x.shape)
    rows: Any = [
        each.unflatten(dim, (-1, chunk)) if each is not None and each.ndim else each for each in (x, mask, out)
    ]

    def restore(y: Tensor) -> Tensor:
        return y.flatten(dim, dim + 1) if out is None else out

    return PlainCall(replace(call, dim=dim + 1), Inputs(*rows[:2]), (rows[2],), restore)


def unpack_nested(call: Call, inputs: Inputs, outs: Outs) -> PlainCall:
    """Return the call on the values of a nested tensor, or raise UnsupportedRequest.

    Along the ragged dimension its offsets are those of segments; along another one the values are scanned as they are.
    """
    x: Any = inputs.x
    _, mask, gate, starts, offsets, initial, *_ = inputs
    who, ragged = call.name, ragged_dim(x)
    dim = check_dim(who, x.shape, call.dim)
    along, carries = dim == ragged, initial is not None or call.final
    alike = all(t is None or (t.is_nested and t.shape == x.shape) or t.numel() == 1 for t in (mask, gate))
    for allowed, holds in {
        "a dimension behind that of the batch": dim > 0,
        "sequences without gaps": x.lengths() is None,
        "no out, segments or complete results": all(t is None for t in (*outs, starts, offsets)) and not call.complete,
        "masks and gates that are nested as x is, or one number": alike,
        "along a dimension that is not ragged no carries and no chunks": along or not (carries or call.chunk),
        "along the ragged dimension no indices": not (along and find_operator(call.op).indices),
    }.items():
        if not holds:
            raise UnsupportedRequest(
                f"{who}: x is nested, which needs {allowed}",
                allowed=allowed,
                value=f"x of shape {tuple(x.shape)}, dim={dim}",
                hint="scan x.values() along a dimension less, with offsets=x.offsets()",
            )
    values, cuts = x.values(), x.offsets() if along else None
    mask, gate = (t.values() if t is not None and t.is_nested else t for t in (mask, gate))
    if initial is not None:
        initial = _arrange_carries(who, initial, x, carry_shape(values.shape, dim - 1, cuts), dim - 1)

    def restore(found: Any) -> Any:
        found = found if isinstance(found, tuple) else (found,)
        results = [
            torch.nested.nested_tensor_from_jagged(y, x.offsets(), jagged_dim=ragged) for y in found[: len(outs)]
        ]
        results += [last.movedim(dim - 1, 0) for last in found[len(outs) :]]
        return results[0] if len(results) == 1 else tuple(results)

    inputs = Inputs(values, mask, gate, offsets=cuts, initial=initial)
    return PlainCall(replace(call, dim=dim - 1, per_segment=bool(call.final)), inputs, outs, restore)


def _arrange_carries(who: str, initial: Any, x: Tensor, shape: torch.Size, place: int) -> Tensor:
    """Return a carry-in that broadcasts to (batch, ...) in the order of the values: sequences at ``place``."""
    if not isinstance(initial, Tensor):
        wide = {float: torch.float64, complex: torch.complex128}.get(type(initial))
        initial = torch.as_tensor(initial, dtype=wide, device=x.device)
    by_sequence = torch.Size((shape[place], *shape[:place], *shape[place + 1 :]))
    of = "the sequences' shape without the ragged dimension"
    checked = check_operand(who, "initial", initial, x, by_sequence, of)
    return checked.expand(by_sequence).movedim(0, place)
