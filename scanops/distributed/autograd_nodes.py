"""The autograd node of sharded scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed import shards
from scanops.distributed.spans import join_spans
from scanops.ops.node import ScanFunction, backward_pass, needs_of
from scanops.requests.request import Inputs, RequestKind, Tensors
from scanops.torch_private import saved_tensors_hooks

Scan = Any  # scanops.distributed.sharded_scan.ShardedScan, which makes the nodes
Outputs = tuple[Tensor, ...]


class TwoPass(torch.autograd.Function):
    """A sharded scan with its gradients: one exchange forward, and one backward, against the scan's direction.

    The node holds the graph of the shard's own scan with its carry-in as an input until the backward pass has run; a
    further backward pass makes it again, from the tensors that the node has saved. Where hooks watch what is saved, as
    those of a checkpoint, it is made in the backward pass. Plain sums save nothing. Where a backward pass is itself
    recorded, the call is composed again of differentiable scans and exchanges.
    """

    @classmethod
    def record(cls, *given: Any) -> Outputs:
        """Return ``apply(*given)``, whose arguments torch need not bind by inspection: no transform is active."""
        found: Outputs = super(torch.autograd.Function, cls).apply(*given)  # type: ignore[misc]
        return found

    @staticmethod
    def forward(ctx: Any, scan: Scan, number: complex | None, *tensors: Tensor | None) -> Any:
        ctx.scan, ctx.initial, ctx.own = scan, number, None
        x, mask, gate, initial, starts, offsets = tensors
        assert x is not None
        shard = scan.shard_with(Inputs(x, mask, gate, starts, offsets))
        sent = scan.send_forward(shard, initial if number is None else number)
        ctx.sent, shard = sent.number, sent.shard
        befores = [None if each.before is None else each.before.to(shard.carry) for each in sent.carries]
        ctx.plain = shard.is_plain_sum
        ctx.like = x.dtype, x.device
        if ctx.plain:
            ctx.save_for_backward(None, None, None, initial, None)
        else:
            ctx.save_for_backward(x, mask, gate, initial, shard.tensors.starts, *befores, *sent.total)
        if ctx.plain or shard.row.indices or saved_tensors_hooks(True) is not None:
            found = scan.finish(sent)
        else:
            ctx.own = _own_scans(scan, shard, befores, ctx.needs_input_grad[2:5])
            found = join_spans([(y.detach(),) for y in ctx.own.results], shard.call.dim)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)
        return scan.with_final(found, sent.carries[0].final)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        scan, needs, again = ctx.scan, ctx.needs_input_grad[2:6], torch.is_grad_enabled()
        # A checkpoint computes the call again, with its exchanges, where saved tensors are read: here, on all ranks.
        x, mask, gate, initial, starts, *saved = ctx.saved_tensors
        if ctx.plain:  # whatever the items are
            dtype, device = ctx.like
            x = torch.zeros((), dtype=dtype, device=device).expand(scan.shape)
            x = x.detach().requires_grad_() if again else x
        shard = scan.shard_with(Inputs(x, mask, gate, starts))
        if again:
            found = scan.gradients(shard, (x, mask, gate, initial), ctx.initial, needs, grads, ctx.sent)
            return (None, None, *found, None, None)
        of_final = grads[-1] if shard.final else None
        if shard.final:
            of_final = x.new_zeros(shard.lines, dtype=shard.carry) if of_final is None else of_final.contiguous()
        grad = x.new_zeros(scan.shape, dtype=shard.result) if grads[0] is None else grads[0]
        pieces = (
            [grad] if scan.layout.width == 1 else list(torch.split(grad, list(scan.layout.lengths), shard.call.dim))
        )
        if ctx.plain:
            found, of_initial = _of_plain_sum(ctx, shard, pieces, of_final)
        else:
            own, ctx.own = ctx.own, None
            found, of_initial = _of_others(ctx, shard, own, saved, pieces, of_final, needs)
        if not needs[3]:
            return (None, None, *found, None, None, None)
        of_initial = of_initial if scan.is_first else torch.zeros_like(of_initial)  # the first rank's alone
        return (None, None, *found, of_initial.sum_to_size(initial.shape).to(initial.dtype), None, None)


class LinkedWork(NamedTuple):
    """The forward pass of a scan of linked lines, and the sharded call that it computes."""

    work: Any  # of ScanFunction
    scan: Scan

    @property
    def kind(self) -> RequestKind:
        """What equal calls have in common."""
        kind: RequestKind = self.work.kind
        return kind

    def compute(self, tensors: Tensors) -> Outputs:
        """Launch on an operator's six tensors."""
        found: Outputs = self.work.compute(tensors)
        return found


