"""The autograd node of sharded scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed import shards
from scanops.distributed.spans import joined
from scanops.torch_private import saved_tensors_hooks

Work = Any  # scanops.distributed.calls.Work, the part of one rank, which makes the nodes
Outputs = tuple[Tensor, ...]


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
