"""Packed sequences: scans in chunks, nested tensors of jagged layout, and reductions by key."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from scanops.codegen.operator import Operator
from scanops.codegen.operators import listed
from scanops.errors import UnsupportedRequest, shown
from scanops.ops.dispatch import Given, called, plain_name
from scanops.requests import checks
from scanops.requests.call import Call
from scanops.requests.geometry import carry_shape
from scanops.requests.request import Inputs, Tensors
from scanops.requests.segments import offsets_of_chunks
from scanops.torch_private import ragged_dim

__all__ = ["chunked", "nested", "reduce_by_key"]


def chunked(tensors: Given, outs: Tensors, options: tuple[Any, ...], chunk: int, complete: Any) -> Any:
    """Return what ``dispatch.called`` returns for a scan that begins again every ``chunk`` items of a segment.

    Lines of whole chunks are scanned as a view with a dimension more; others, and segments, by offsets of the chunks.
    """
    x, mask, _, starts, offsets, initial = tensors
    op, dim, *others = options
    who = Call(op, 0).name
    given = {
        "segment_starts": starts,
        "initial": initial,
        "return_final": options[4] or None,
        "complete": complete or None,
    }
    wrong = [name for name, value in given.items() if value is not None]
    if type(chunk) is not int or chunk < 1 or wrong:
        raise UnsupportedRequest(
            f"{who}: chunk " + (f"does not go with {wrong[0]}" if wrong else "must be a positive int"),
            allowed="a positive int, beside offsets, mask, reverse, exclusive, dtype, accumulate and out",
            value=", ".join([f"chunk={shown(chunk)}", *wrong]),
            hint="pass the offsets of the chunks, which have carries" if wrong else "pass chunk=64, for example",
        )
    if isinstance(x, Tensor) and x.is_nested:
        return nested(Call(op, dim, *others), Inputs(*tensors), outs, chunk)[0]  # type: ignore[arg-type]
    checks.check_tensor(who, "x", x)
    dim = checks.check_dim(who, x.shape, dim)
    length = x.shape[dim] if x.ndim else 1
    if offsets is None and length <= chunk:
        return called(tensors, outs, False, (op, dim, *others))
    if offsets is not None or length % chunk:
        cuts = offsets_of_chunks(who, offsets, x, dim, chunk)
        return called((x, mask, None, None, cuts, None), outs, False, (op, dim, *others))
    if mask is not None:
        mask = checks.check_operand(who, "mask", mask, x)
        mask = (mask if mask.dtype == torch.bool else checks.lent_kind(mask, x)).expand(x.shape)
    rows = [
        t if t is None or t.shape != x.shape else cast(Any, t).unflatten(dim, (-1, chunk)) for t in (x, mask, *outs)
    ]
    y: Any = called((rows[0], rows[1], None, None, None, None), (rows[2],), False, (op, dim + 1, *others))  # type: ignore[arg-type]
    return y.flatten(dim, dim + 1) if outs[0] is None else outs[0]


def nested(call: Call, given: Inputs, outs: Tensors, chunk: int | None = None) -> tuple[Tensor, ...]:
    """Return the results of a scan of a nested tensor of jagged layout: nested, with the same offsets.

    Along the ragged dimension its values are scanned by its offsets; along another one they are scanned as they are.
    """
    x, mask, gate, starts, offsets, initial, _ = given
    who, ragged, own = call.name, ragged_dim(x), cast(Any, x)  # whose methods torch does not declare
    dim = checks.check_dim(who, x.shape, call.dim)
    along = dim == ragged
    carries = initial is not None or call.final
    others = {"mask": mask, "gate": gate}
    alike = all(t is None or (t.is_nested and t.shape == x.shape) or t.numel() == 1 for t in others.values())
    rules = {
        "a dimension behind that of the batch": dim > 0,
        "sequences without gaps": own.lengths() is None,
        "no out, segments or complete results": all(t is None for t in (*outs, starts, offsets)) and not call.complete,
        "masks and gates that are nested as x is, or one number": alike,
        "along a dimension that is not ragged no carries and no chunks": along or not (carries or chunk),
        "along the ragged dimension no indices": not (along and listed(call.op).indices),
    }
    for allowed, holds in rules.items():
        if not holds:
            raise UnsupportedRequest(
                f"{who}: x is nested, which needs {allowed}",
                allowed=allowed,
                value=f"x of shape {tuple(x.shape)}, dim={call.dim}",
                hint="scan x.values() along a dimension less, with offsets=x.offsets()",
            )
    values, cuts = own.values(), own.offsets() if along else None
    mask, gate = (t.values() if t is not None and t.is_nested else t for t in (mask, gate))
    if isinstance(initial, Tensor) and initial.ndim:  # (batch, ...): in the kernel's order the ragged dimension's place
        initial = initial.movedim(0, dim - 1)
    elif initial is not None:
        wide = {float: torch.float64, complex: torch.complex128}.get(type(initial))
        initial = torch.as_tensor(initial, dtype=wide, device=x.device).expand(carry_shape(values.shape, dim - 1, cuts))
    tensors = (values, mask, gate, None, cuts, initial)
    options = (call.op, dim - 1, call.reverse, call.exclusive, call.final and "segments", call.dtype, call.accumulate)
    found: Any = called(tensors, (None,) * len(outs), False, options, chunk)
    found = found if isinstance(found, tuple) else (found,)
    results = [torch.nested.nested_tensor_from_jagged(y, own.offsets(), jagged_dim=ragged) for y in found[: len(outs)]]
    return (*results, *(final.movedim(dim - 1, 0) for final in found[len(outs) :]))


def reduce_by_key(
    keys: Tensor,
    x: Tensor,
    op: str | Operator,
    dim: int = 0,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(unique, y)``: each run of equal keys once, and the reduction by ``op`` of the items of x of that run.

    ``y[k] = x[i] op x[i+1] op ... op x[j]`` along ``dim`` where keys[i] to keys[j] are the k-th run, as
    ``thrust::reduce_by_key``; of sorted keys each is unique. One pass reads the keys, one scan reads x and writes the
    carries-out of segments, and results that are dropped: some two copies of x. It waits for the GPU twice, for the
    number of runs and to check their offsets; ``torch.compile`` breaks the graph there.

    Args:
        keys: one dimension, a key for each item of x along ``dim``, on x's device.
        x: a tensor of any shape and strides.
        op, mask, dtype: as for ``scan``. Reductions have gradients as scans do.
        dim: the dimension of x that is reduced to one item for each run.

    Example:
        >>> import torch, scanops
        >>> scanops.reduce_by_key(torch.tensor([7, 7, 9]), torch.tensor([1, 2, 3]), "sum")
        (tensor([7, 9]), tensor([3, 3]))
    """
    checks.check_tensor("reduce_by_key", "keys", keys)
    checks.check_tensor("reduce_by_key", "x", x)
    dim = checks.check_dim("reduce_by_key", x.shape, dim)
    if keys.ndim != 1 or not x.ndim or len(keys) != x.shape[dim]:
        raise UnsupportedRequest(
            "reduce_by_key: keys must be one for each item along dim",
            allowed=f"keys of one dimension and x.shape[{dim}] items",
            value=f"keys.shape={tuple(keys.shape)}, x.shape={tuple(x.shape)}",
            hint="pass keys.flatten(), or another dim",
        )
    checks.check_device("reduce_by_key", "keys", keys, x)
    unique, counts = torch.unique_consecutive(keys, return_counts=True)
    options = (plain_name(op), dim, False, False, "segments", dtype, None)
    if not len(keys):  # no offsets name no segment
        y: Any = called((x, mask, None, None, None, None), (None,), False, (*options[:4], False, *options[5:]))
        return unique, y
    offsets: Any = called(
        (counts, None, None, None, None, None), (None,), True, ("sum", 0, False, False, False, None, None)
    )
    y, final = called((x, mask, None, None, offsets, None), (None,), False, options)
    return unique, final.to(y.dtype)
