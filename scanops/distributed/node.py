"""The autograd nodes of sharded scans: method ``twopass``, and method ``chain`` with its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed import shards
from scanops.distributed.spans import joined, narrowed
from scanops.ops import schema
from scanops.torch_private import saved_tensors_hooks

Work = Any  # scanops.distributed.calls.Work, the part of one rank, which makes the nodes
Outputs = tuple[Tensor, ...]
Initial = Tensor | complex | None


class TwoPass(torch.autograd.Function):
    """A sharded scan with its gradients: one exchange forward, and one backward, against the scan's direction.

    The node holds the graph of the shard's own scan with its carry-in as an input. Where hooks watch what is saved, as
    those of a checkpoint, it is made again in the backward pass. Where a backward pass is itself recorded, the call is
    composed again of differentiable scans and exchanges.
    """

    @staticmethod
    def forward(ctx: Any, work: Work, number: complex | None, *tensors: Tensor | None) -> Any:
        ctx.work, ctx.number, ctx.own, shard = work, number, None, work.shard
        total = work.totals()
        carries = work.carried(total, tensors[3] if number is None else number)
        befores = [None if each.before is None else each.before.to(shard.carry) for each in carries]
        ctx.save_for_backward(*tensors, *befores, *total)
        if shard.row.indices or saved_tensors_hooks(True) is not None:
            found = work.finished(carries)
        else:
            ctx.own = _own_scans(work, tensors[:3], befores, ctx.needs_input_grad[2:])
            found = joined([(y.detach(),) for y in ctx.own.results], shard.call.dim)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return work.with_final(found, carries[0].final)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        work, shard, needs = ctx.work, ctx.work.shard, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return (None, None, *work.gradients(ctx.saved_tensors[:4], ctx.number, needs, grads))
        # A checkpoint computes the call again, with its exchanges, where saved tensors are read: here, on all ranks.
        x, mask, gate, initial, *saved = ctx.saved_tensors
        count, dim = work.layout.width, shard.call.dim
        befores, total = saved[:count], saved[count:]
        own = ctx.own or _own_scans(work, (x, mask, gate), befores, needs)
        of_final = torch.zeros_like(own.finals[0])
        if shard.final and grads[-1] is not None:
            of_final = grads[-1].contiguous()
        grad = torch.zeros_like(x, dtype=shard.result) if grads[0] is None else grads[0]
        pieces = torch.split(grad, list(work.layout.lengths), dim)
        total = [total[0], *total[2:]] if shard.row.indices else total
        entries, slopes = [], []
        for k, part in enumerate(work.parts(shard.valued)):
            into, rate = torch.zeros_like(of_final), torch.ones_like(of_final)
            before = own.befores[k]
            if before is not None:
                into = shards.entry(part, own.results[k], before, pieces[k])
                rate = shards.slope(part, tuple(each[k] for each in total), befores[k])
            entries.append(into.expand(shard.lines))
            slopes.append(rate)
        outs, of_initial = work.exchanged_back(torch.stack(entries), torch.stack(slopes), of_final)
        wanted = [leaf for leaf, need in zip(own.leaves, needs, strict=False) if need]
        found = iter(torch.autograd.grad((*own.results, *own.finals), wanted, (*pieces, *outs), retain_graph=True,
                                         allow_unused=True) if wanted else ())  # fmt: skip
        of_tensors: list[Tensor | None] = [next(found) if need else None for need in needs[:3]]
        if not needs[3]:
            return (None, None, *of_tensors, None)
        of_initial = of_initial if work.is_first else torch.zeros_like(of_initial)  # the first rank's alone
        return (None, None, *of_tensors, of_initial.sum_to_size(initial.shape).to(initial.dtype))


class _Own(NamedTuple):
    """The values of a rank's spans as functions of its tensors and of the carry into each span."""

    leaves: list[Tensor | None]
    befores: list[Tensor | None]
    results: list[Tensor]
    finals: list[Tensor]