class OnePass(ScanFunction):
    """A scan of linked lines, whose backward pass is the kernels of ``ScanFunction``'s: scans of linked lines.

    Where a backward pass is itself recorded, the call is composed of scans and exchanges as that of ``TwoPass``.
    """

    @classmethod
    def record_linked(cls, scan: Scan, work: Any, tensors: Tensors) -> Outputs:
        """Return the results of ``work``, whose gradients are those of a sharded call."""
        return cls.record(LinkedWork(work, scan), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        ScanFunction.setup_context(ctx, inputs, output)
        (_, ctx.scan), x, mask, gate, starts, _, ctx.initial = inputs
        ctx.number, ctx.device = ctx.scan.group.ledger.count, x.device
        ctx.noted = ctx.scan.group.ledger.log.count
        if ctx.nothing is None:  # what no kernel reads is for derivatives of higher order
            ctx.save_for_backward(*ctx.to_save, x, mask, gate, starts)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        *saved, x, mask, gate, starts = (*ctx.nothing, *[None] * 4) if ctx.nothing is not None else ctx.saved_tensors
        shape, dtype = ctx.kind.shapes[0]
        grad = torch.zeros(shape, dtype=ctx.scan.result, device=ctx.device) if given[0] is None else given[0]
        needs = needs_of(ctx)
        if torch.is_grad_enabled():
            x = grad.new_zeros((), dtype=dtype).expand(shape).requires_grad_() if x is None else x
            shard = ctx.scan.shard_with(Inputs(x, mask, gate, starts))
            found = ctx.scan.gradients(
                shard, (x, mask, gate, None), ctx.initial, (*needs[:3], False), (grad,), ctx.number
            )
            return (None, *found[:3], None, None, None)
        ctx.scan.group.ledger.log.note_launch(ctx.scan.backward_message, ctx.noted)
        try:
            found = backward_pass(ctx.kind, needs, (grad, None, *saved), ctx.policy)[0]
        except Exception:  # whatever it is: kernels of other ranks wait for this one's
            ctx.kind.request.call.link.abandon()
            raise
        return (None, *found[:3], None, None, None)


def _of_plain_sum(
    ctx: Any, shard: shards.Shard, pieces: Sequence[Tensor], of_final: Tensor | None
) -> tuple[list[Tensor | None], Tensor]:
    """Return the gradients of x, mask and gate, and of the initial value: sums against the scan's direction."""
    scan = ctx.scan

    def compute() -> Outputs:
        entries = torch.stack([shards.entry(shard, None, None, piece) for piece in pieces])
        return (entries, *_for_each(of_final, scan.layout.width))

    into, of_initial = scan.send_backward(shard, compute, ctx.sent, has_slopes=False)
    if not ctx.needs_input_grad[2]:
        return [None, None, None], of_initial
    back = [(scan.scan_back(piece, carry),) for piece, carry in zip(pieces, into, strict=True)]
    return [join_spans(back, shard.call.dim)[0], None, None], of_initial


def _of_others(
    ctx: Any,
    shard: shards.Shard,
    own: _Own | None,
    saved: Sequence[Any],
    pieces: Sequence[Tensor],
    of_final: Tensor | None,
    needs: Sequence[bool],
) -> tuple[list[Tensor | None], Tensor]:
    """Return the gradients of x, mask and gate, and of the initial value, by the graph of the shard's own scan."""
    scan, count = ctx.scan, ctx.scan.layout.width
    befores, total = saved[:count], saved[count:]
    total = [total[0], *total[2:]] if shard.row.indices else total
    made: list[_Own] = [] if own is None else [own]
    has_slopes = not (shard.row.name == "sum" and shard.tensors.starts is None)

    def compute() -> Outputs:
        if not made:
            made.append(_own_scans(scan, shard, befores, needs[:3]))
        entries, slopes, zero = [], [], torch.zeros_like(total[0][0])
        for k, part in enumerate(scan.parts(shard.valued)):
            before = made[0].befores[k]
            if before is None:
                entries.append(zero)
                slopes.append(torch.ones_like(zero, dtype=scan.wide_or_carry(shard)))
                continue
            entries.append(shards.entry(part, made[0].results[k], before, pieces[k], scan.scan_entry))
            if has_slopes:
                slopes.append(shards.slope(part, tuple(each[k] for each in total), befores[k]))
        rates = [torch.stack(slopes)] if has_slopes else []
        return (torch.stack(entries), *rates, *_for_each(of_final, count))

    outs, of_initial = scan.send_backward(shard, compute, ctx.sent, has_slopes=has_slopes)
    (graph,) = made
    wanted = [leaf for leaf, need in zip(graph.leaves, needs, strict=False) if need and leaf is not None]
    found = iter(torch.autograd.grad((*graph.results, *graph.finals), wanted, (*pieces, *outs), allow_unused=True)
                 if wanted else ())  # fmt: skip
    return [next(found) if need else None for need in needs[:3]], of_initial


def _for_each(of_final: Tensor | None, count: int) -> list[Tensor]:
    """The gradient of the carry-out as a state of each span: of the first one, and zeros."""
    if of_final is None:
        return []
    if count == 1:
        return [of_final.unsqueeze(0)]
    return [torch.stack([of_final, *[torch.zeros_like(of_final)] * (count - 1)])]


class _Own(NamedTuple):
    """The values of a rank's spans as functions of its tensors and of the carry into each span."""

    leaves: list[Tensor | None]
    befores: list[Tensor | None]
    results: list[Tensor]
    finals: list[Tensor]


def _own_scans(scan: Scan, shard: shards.Shard, befores: Sequence[Tensor | None], needs: Sequence[bool]) -> _Own:
    leaves = [
        None if each is None else each.detach().requires_grad_(need)
        for each, need in zip(shard.tensors.differentiable[:3], needs, strict=True)
    ]
    firsts = [None if each is None else each.detach().requires_grad_() for each in befores]
    x, mask, gate = leaves
    assert x is not None
    valued = shard.valued
    own = _Own(leaves, firsts, [], [])
    with torch.enable_grad():
        read = valued.tensors._replace(x=x, mask=mask, gate=gate)
        for part, first in zip(scan.parts(replace(valued, tensors=read)), firsts, strict=True):
            of = part.tensors
            y, final = shards.scan_local(
                replace(valued.call, final=True), of.x, mask=of.mask, gate=of.gate, starts=of.starts, initial=first
            )
            own.results.append(y)
            own.finals.append(final)
    return own
