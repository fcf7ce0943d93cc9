"""What one rank computes of a sharded scan: the state of its shard, the carry from the ranks before, its results.

Pure functions of tensors: nothing here communicates. A call is, on each rank,

    totals -> exchange -> fold -> finish,        and backward: entry -> exchange -> fold_back -> the local gradient

where ``totals`` is the state of the shard alone, ``fold`` scans the states of all ranks in scan order, which gives the
carry into each shard, and ``finish`` scans the shard with that carry-in. Backward, the gradient r[k] of the carry out
of shard k is a recurrence over ranks against scan order, r[k-1] = slope[k] * r[k] + entry[k], where ``entry`` is the
gradient of the carry-in from the shard's own results and ``slope`` the derivative of its carry-out by its carry-in.

Source: two-pass scans over processors as in Blelloch, "Prefix Sums and Their Applications" (1990), section 1.3; the
recurrence backward as in Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from scanops.codegen.operators import Operator, listed
from scanops.errors import UnsupportedRequest
from scanops.ops.dispatch import call_of, followed, served
from scanops.requests.call import Call, autocast
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, checked
from scanops.requests.segments import check_starts
from scanops.runtime import native

__all__ = ["Carry", "Shard", "entry", "finish", "fold", "fold_back", "recorded_with", "shard_of", "slope", "totals"]

States = tuple[Tensor, ...]
OTHERS = ("mask", "gate", "starts", "offsets", "initial")  # the tensors of a scan beside x
# Reductions that read a shard once, where autograd does not record: in the dtype of the carry.
_REDUCED: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, dim, dtype: x.sum(dim, dtype=dtype),
    "prod": lambda x, dim, dtype: x.prod(dim, dtype=dtype),
    "max": lambda x, dim, dtype: x.amax(dim).to(dtype),
    "min": lambda x, dim, dtype: x.amin(dim).to(dtype),
    "logcumsumexp": lambda x, dim, dtype: x.to(dtype).logsumexp(dim),
}
_REDUCIBLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a call whose arguments have been checked."""

    call: Call  # for this shard alone: dim counts from 0; ``final`` is not set
    tensors: Inputs  # offsets are head flags here
    carry: torch.dtype  # of states and carries
    result: torch.dtype
    final: bool  # whether the carry-out of the whole line is returned

    @property
    def row(self) -> Operator:
        """The operator's row of the table."""
        return listed(self.call.op)

    @property
    def length(self) -> int:
        """The number of items of each line in this shard."""
        return self.tensors.x.shape[self.call.dim]

    @property
    def lines(self) -> torch.Size:
        """x's shape without the scanned dimension."""
        return line_shape(self.tensors.x.shape, self.call.dim)

    @property
    def valued(self) -> Shard:
        """The scan that gives the values of ``cummax`` or ``cummin`` alone: its gradients are those of the values."""
        return replace(self, call=replace(self.call, op=self.call.op.removeprefix("cum"), dtype=None))


class Carry(NamedTuple):
    """The carry into a shard and out of the line's last one, of each line."""

    before: Tensor | None  # None: the shard is the first in scan order, and there is no initial value
    final: Tensor
    place: Tensor | None = None  # where in the line the carry-in comes from, -1 for nowhere; for indices alone


def shard_of(call: Call, given: Inputs, offsets: Tensor | None) -> Shard:
    """Return the shard of a call, its arguments checked but for the values of ``offsets``.

    Raises UnsupportedRequest, as the scan of one GPU does, and for an operator whose states cannot be exchanged.
    """
    if call.dtype is None and torch.is_autocast_enabled("cuda") and isinstance(given.x, Tensor):
        call = replace(call, dtype=autocast(call.op, given.x))
    request = checked(call, given)
    if given.starts is not None and offsets is not None:
        check_starts(call.name, given.starts, offsets, request.x)
    row = request.operator
    if not is_exchanged(row) or request.x.ndim == 0:
        raise UnsupportedRequest(
            f"{call.name}: the dimension cannot be sharded",
            allowed="tensors with a dimension, and operators whose state is an element: lift=('x',), project='state'",
            value=f"x.shape={tuple(request.x.shape)}, op={row.name!r} with lift={row.lift}, project={row.project!r}",
            hint="gather the dimension, or carry the state from rank to rank with initial= and return_final=True",
        )
    tensors = given._replace(mask=request.inputs.mask, gate=request.inputs.gate, offsets=offsets)
    local = replace(call, dim=request.call.dim, final=False)
    return Shard(call=local, tensors=tensors, carry=request.carry_dtype, result=request.dtype, final=call.final)