def _own_scans(
    work: Work, tensors: Sequence[Tensor | None], befores: Sequence[Tensor | None], needs: Sequence[bool]
) -> _Own:
    leaves = [
        None if each is None else each.detach().requires_grad_(need)
        for each, need in zip(tensors, needs[:3], strict=True)
    ]
    firsts = [None if each is None else each.detach().requires_grad_() for each in befores]
    x, mask, gate = leaves
    assert x is not None
    valued = work.shard.valued
    own = _Own(leaves, firsts, [], [])
    with torch.enable_grad():
        read = valued.tensors._replace(x=x, mask=mask, gate=gate)
        for part, first in zip(work.parts(replace(valued, tensors=read)), firsts, strict=True):
            of = part.tensors
            y, final = shards.scanned(
                replace(valued.call, final=True), of.x, mask=of.mask, gate=of.gate, starts=of.starts, initial=first
            )
            own.results.append(y)
            own.finals.append(final)
    return own


# ---- chain: bands of lines, whose carries-out go from rank to rank while other bands are scanned


def chained(work: Work, bands: int, initial: Initial, *, recorded: bool) -> Outputs:
    """Return results and carry-out of a shard in bands of lines: the ranks scan different bands at a time.

    The carry-out of a band is the carry-in of the same band on the next rank, sent while this rank scans another one.
    """
    tensors = work.shard.tensors
    if recorded:
        number = None if isinstance(initial, Tensor) else initial
        read = tensors._replace(initial=initial if isinstance(initial, Tensor) else None)
        found: Outputs = Chain.apply(work, bands, number, *read.differentiable)  # type: ignore[no-untyped-call]
        return found
    y, _, final = _run_chain(work, Bands.of(work.shard, bands), tensors[:3], initial)
    results: Outputs = work.with_final((y,), final)
    return results


