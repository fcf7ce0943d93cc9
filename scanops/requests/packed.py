"""Calls for packed sequences as calls of plain scans: in chunks, and of nested tensors of jagged layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from scanops.codegen.operators import listed
from scanops.errors import UnsupportedRequest, shown
from scanops.requests import checks
from scanops.requests.call import Call
from scanops.requests.geometry import carry_shape
from scanops.requests.segments import offsets_of_chunks
from scanops.torch_private import ragged_dim

Outs = tuple[Tensor | None, ...]


class Unpacked(NamedTuple):
    """The call of a plain scan, as ``dispatch.called`` takes it, and what makes the results of the packed one."""

    tensors: tuple[Any, ...]
    outs: Outs
    options: tuple[Any, ...]
    chunk: int | None
    restored: Callable[[Any], Any]


def is_jagged(x: Any) -> bool:
    """Whether x is a nested tensor of jagged layout."""
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def unpacked(tensors: tuple[Any, ...], outs: Outs, complete: Any, options: tuple[Any, ...], chunk: Any) -> Unpacked:
    """Return the call of a plain scan that gives the results of this one, or raise UnsupportedRequest."""
    x, mask, _, starts, offsets, initial = tensors
    op, dim, *others = options
    who = Call(op, 0).name
    others_given = {"segment_starts": starts, "initial": initial, "return_final": options[4], "complete": complete}
    wrong = [name for name, value in others_given.items() if value is not None and value is not False]
    if chunk is not None and (type(chunk) is not int or chunk < 1 or wrong):
        raise UnsupportedRequest(
            f"{who}: chunk " + (f"does not go with {wrong[0]}" if wrong else "must be a positive int"),
            allowed="a positive int, beside offsets, mask, reverse, exclusive, dtype, accumulate and out",
            value=", ".join([f"chunk={shown(chunk)}", *wrong]),
            hint="pass the offsets of the chunks, which have carries" if wrong else "pass chunk=64, for example",
        )
    if is_jagged(x):
        return _nested(tensors, outs, complete, options, chunk)
    assert chunk is not None  # such calls alone, and those of nested tensors, come here
    checks.check_tensor(who, "x", x)
    dim = checks.check_dim(who, x.shape, dim)
    length = x.shape[dim] if x.ndim else 1
    if offsets is not None or length % min(chunk, max(1, length)):
        offsets = offsets_of_chunks(who, offsets, x, dim, chunk)
    if offsets is not None or length <= chunk:
        return Unpacked((x, mask, None, None, offsets, None), outs, (op, dim, *others), None, lambda y: y)
    # Lines of whole chunks are a view with a dimension more.
    if mask is not None:
        mask = checks.check_operand(who, "mask", mask, x)
        mask = (mask if mask.dtype == torch.bool else checks.lent_kind(mask, x)).expand(x.shape)
    rows = [
        t if t is None or t.shape != x.shape else cast(Any, t).unflatten(dim, (-1, chunk)) for t in (x, mask, *outs)
    ]
    return Unpacked(
        (*rows[:2], None, None, None, None), (rows[2],), (op, dim + 1, *others), None,
        lambda y: y.flatten(dim, dim + 1) if outs[0] is None else outs[0],
    )  # fmt: skip


def _nested(tensors: tuple[Any, ...], outs: Outs, complete: Any, options: tuple[Any, ...], chunk: Any) -> Unpacked:
    """The values of a nested tensor: along the ragged dimension by its offsets, along another one as they are."""
    x, mask, gate, starts, offsets, initial = tensors
    op, dim, reverse, exclusive, final, *others = options
    who, ragged = Call(op, 0).name, ragged_dim(x)
    dim = checks.check_dim(who, x.shape, dim)
    along, carries = dim == ragged, initial is not None or final
    alike = all(t is None or (t.is_nested and t.shape == x.shape) or t.numel() == 1 for t in (mask, gate))
    for allowed, holds in {
        "a dimension behind that of the batch": dim > 0,
        "sequences without gaps": x.lengths() is None,
        "no out, segments or complete results": all(t is None for t in (*outs, starts, offsets)) and not complete,
        "masks and gates that are nested as x is, or one number": alike,
        "along a dimension that is not ragged no carries and no chunks": along or not (carries or chunk),
        "along the ragged dimension no indices": not (along and listed(op).indices),
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
    if isinstance(initial, Tensor) and initial.ndim:  # (batch, ...): in the kernel's order the ragged dimension's place
        initial = initial.movedim(0, dim - 1)
    elif initial is not None:
        wide = {float: torch.float64, complex: torch.complex128}.get(type(initial))
        initial = torch.as_tensor(initial, dtype=wide, device=x.device).expand(carry_shape(values.shape, dim - 1, cuts))

    def restored(found: Any) -> Any:
        found = found if isinstance(found, tuple) else (found,)
        results = [
            torch.nested.nested_tensor_from_jagged(y, x.offsets(), jagged_dim=ragged) for y in found[: len(outs)]
        ]
        results += [last.movedim(dim - 1, 0) for last in found[len(outs) :]]
        return results[0] if len(results) == 1 else tuple(results)

    options = (op, dim - 1, reverse, exclusive, final and "segments", *others)
    return Unpacked((values, mask, gate, None, cuts, initial), outs, options, chunk, restored)