def is_exchanged(row: Operator) -> bool:
    """Return whether ranks can exchange the states of an operator: those that are an element, or known here."""
    return row.of_elements or bool(row.indices) or row.name in ("linear", "logcumsumexp") or row.gives == "bool"


def scanned(call: Call, x: Tensor, out: Tensor | None = None, **others: Tensor | complex | None) -> Any:
    """Return what the scan of one GPU gives, values in ``out``; ``others`` are named as in ``OTHERS``."""
    tensors = (x, *(others.get(name) for name in OTHERS))
    outs = (out, None) if listed(call.op).indices else (out,)
    options = call.values()
    if out is None and tensors[4] is None and native.served is not None and not is_dynamo_compiling():
        found = native.served(tensors, options)
        if found is not None:
            return found
    call, given, eager = call_of(tensors, outs, False, options)
    results = served(call, given, outs, eager=True) if eager else followed(call, given, outs)
    return results if call.final or len(outs) > 1 else results[0]


# ---- forward


def totals(shard: Shard, start: Tensor | int, *, recorded: bool = False) -> States:
    """Return the state of each line of the shard alone, all of one shape; ``start`` is where the shard lies in a line.

    The value; of recurrences also the product of the gates; of ``cummax`` and ``cummin`` also the index in the whole
    line, -1 for none; with segments also whether one begins in the shard, which hides what is carried in. ``recorded``:
    whether gradients are taken of the states, and so follow the operator's own rules.
    """
    call, (x, mask, gate, starts, *_), row = shard.call, shard.tensors, shard.row
    local = replace(call, exclusive=False, final=True)
    if row.indices:
        found = _last_of(shard, start)
    elif not recorded and mask is starts is None and not call.compensated and _is_reducible(shard):
        found = (_REDUCED[row.name](x, call.dim, shard.carry),)
    else:
        given = {"mask": mask, "gate": gate, "starts": starts}
        found = (scanned(local, x, **given)[1].to(shard.carry),)
    if gate is not None:
        keep = mask if mask is not None and mask.dtype == torch.bool else None
        found = (*found, _product_of_gates(shard, gate.expand(x.shape), keep))
    if starts is not None:
        found = (*found, starts.expand(x.shape).any(call.dim))
    return found


def fold(
    shard: Shard, states: States, initial: Tensor | complex | None, positions: Sequence[int], *, recorded: bool = False
) -> list[Carry]:
    """Return the carry into the shards at ``positions`` of scan order, from the states of all shards in that order.

    ``recorded``: whether gradients are taken of it. Then the carry depends on the states of all shards at every
    position, the first included: a backward pass is a graph of one shape on all ranks, with the same exchanges.
    """
    value, *others = states
    begins = others.pop() if shard.tensors.starts is not None else None
    call = replace(shard.call, dim=0, reverse=False, exclusive=False, dtype=shard.carry)
    given: dict[str, Any] = {"starts": begins, "initial": initial}
    at = None
    if shard.row.indices:
        places = others[0]
        after, ranks = scanned(replace(call, dtype=None), value, mask=places >= 0, **given)[:2]
        at = torch.where(ranks >= 0, places.gather(0, ranks.clamp(min=0)), -1)
    elif shard.row.gated:
        after = scanned(call, value, gate=others[0], **given)
    else:
        after = scanned(call, value, **given)
    if recorded:
        gate = others[0][:1] if others else None
        first = scanned(replace(call, exclusive=True), value[:1], initial=initial, gate=gate)
        into = torch.cat([first, after])
        return [Carry(into[position], after[-1]) for position in positions]
    first = initial if isinstance(initial, Tensor) or initial is None else torch.full_like(after[0], initial)
    return [
        Carry(after[k - 1], after[-1], None if at is None else at[k - 1]) if k else Carry(first, after[-1])
        for k in positions
    ]


