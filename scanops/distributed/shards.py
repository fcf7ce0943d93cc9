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

from scanops.codegen.operators import Operator, find_operator
from scanops.errors import UnsupportedRequest
from scanops.ops.dispatch import run
from scanops.requests.arguments import resolve_call
from scanops.requests.call import Call
from scanops.requests.checks import check_device, check_tensor
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, Request, check_request
from scanops.requests.segments import check_starts
from scanops.requests.torch_state import autocast, runs_kernels
from scanops.runtime import call_cache, native

__all__ = [
    "Carry",
    "Shard",
    "back_over_ranks",
    "call_of_entry",
    "call_of_pairs",
    "find_slopes",
    "finish",
    "fold_indices",
    "fold_recorded",
    "is_reducible",
    "product_of_gates",
    "record_with",
    "shard_of",
    "split_gradients",
    "split_states",
    "totals",
]

States = tuple[Tensor, ...]
OTHERS = ("mask", "gate", "starts", "offsets", "initial")  # the tensors of a scan beside x
# Reductions that read a shard once, where autograd does not record: in the dtype of the carry.
REDUCED: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, dim, dtype: torch.sum(x, dim, dtype=dtype),
    "prod": lambda x, dim, dtype: torch.prod(x, dim, dtype=dtype),
    "max": lambda x, dim, dtype: x.amax(dim).to(dtype),
    "min": lambda x, dim, dtype: x.amin(dim).to(dtype),
    "logcumsumexp": lambda x, dim, dtype: torch.logsumexp(x.to(dtype), dim),
}
_REDUCIBLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a call whose arguments have been checked."""

    call: Call  # for this shard alone: dim counts from 0; ``final`` is not set
    tensors: Inputs  # offsets are head flags here
    carry: torch.dtype  # of carries, and of the states but for products of gates
    result: torch.dtype
    final: bool  # whether the carry-out of the whole line is returned

    @property
    def row(self) -> Operator:
        """The operator's row of the table."""
        return find_operator(self.call.op)

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
        if not self.row.indices:
            return self
        return replace(self, call=replace(self.call, op=self.call.op.removeprefix("cum"), dtype=None))

    @property
    def is_plain_sum(self) -> bool:
        """Whether the gradient is a sum of the results' gradients, whatever the items are."""
        tensors = self.tensors
        return self.row.name == "sum" and tensors.mask is tensors.starts is None and tensors.x.dtype == self.result

    @property
    def wide(self) -> torch.dtype:
        """The dtype of products of gates: that of carries may not hold them where the carry is 0 or small."""
        if not self.carry.is_floating_point:
            return torch.complex128 if self.carry.is_complex else self.carry
        return torch.float64

    @property
    def is_paired(self) -> bool:
        """Whether a state is the value and the product of the gates as the parts of one complex number."""
        flagged = self.tensors.starts is not None or self.tensors.offsets is not None
        return self.row.name == "linear" and self.carry.is_floating_point and not (flagged or self.call.compensated)

    @property
    def model(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of each tensor of ``totals``."""
        if self.is_paired:
            return [(self.lines, torch.complex128)]
        others = [self.wide] * self.row.gated + [torch.int64] * bool(self.row.indices)
        others += [torch.bool] * (self.tensors.starts is not None or self.tensors.offsets is not None)
        return [(self.lines, each) for each in (self.carry, *others)]

    @property
    def has_slopes(self) -> bool:
        """Whether the derivative of the carry-out by the carry-in may be other than 1."""
        return not (self.row.name == "sum" and self.tensors.starts is None)

    @property
    def of_slopes(self) -> torch.dtype:
        """The dtype of that derivative."""
        return self.wide if self.row.gated else self.carry

    @property
    def backward_model(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of each tensor of the states that ranks exchange backward."""
        if self.is_paired:
            return [(self.lines, torch.complex128)]
        return [(self.lines, each) for each in (self.carry, *[self.of_slopes] * self.has_slopes)]

    @property
    def is_reduced_to_pairs(self) -> bool:
        """Whether one kernel reduces the shard to the values and products of gates of its lines."""
        x, mask, gate, *_ = self.tensors
        selects = mask is None or mask.dtype == torch.bool
        return self.is_paired and selects and self.length > 0 and runs_kernels((x, mask, gate))

    @property
    def has_paired_entries(self) -> bool:
        """Whether one kernel reduces gradients of results to those of carries-in and to products of gates.

        Beside a mask a result that is left out of an exclusive scan has a gradient, which no such kernel adds.
        """
        return self.is_reduced_to_pairs and not (self.call.exclusive and self.tensors.mask is not None)

    def without_memory(self) -> Shard:
        """Return the shard of tensors without memory, with head flags in place of offsets: for shapes and dtypes."""
        x, mask, gate, starts = (
            None if each is None else torch.empty(each.shape, dtype=each.dtype, device="meta")
            for each in self.tensors[:4]
        )
        if self.tensors.offsets is not None:
            starts = torch.empty_like(x, dtype=torch.bool)  # type: ignore[arg-type]
        return replace(self, tensors=Inputs(x, mask, gate, starts))  # type: ignore[arg-type]


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
    request = check_request(call, given)
    if given.starts is not None and offsets is not None:
        check_starts(call.name, given.starts, offsets, request.x)
    if offsets is not None:
        _check_positions(call.name, offsets, request.x)
    row = request.operator
    if not is_exchanged(row) or request.x.ndim == 0:
        raise UnsupportedRequest(
            f"{call.name}: the dimension cannot be sharded",
            allowed="tensors with a dimension, and operators whose state is an element: lift=('x',), project='state'",
            value=f"x.shape={tuple(request.x.shape)}, op={row.name!r} with lift={row.lift}, project={row.project!r}",
            hint="gather the dimension, or carry the state from rank to rank with initial= and return_final=True",
        )
    tensors = given._replace(mask=request.inputs.mask, gate=request.inputs.gate, offsets=offsets)
    local = replace(call, dim=request.call.dim, dtype=request.dtype, final=False)
    return Shard(call=local, tensors=tensors, carry=request.carry_dtype, result=request.dtype, final=call.final)


def _check_positions(who: str, offsets: object, x: Tensor) -> None:
    """Raise unless ``offsets`` may be positions of segments; their values are checked when the length is known."""
    check_tensor(who, "offsets", offsets)
    assert isinstance(offsets, Tensor)
    check_device(who, "offsets", offsets, x)
    if offsets.dtype not in (torch.int32, torch.int64) or offsets.ndim != 1 or offsets.numel() < 2:
        raise UnsupportedRequest(
            f"{who}: offsets must be positions in the whole line",
            allowed="int32 or int64 in one dimension: 0, then where each segment begins, and the length of the line",
            value=f"offsets of {offsets.dtype}, shape {tuple(offsets.shape)}",
            hint="as cu_seqlens: torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])",
        )


def is_exchanged(row: Operator) -> bool:
    """Return whether ranks can exchange the states of an operator: those that are an element, or known here."""
    return row.of_elements or bool(row.indices) or row.name in ("linear", "logcumsumexp") or row.gives == "bool"


def scan_local(call: Call, x: Tensor, **others: Tensor | complex | None) -> Any:
    """Return what the scan of one GPU gives; ``others`` are named as in ``OTHERS``."""
    found = scan_again(call, x, *[others.get(name) for name in OTHERS])  # type: ignore[arg-type]
    return found if call.final or find_operator(call.op).indices else found[0]


def scan_again(call: Call, *tensors: Tensor | None, options: dict[str, Any] | None = None) -> States:
    """Return the scan of one GPU of x, mask, gate, starts, offsets and initial; ``options``: those that C++ knows."""
    given = Inputs(*tensors)  # type: ignore[arg-type]
    if call.totals:
        return reduce_pairs(call, given)[0]
    if given.offsets is None and native.serve is not None and not is_dynamo_compiling():
        x, mask, gate, starts, _, initial, *_ = given
        known = native.options_of(call) if options is None else options
        found = native.serve(x=x, mask=mask, gate=gate, initial=initial, starts=starts, **known)
        if found is not None:
            return found if isinstance(found, tuple) else (found,)
    outs = (None, None) if find_operator(call.op).indices else (None,)
    call, eager = resolve_call(call, given, outs)
    return run(call, given, outs, eager=eager)


def reduce_pairs(call: Call, given: Inputs) -> tuple[States, Any]:
    """Return the value of each line and the product of its gates, as a complex number, and the launch that found them.

    Nothing, and None, where there is no kernel for it. Gates and items are read once, and nothing else is written.
    """
    request = Request(call=call, inputs=given, carry_dtype=torch.complex128)
    return call_cache.run(request) or ((), None)


# ---- forward


def totals(shard: Shard, *, recorded: bool = False) -> States:
    """Return the state of each line of the shard alone, as ``Shard.model`` describes them.

    The value; of recurrences also the product of the gates, in pairs with the values where ``Shard.is_paired``; of
    ``cummax`` and ``cummin`` also the index in the shard, -1 for none; with segments also whether one begins in the
    shard, which hides what is carried in. ``recorded``: whether gradients are taken of the states, which so follow the
    operator's own rules, and are in no pairs. Two passes come here where neither an operator of torch nor the kernel of
    ``call_of_pairs`` computes the states.
    """
    call, carry, (x, mask, gate, starts, *_) = shard.call, shard.carry, shard.tensors
    is_paired = not recorded and shard.is_paired
    found: States
    if shard.row.indices:
        found = _last_of(shard)
    else:
        states = scan_local(replace(call, exclusive=False, final=True), x, mask=mask, gate=gate, starts=starts)
        found = (states[1].to(carry),)
    if gate is not None:
        found = (*found, product_of_gates(shard))
    if is_paired:
        value, product = found
        return (torch.complex(value.double(), product),)
    return found if starts is None else (*found, starts.expand(x.shape).any(call.dim))


def split_states(shard: Shard, states: States) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the values of states, the products of gates or the indices, and whether segments begin."""
    if shard.is_paired:
        value, product = torch.view_as_real(states[0]).unbind(-1)
        return value, product, None
    value, *others = states
    begins = others.pop() if shard.tensors.starts is not None else None
    return value, others[0] if others else None, begins


def call_of_pairs(shard: Shard, op: str = "linear", *, turned: bool = False) -> Call:
    """Return the call of one kernel that reduces lines to pairs, from their other end if ``turned``."""
    reverse = shard.call.reverse != turned
    return Call(op, shard.call.dim, reverse, final=True, dtype=shard.result, accumulate="float64", totals=True)


def call_of_entry(shard: Shard) -> Call:
    """Return the call that reduces gradients of results to that of the carry-in, of a recurrence."""
    return call_of_pairs(shard, "linear" if shard.call.exclusive else "linear_gradient_of_terms", turned=True)


def over_ranks(shard: Shard, *, reverse: bool = False) -> Call:
    """Return the scan of the states of all ranks, but for those with indices, which have the dtype of items."""
    if shard.is_paired:
        return Call(shard.call.op, 0, reverse, dtype=shard.carry, accumulate="float64")
    if shard.row.gated:
        return Call(shard.call.op, 0, reverse, dtype=shard.wide)
    dtype = None if shard.row.indices else shard.carry
    return replace(shard.call, dim=0, reverse=reverse, exclusive=False, dtype=dtype)


def fold_indices(
    shard: Shard, value: Tensor, indices: Tensor, begins: Tensor | None, initial: Tensor | complex | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the values of the line behind each position of scan order, and where in the line they come from.

    The states are those of all shards in scan order, of ``cummax`` and ``cummin``; ``starts``: where shards begin. A
    place is -1 where a value comes from nowhere.
    """
    after, ranks = scan_local(over_ranks(shard), value, mask=indices >= 0, starts=begins, initial=initial)[:2]
    places = indices + starts.to(indices.device).reshape(-1, *[1] * (indices.ndim - 1))
    return after, torch.where(ranks >= 0, places.gather(0, ranks.clamp(min=0)), -1)


def fold_recorded(
    shard: Shard, states: States, initial: Tensor | complex | None, positions: Sequence[int]
) -> list[Carry]:
    """Return the carry into the shards at ``positions``, as a differentiable function of all shards' states.

    It depends on all states at every position, the first included: a backward pass is a graph of one shape on all
    ranks, with the same exchanges.
    """
    value, *others = states
    begins = others.pop() if shard.tensors.starts is not None else None
    call = Call(shard.call.op, 0, dtype=shard.wide) if shard.row.gated else over_ranks(shard)
    gate = others[0] if others else None
    after = scan_local(call, value, gate=gate, starts=begins, initial=initial)
    first = scan_local(
        replace(call, exclusive=True), value[:1], initial=initial, gate=None if gate is None else gate[:1]
    )
    into = torch.cat([first, after]).to(shard.carry)
    return [Carry(into[position], into[-1]) for position in positions]


def finish(shard: Shard, carry: Carry, start: Tensor | int) -> States:
    """Return the results of the shard: values, and of ``cummax`` and ``cummin`` indices in the whole line."""
    call, (x, mask, gate, starts, *_) = shard.call, shard.tensors
    found = scan_local(call, x, mask=mask, gate=gate, starts=starts, initial=carry.before)
    if not shard.row.indices:
        return (found,)
    values, indices = found[:2]
    led = torch.full((), -1, device=x.device) if carry.place is None else carry.place.unsqueeze(call.dim)
    if starts is not None:  # only items that no segment separates from the beginning of the shard
        hidden = Call("logical_or", call.dim, call.reverse, call.reverse)
        led = torch.where(scan_local(hidden, starts.expand(x.shape)), -1, led)
    return values, torch.where(indices < 0, led, indices + start)


def record_with(leaf: Tensor, value: Tensor) -> Tensor:
    """Return the value, as a function of no item of ``leaf``: where that is recorded, the value is as well."""
    return value + leaf.flatten()[:0].sum().to(value.dtype)


def is_reducible(shard: Shard) -> bool:
    """Return whether an operator of torch reduces the shard to the states of its lines."""
    if not shard.tensors.mask is shard.tensors.starts is None or shard.call.compensated:
        return False
    narrow = shard.tensors.x.dtype not in _REDUCIBLE or shard.result not in _REDUCIBLE
    return shard.row.name in REDUCED and shard.length > 0 and not narrow and shard.tensors.x.dtype == shard.result


def product_of_gates(shard: Shard) -> Tensor:
    """Return the product of the gates of each line, which is finite."""
    x, mask, gate, *_ = shard.tensors
    assert gate is not None
    gate = gate.expand(x.shape)
    if mask is None or mask.dtype != torch.bool:
        found = gate.prod(shard.call.dim, dtype=shard.wide)
    else:
        product = Call("prod", shard.call.dim, final=True, dtype=shard.wide)
        found = scan_local(product, gate, mask=mask)[1]
    return _finite(found) if found.is_floating_point() else found


def _finite(products: Tensor) -> Tensor:
    most = torch.finfo(products.dtype).max  # times a carry of 0 it is 0, as one scan has it, and infinity is not
    return products.clamp(-most, most)


def _last_of(shard: Shard) -> States:
    """The greatest or least item of each line, and where in the shard it is."""
    call, (x, mask, _, starts, *_) = shard.call, shard.tensors
    if shard.length == 0:
        value = scan_local(replace(call, final=True), x, mask=mask, starts=starts)[-1]
        return value.to(shard.carry), torch.full(shard.lines, -1, dtype=torch.int64, device=x.device)
    values, indices = scan_local(replace(call, exclusive=False), x, mask=mask, starts=starts)[:2]
    value, index = (each.select(call.dim, 0 if call.reverse else -1) for each in (values, indices))
    if call.reverse and starts is not None:  # items in front of a first item with a flag belong to another segment
        first = starts.expand(x.shape).select(call.dim, 0)
        nothing = scan_local(replace(call, final=True), x.narrow(call.dim, 0, 0))[-1]
        value, index = torch.where(first, nothing.to(value.dtype), value), torch.where(first, -1, index)
    return value.to(shard.carry), index


# ---- backward


def split_gradients(shard: Shard, states: States) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of carries-in of the states of ``Shard.backward_model``, and slopes where they are not 1."""
    if shard.is_paired:
        entries, slopes = torch.view_as_real(states[0]).unbind(-1)
        return entries, slopes
    return states[0], states[1] if shard.has_slopes else None


def find_slopes(shard: Shard, total: States, before: Tensor) -> Tensor:
    """Return the derivative of the shard's carry-out by its carry-in, conjugated as gradients are, one per line."""
    value, product, begins = split_states(shard, total)
    if product is not None:
        found = product.conj()
    elif shard.row.name == "sum":
        found = torch.ones_like(value)
    else:
        with torch.enable_grad():
            leaf = before.detach().expand(shard.lines).to(shard.carry).requires_grad_()
            call = replace(shard.call, dim=0, reverse=False, exclusive=False, dtype=shard.carry)
            after = scan_local(call, value.unsqueeze(0), mask=_mask_filled(shard), initial=leaf)
        (found,) = torch.autograd.grad(after, leaf, torch.ones_like(after), materialize_grads=True)
    if shard.tensors.starts is not None:
        assert begins is not None
        found = torch.where(begins, 0, found)
    return found


def back_over_ranks(shard: Shard, *, reverse: bool) -> Call:
    """Return the scan of the gradients of carries over the ranks, with results in the dtype of carries if they fit."""
    if not shard.has_slopes:
        return Call("sum", 0, reverse, dtype=shard.carry)
    if shard.is_paired:
        return Call("linear", 0, reverse, dtype=shard.carry, accumulate="float64")
    return Call("linear", 0, reverse, dtype=shard.of_slopes)


def _mask_filled(shard: Shard) -> Tensor | None:
    """A mask of the lines that hold an item: an empty one leaves the carry as it is, ties included."""
    x, mask = shard.tensors.x, shard.tensors.mask
    if shard.length == 0:
        return torch.zeros((1, *shard.lines), dtype=torch.bool, device=x.device)
    if mask is None or mask.dtype != torch.bool:
        return None
    return mask.expand(x.shape).any(shard.call.dim).unsqueeze(0)
