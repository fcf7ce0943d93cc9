"""Sharded calls: checks, exchanges and the autograd node. Every rank of a group makes the same calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.distributed import shards
from scanops.distributed.groups import CHECKS, Group
from scanops.distributed.shards import Carry, Shard
from scanops.errors import UnsupportedRequest, shown
from scanops.requests.call import Call, is_transformed
from scanops.requests.request import Inputs
from scanops.requests.segments import check_offsets, flags_along
from scanops.torch_private import saved_tensors_hooks

__all__ = ["answered", "sharded"]

Outputs = tuple[Tensor, ...]
Initial = Tensor | complex | None


def sharded(who: str, request: Callable[[], tuple[Call, Inputs]], group: Group, check: str) -> Outputs:
    """Return this rank's results, and the carry-out of the whole line if the call asks for it.

    ``request`` makes the call and its tensors, or raises; ``who`` is the public function. Raises UnsupportedRequest,
    PeerMismatch or PeerLost.
    """
    shard, problem, parts = None, None, dict.fromkeys(_PARTS, "")
    try:
        call, given = request()
        shard = _checked(call, given, check)
        parts = parts if is_compiling() else _parts(given, shard)
    except Exception as refused:  # whatever it is: the other ranks have to hear of it
        problem = refused
    lengths: list[int] = []
    if not is_compiling() and group.size > 1:
        size = 0 if shard is None else shard.length
        lengths = group.agree({"function": who, **parts}, size, problem, check if check in CHECKS else "first")
    if shard is None:
        assert problem is not None
        raise problem
    if group.size == 1:
        return answered(call, given)
    return _Work(shard, group).outputs(given.initial, lengths)


def answered(call: Call, given: Inputs) -> Outputs:
    """Return the outputs of the scan of one GPU."""
    found = shards.scanned(call, given.x, **{name: getattr(given, name) for name in shards.OTHERS})
    return found if isinstance(found, tuple) else (found,)


def _checked(call: Call, given: Inputs, check: str) -> Shard:
    if check not in CHECKS:
        raise UnsupportedRequest(
            f"{call.name}: check must be a word",
            allowed=", ".join(map(repr, CHECKS)),
            value=f"check={shown(check)}",
            hint="leave check out",
        )
    if not is_compiling() and is_transformed():
        raise UnsupportedRequest(
            f"{call.name}: a sharded scan does not run under torch.func transforms or forward mode",
            allowed="eager code, backward passes and torch.compile",
            value="an active transform",
            hint="transform a function that holds the whole dimension",
        )
    return shards.shard_of(call, given._replace(offsets=None), given.offsets)


_PARTS = ("operator", "dimension", "lines", "dtypes", "options", "operands", "initial", "offsets", "gradients")


def _parts(given: Inputs, shard: Shard) -> dict[str, str]:
    """Describe a call: what has to be equal on all ranks, in words for a message."""
    row, call, tensors, initial, offsets = shard.row, shard.call, shard.tensors, given.initial, given.offsets
    said = (
        f"{row.name} {row.lift} {row.combine} {row.identity}",
        f"dim={call.dim} of {tensors.x.ndim}",
        f"lines of shape {tuple(shard.lines)}",
        f"{tensors.x.dtype} to {shard.result}, carried in {shard.carry}",
        f"reverse={call.reverse}, exclusive={call.exclusive}, return_final={shard.final}, "
        f"compensated={call.compensated}",
        ", ".join(name for name in ("mask", "gate", "starts") if getattr(tensors, name) is not None),
        f"{tuple(initial.shape)} {initial.dtype}" if isinstance(initial, Tensor) else f"{initial}",
        "" if offsets is None else shown(offsets.tolist() if offsets.is_cpu else tuple(offsets.shape)),
        f"gradients={_with_tensor(given, initial).differentiates}",
    )
    return dict(zip(_PARTS, said, strict=True))


def _with_tensor(tensors: Inputs, initial: Initial) -> Inputs:
    """The tensors with the initial value among them if it is one and not a number."""
    return tensors._replace(initial=initial if isinstance(initial, Tensor) else None)


class _Work:
    """One rank's part of a call, and the exchanges."""

    def __init__(self, shard: Shard, group: Group) -> None:
        self.shard, self.group = shard, group
        self.position = group.size - 1 - group.position if shard.call.reverse else group.position  # in scan order
        self.start: Tensor | int = 0  # where the shard lies in the whole line

    def outputs(self, initial: Initial, lengths: list[int]) -> Outputs:
        """Return results and carry-out, with a node of autograd where gradients are recorded."""
        shard, tensors = self.shard, self.shard.tensors
        if shard.row.indices or tensors.offsets is not None:
            self._place(lengths)
            tensors = self.shard.tensors
        read = _with_tensor(tensors, initial)
        if shard.lines.numel() == 0:  # there is nothing to exchange, on any rank
            empty = tensors.x.new_empty(shard.lines, dtype=shard.carry)
            return self._with_final(shards.finish(self.shard, Carry(None, empty), self.start), empty)
        recorded = torch.is_grad_enabled() if is_compiling() else read.differentiates
        if not (recorded and (shard.result.is_floating_point or shard.result.is_complex)):
            carry = self.carried(shards.totals(self.shard, self.start), initial)
            return self._with_final(shards.finish(self.shard, carry, self.start), carry.final)
        if is_compiling():
            return self.composed(tensors, initial)
        number = None if isinstance(initial, Tensor) else initial
        found: Outputs = _Node.apply(self, number, *read.differentiable)  # type: ignore[no-untyped-call]
        return found

    def carried(self, total: tuple[Tensor, ...], initial: Initial) -> Carry:
        """Return the carry into this shard; the states of all ranks are exchanged."""
        return shards.fold(self.shard, self._in_order(self.group.gathered(total)), initial, self.position)

    def composed(self, tensors: Inputs, initial: Initial) -> Outputs:
        """Return the outputs by differentiable scans and exchanges, which have derivatives of every order."""
        shard = replace(self.shard, tensors=tensors)
        valued = shard.valued
        total = [each.expand(self.group.size, *each.shape) for each in shards.totals(valued, 0, recorded=True)]
        carry = shards.fold(valued, self._in_order(self.group.traded(total)), initial, self.position, recorded=True)
        found = shards.finish(valued, carry, 0)
        if shard.row.indices:
            with torch.no_grad():
                at = self.carried(shards.totals(shard, self.start), initial)
                found = (*found, shards.finish(shard, at, self.start)[1])
        return self._with_final(found, carry.final)

    def exchanged_back(self, entry: Tensor, slope: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the carry out of this shard, and that of the initial value."""
        entries, slopes, finals = self._in_order(self.group.gathered((entry, slope, grad_final)))
        return shards.fold_back(slopes, entries, finals.sum(0), self.position)

    def _place(self, lengths: list[int]) -> None:
        """Set where the shard lies, and turn offsets into head flags; without known lengths they are exchanged."""
        shard, position = self.shard, self.group.position
        x, offsets = shard.tensors.x, shard.tensors.offsets
        if lengths:
            self.start = sum(lengths[:position])
            if offsets is not None:
                check_offsets(shard.call.name, offsets, x.new_empty(1).expand(sum(lengths)), 0)
        else:
            found = self.group.gathered([torch.full((), shard.length, device=x.device)])[0]
            self.start = found[:position].sum()
        if offsets is not None:
            flags = flags_along(None, offsets, x, shard.call.dim, self.start)
            self.shard = replace(shard, tensors=shard.tensors._replace(starts=flags, offsets=None))

    def _in_order(self, stacked: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each.flip(0) for each in stacked) if self.shard.call.reverse else stacked

    def _with_final(self, found: Outputs, final: Tensor) -> Outputs:
        return (*found, final.to(self.shard.carry)) if self.shard.final else found


class _Node(torch.autograd.Function):
    """A sharded scan with its gradients: one exchange forward, and one backward, against the scan's direction.

    The node holds the graph of the shard's own scan with its carry-in as an input. Where hooks watch what is saved, as
    those of a checkpoint, it is made again in the backward pass. Where a backward pass is itself recorded, the call is
    composed again of differentiable scans and exchanges.
    """

    @staticmethod
    def forward(ctx: Any, work: _Work, number: complex | None, *tensors: Tensor | None) -> Any:
        ctx.work, ctx.number, ctx.own, shard = work, number, None, work.shard
        total = shards.totals(shard, work.start)
        carry = work.carried(total, tensors[3] if number is None else number)
        before = None if carry.before is None else carry.before.to(shard.carry)
        ctx.save_for_backward(*tensors, before, *total)
        if shard.row.indices or saved_tensors_hooks(True) is not None:
            found = shards.finish(shard, carry, work.start)
        else:
            ctx.own = _own_scan(shard, tensors[:3], before, ctx.needs_input_grad[2:])
            found = (ctx.own[1][0].detach(),)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return work._with_final(found, carry.final)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        work, shard, needs = ctx.work, ctx.work.shard, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return (None, None, *_recorded(ctx, grads))
        # A checkpoint computes the call again, with its exchanges, where saved tensors are read: here, on all ranks.
        x, mask, gate, initial, before, *total = ctx.saved_tensors
        leaves, (y, final) = ctx.own or _own_scan(shard, (x, mask, gate), before, needs)
        grad = torch.zeros_like(y) if grads[0] is None else grads[0]
        of_final = grads[-1] if shard.final else None
        of_final = torch.zeros_like(final) if of_final is None else of_final.contiguous()
        into, rate = torch.zeros_like(final), torch.ones_like(final)
        if before is not None:
            into = shards.entry(shard.valued, y, leaves[3], grad).expand(shard.lines).contiguous()
            total = [total[0], *total[2:]] if shard.row.indices else total
            rate = shards.slope(shard.valued, tuple(total), before)
        out, of_initial = work.exchanged_back(into, rate, of_final)
        wanted = [leaf for leaf, need in zip(leaves[:3], needs, strict=False) if need]
        found = iter(torch.autograd.grad((y, final), wanted, (grad, out), retain_graph=True, allow_unused=True)
                     if wanted else ())  # fmt: skip
        own: list[Tensor | None] = [next(found) if need else None for need in needs[:3]]
        if not needs[3]:
            return (None, None, *own, None)
        of_initial = of_initial if work.position == 0 else torch.zeros_like(of_initial)  # the first rank's alone
        return (None, None, *own, of_initial.sum_to_size(initial.shape).to(initial.dtype))


def _own_scan(shard: Shard, tensors: Sequence[Tensor | None], before: Tensor | None, needs: Sequence[bool]) -> Any:
    """The values of a shard as a function of its tensors and its carry-in: these, and results with the carry-out."""
    leaves = [
        None if each is None else each.detach().requires_grad_(need)
        for each, need in zip((*tensors, before), (*needs[:3], True), strict=True)
    ]
    x, mask, gate, first = leaves
    assert x is not None
    with torch.enable_grad():
        call = replace(shard.valued.call, final=True)
        results = shards.scanned(call, x, mask=mask, gate=gate, starts=shard.tensors.starts, initial=first)
    return leaves, results


def _recorded(ctx: Any, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """The gradients as functions of inputs and incoming gradients, which can be differentiated."""
    work, tensors, needs = ctx.work, ctx.saved_tensors[:4], ctx.needs_input_grad[2:]
    x, mask, gate, initial = tensors
    read = work.shard.tensors._replace(x=x, mask=mask, gate=gate)
    outputs = work.composed(read, initial if ctx.number is None else ctx.number)
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    pairs = [(y, torch.zeros_like(y) if g is None else g) for y, g in pairs]
    wanted = [each for each, need in zip(tensors, needs, strict=True) if need]
    found = iter(torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True,
                                     allow_unused=True))  # fmt: skip
    return [next(found) if need else None for need in needs]