def finish(shard: Shard, carry: Carry, start: Tensor | int) -> States:
    """Return the results of the shard: values, and of ``cummax`` and ``cummin`` indices in the whole line."""
    call, (x, mask, gate, starts, *_) = shard.call, shard.tensors
    found = scanned(call, x, mask=mask, gate=gate, starts=starts, initial=carry.before)
    if not shard.row.indices:
        return (found,)
    values, indices = found[:2]
    led = torch.full((), -1, device=x.device) if carry.place is None else carry.place.unsqueeze(call.dim)
    if starts is not None:  # only items that no segment separates from the beginning of the shard
        hidden = Call("logical_or", call.dim, call.reverse, call.reverse)
        led = torch.where(scanned(hidden, starts.expand(x.shape)), -1, led)
    return values, torch.where(indices < 0, led, indices + start)


def recorded_with(leaf: Tensor, value: Tensor) -> Tensor:
    """Return the value, as a function of no item of ``leaf``: where that is recorded, the value is as well."""
    return value + leaf.flatten()[:0].sum().to(value.dtype)


def _is_reducible(shard: Shard) -> bool:
    narrow = shard.tensors.x.dtype not in _REDUCIBLE or shard.result not in _REDUCIBLE
    return shard.row.name in _REDUCED and shard.length > 0 and not narrow and shard.tensors.x.dtype == shard.result


def _product_of_gates(shard: Shard, gate: Tensor, keep: Tensor | None) -> Tensor:
    if keep is None:
        return gate.prod(shard.call.dim, dtype=shard.carry)
    product = Call("prod", shard.call.dim, final=True, dtype=shard.carry)
    found: Tensor = scanned(product, gate, mask=keep)[1]
    return found.to(shard.carry)


def _last_of(shard: Shard, start: Tensor | int) -> States:
    """The greatest or least item of each line, and where in the whole line it is."""
    call, (x, mask, _, starts, *_) = shard.call, shard.tensors
    if shard.length == 0:
        value = scanned(replace(call, final=True), x, mask=mask, starts=starts)[-1]
        return value, torch.full(shard.lines, -1, dtype=torch.int64, device=x.device)
    values, indices = scanned(replace(call, exclusive=False), x, mask=mask, starts=starts)[:2]
    value, index = (each.select(call.dim, 0 if call.reverse else -1) for each in (values, indices))
    if call.reverse and starts is not None:  # items in front of a first item with a flag belong to another segment
        first = starts.expand(x.shape).select(call.dim, 0)
        nothing = scanned(replace(call, final=True), x.narrow(call.dim, 0, 0))[-1]
        value, index = torch.where(first, nothing, value), torch.where(first, -1, index)
    return value, torch.where(index < 0, -1, index + start)


# ---- backward


def entry(shard: Shard, y: Tensor, before: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the carry-in from the gradient of the shard's own results, one per line."""
    if shard.row.name == "sum" and shard.tensors.starts is None:  # each result contains the carry-in once
        return grad.sum(shard.call.dim, dtype=shard.carry)
    (found,) = torch.autograd.grad(y, before, grad, retain_graph=True, allow_unused=True, materialize_grads=True)
    return found.to(shard.carry)


def slope(shard: Shard, total: States, before: Tensor) -> Tensor:
    """Return the derivative of the shard's carry-out by its carry-in, conjugated as gradients are, one per line."""
    value, *others = total
    if shard.row.gated:
        found = others[0].conj()
    elif shard.row.name == "sum":
        found = torch.ones_like(value)
    else:
        with torch.enable_grad():
            leaf = before.detach().expand(shard.lines).to(shard.carry).requires_grad_()
            call = replace(shard.call, dim=0, reverse=False, exclusive=False, dtype=shard.carry)
            after = scanned(call, value.unsqueeze(0), mask=_filled(shard), initial=leaf)
        (found,) = torch.autograd.grad(after, leaf, torch.ones_like(after), materialize_grads=True)
    if shard.tensors.starts is not None:
        found = torch.where(others[-1], 0, found)
    return found


def fold_back(slopes: Tensor, entries: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the carry out of each shard in scan order, and of the line's initial value."""
    call = Call("linear", 0, reverse=True)
    into = scanned(call, entries, gate=slopes, initial=grad_final)
    return torch.cat([into[1:], grad_final.unsqueeze(0)]), into[0]


def _filled(shard: Shard) -> Tensor | None:
    """A mask of the lines that hold an item: an empty one leaves the carry as it is, ties included."""
    x, mask = shard.tensors.x, shard.tensors.mask
    if shard.length == 0:
        return torch.zeros((1, *shard.lines), dtype=torch.bool, device=x.device)
    if mask is None or mask.dtype != torch.bool:
        return None
    return mask.expand(x.shape).any(shard.call.dim).unsqueeze(0)