class Bands(NamedTuple):
    """The parts that the lines of a shard are divided into along one dimension: contiguous parts of most tensors."""

    rank: int  # the number of x's dimensions
    dim: int  # the scanned one
    along: int  # the first one beside it with more than one item
    pieces: tuple[tuple[int, int], ...]  # (start, stop) of each band

    @classmethod
    def of(cls, shard: shards.Shard, count: int) -> Bands:
        """Return at most ``count`` bands of equal sizes, at least one."""
        shape, dim = shard.tensors.x.shape, shard.call.dim
        along = next((d for d, size in enumerate(shape) if d != dim and size > 1), dim)
        size = 1 if along == dim else shape[along]
        count = min(count, size)
        return cls(len(shape), dim, along, tuple(pairwise(size * k // count for k in range(count + 1))))

    def items(self, operand: Tensor | None) -> list[Tensor | None]:
        """Return the part of an operand, which broadcasts to x's shape, in each band."""
        if self.along == self.dim:
            return [operand]
        return [narrowed(operand, self.rank, self.along, *piece) for piece in self.pieces]

    def lines(self, each: Tensor) -> list[Tensor]:
        """Return the part of a tensor with one element per line in each band."""
        if self.along == self.dim:
            return [each]
        return [each.narrow(self.along - (self.along > self.dim), start, stop - start) for start, stop in self.pieces]

    def added(self, whole: Tensor | None, part: Tensor, k: int, like: Tensor) -> Tensor:
        """Return the gradient of an operand with that of its part in band k; None: there is none of bands before."""
        at = self.along - self.rank + like.ndim
        if len(self.pieces) == 1 or at < 0 or like.shape[at] == 1:  # the same items in every band
            return part if whole is None else whole + part
        whole = like.new_empty(like.shape) if whole is None else whole
        start, stop = self.pieces[k]
        whole.narrow(at, start, stop - start).copy_(part)
        return whole


def _run_chain(
    work: Work, bands: Bands, tensors: Sequence[Tensor | None], initial: Initial
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the results, the carry into each line or None, and the carry out of it, of the whole line if asked for."""
    shard, group = work.shard, work.group
    x, mask, gate = (None if each is None else each.detach() for each in tensors)
    assert x is not None
    call, (earlier, later) = replace(shard.call, final=True), work.neighbours()
    y = x.new_empty(x.shape, dtype=shard.result)
    final = x.new_empty(shard.lines, dtype=shard.carry)
    before = torch.empty_like(final) if earlier is not None or initial is not None else None
    if before is not None and earlier is None:
        before.copy_(initial) if isinstance(initial, Tensor) else before.fill_(initial)  # type: ignore[arg-type]
    carries = [None] * len(bands.pieces) if before is None else bands.lines(before)
    arriving = [] if earlier is None else [group.receive(carry, earlier) for carry in carries if carry is not None]
    leaving = []
    items = zip(*(bands.items(each) for each in (x, mask, gate, shard.tensors.starts, y)), strict=True)
    for k, (of, last) in enumerate(zip(items, bands.lines(final), strict=True)):
        carry = carries[k]
        if carry is not None and arriving:
            carry.copy_(arriving[k]())
        _, found = shards.scanned(call, of[0], of[4], mask=of[1], gate=of[2], starts=of[3], initial=carry)
        last.copy_(found)
        if later is not None:
            leaving.append(group.send(last, later))
    for wait in leaving:
        wait()
    return y, before, group.broadcast(final, work.scan_rank(-1)) if shard.final else final


class Chain(torch.autograd.Function):
    """A sharded scan in bands of lines with its gradients, whose bands go from rank to rank against the scan."""

    @staticmethod
    def forward(ctx: Any, work: Work, count: int, number: complex | None, *tensors: Tensor | None) -> Any:
        ctx.work, ctx.number, ctx.bands = work, number, Bands.of(work.shard, count)
        y, before, final = _run_chain(work, ctx.bands, tensors[:3], tensors[3] if number is None else number)
        ctx.save_for_backward(*tensors, before, y)
        ctx.set_materialize_grads(False)
        return work.with_final((y,), final)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        work, bands, needs = ctx.work, ctx.bands, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return (None, None, None, *work.gradients(ctx.saved_tensors[:4], ctx.number, needs, grads))
        x, mask, gate, initial, before, y = ctx.saved_tensors
        shard, group, (earlier, later) = work.shard, work.group, work.neighbours()
        into = x.new_zeros(shard.lines, dtype=shard.carry)  # the gradient of the carry out of this shard
        if shard.final:  # the gradients of the carry-out add up over the ranks
            into = group.gathered([into if grads[-1] is None else grads[-1]])[0].sum(0)
        arriving = [] if later is None else [group.receive(each, later) for each in bands.lines(into)]
        gy = torch.zeros_like(y) if grads[0] is None else grads[0]
        items = zip(*(bands.items(each) for each in (gy, y, x, mask, gate, shard.tensors.starts)), strict=True)
        carries = [None] * len(bands.pieces) if before is None else bands.lines(before)
        entry, wanted = torch.zeros_like(into), (*needs[:3], before is not None)
        # That of a sum is a sum, which is written where it belongs.
        own_scan = shard.row.name == "sum" and needs[0] and mask is shard.tensors.starts is None
        own_scan = own_scan and x.dtype == shard.result
        back = replace(shard.call, reverse=not shard.call.reverse, final=True)
        whole: list[Tensor | None] = [x.new_empty(x.shape) if own_scan else None, None, None]
        slices, leaving = bands.items(whole[0]), []
        for k, (of, grad_final, entered) in enumerate(zip(items, bands.lines(into), bands.lines(entry), strict=True)):
            grad_final = arriving[k]() if arriving else grad_final
            if own_scan:
                _, of_carry = shards.scanned(back, of[0], slices[k], initial=grad_final)
            else:
                given = (of[0], grad_final, of[1], None, *of[2:], None, carries[k])
                *own, of_carry = schema.BACKWARD(*given, *schema.backward_arguments(shard.call, wanted))
                parts = zip(whole, own, (x, mask, gate), needs, strict=False)
                whole = [bands.added(all_of, part, k, like) if need else None for all_of, part, like, need in parts]
            if before is not None:
                entered.copy_(of_carry)
            if earlier is not None:
                leaving.append(group.send(entered, earlier))
        for wait in leaving:
            wait()
        if not needs[3]:
            return (None, None, None, *whole, None)
        entry = entry if work.is_first else torch.zeros_like(entry)  # the first rank's alone
        return (None, None, None, *whole, entry.sum_to_size(initial.shape).to(initial.dtype))
