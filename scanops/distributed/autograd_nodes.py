"""The autograd node of sharded scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed import shards
from scanops.distributed.onepass import SharedFinal
from scanops.distributed.spans import join_spans
from scanops.ops.backward import keeps
from scanops.ops.node import ScanFunction, backward_pass, needs_of
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, RequestKind, Tensors
from scanops.runtime.policies import resumed
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
        of_initial = of_initial.clone() if scan.is_first else torch.zeros_like(of_initial)  # the first rank's alone
        return (None, None, *found, of_initial.sum_to_size(initial.shape).to(initial.dtype), None, None)


class LinkedWork:
    """The forward pass of a scan of linked lines, and the sharded call that it computes."""

    __slots__ = ("carry_in", "final", "initial", "needs", "scan", "work")

    def __init__(
        self, work: Any, scan: Scan, initial: complex | None, final: SharedFinal | None, needs: Sequence[bool]
    ) -> None:
        self.work = work  # of ScanFunction
        self.scan = scan
        self.final = final  # what hands the carry-out to all ranks
        self.initial = initial  # of the whole line, where it is a number
        self.needs = (*needs[:3], needs[3] and self.reads_initial)  # of this rank's backward pass
        self.carry_in: Tensor | None = None  # what reached this rank, where its backward pass reads that

    @property
    def kind(self) -> RequestKind:
        """What equal calls have in common."""
        kind: RequestKind = self.work.kind
        return kind

    @property
    def reads_initial(self) -> bool:
        """Whether this rank's kernel begins with the initial value: that of the first rank in scan order."""
        return self.kind.shapes[3] is not None

    def compute(self, tensors: Tensors) -> Outputs:
        """Launch on an operator's six tensors, the last of which is the initial value of the whole line."""
        found: Outputs = self.work.compute(tensors if self.reads_initial else (*tensors[:5], None))
        kind = self.kind
        if keeps(kind, self.needs)[4] and not self.reads_initial:
            request = kind.request
            self.carry_in = request.call.link.read_carry_in(request, line_shape(found[0].shape, request.call.dim))
        return found if self.final is None else self.final.share(found)


class OnePass(ScanFunction):
    """A scan of linked lines, whose backward pass is the kernels of ``ScanFunction``'s: scans of linked lines.

    The initial value is an input of the node on every rank, with a gradient of zeros on all but the first in scan
    order. Where a backward pass is itself recorded, the call is composed of scans and exchanges as that of ``TwoPass``.
    """

    @classmethod
    def record_linked(
        cls, scan: Scan, work: Any, tensors: Tensors, initial: Tensor | complex | None, final: SharedFinal | None
    ) -> Outputs:
        """Return the results of ``work``, whose gradients are those of a sharded call.

        ``initial`` is that of the whole line; ``tensors`` are the operator's six, as this rank's kernel reads them;
        ``final`` hands the carry-out to all ranks.
        """
        number = None if isinstance(initial, Tensor) else initial
        if number is None and tensors[5] is None:
            tensors = (*tensors[:5], initial)  # type: ignore[arg-type]
        needs = [each is not None and each.requires_grad for each in Inputs(*tensors).differentiable]  # type: ignore[arg-type]
        return cls.record(LinkedWork(work, scan, number, final, needs), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        work, x, mask, gate, starts, offsets, initial = inputs
        own = initial if work.reads_initial else work.carry_in
        ScanFunction.setup_context(ctx, (work, x, mask, gate, starts, offsets, own), output)
        ctx.scan, ctx.initial, ctx.needs, ctx.device = work.scan, work.initial, work.needs, x.device
        ctx.final = work.final
        ctx.number, ctx.noted = ctx.scan.group.ledger.count, ctx.scan.group.ledger.log.count
        ctx.like_initial = None if initial is None else (initial.shape, initial.dtype)
        if ctx.nothing is None:  # what no kernel reads is for derivatives of higher order
            ctx.save_for_backward(*ctx.to_save, x, mask, gate, starts, initial)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        kind, scan, needs = ctx.kind, ctx.scan, needs_of(ctx)
        *saved, x, mask, gate, starts, initial = (
            (*ctx.nothing, *[None] * 5) if ctx.nothing is not None else ctx.saved_tensors
        )
        shape, dtype = kind.shapes[0]
        grad = torch.zeros(shape, dtype=scan.result, device=ctx.device) if given[0] is None else given[0]
        if torch.is_grad_enabled():
            x = grad.new_zeros((), dtype=dtype).expand(shape).requires_grad_() if x is None else x
            if initial is None and needs[3]:
                shape, dtype = ctx.like_initial
                initial = grad.new_zeros((), dtype=dtype).expand(shape).requires_grad_()
            shard = scan.shard_with(Inputs(x, mask, gate, starts))
            of_final = given[1] if len(given) > 1 else None
            found = scan.gradients(
                shard, (x, mask, gate, initial), ctx.initial, needs, (grad, of_final)[: 1 + scan.final], ctx.number
            )
            return (None, *found[:3], None, None, found[3])
        scan.group.ledger.log.note_launch(scan.backward_message, ctx.noted)
        try:
            of_final = given[1] if kind.final else None
            if ctx.final is not None:  # on all ranks, whether their losses depend on it or not
                with resumed(ctx.policy):  # autograd runs backward passes in threads of its own
                    of_line = ctx.final.add_up(given[1], grad)
                of_final = of_line if kind.final else None
            found = backward_pass(kind, ctx.needs, (grad, of_final, *saved), ctx.policy)[0]
        except Exception:  # whatever it is: kernels of other ranks wait for this one's
            kind.request.call.link.abandon()
            raise
        of_initial = found[3]
        if needs[3] and of_initial is None:
            shape, dtype = ctx.like_initial
            of_initial = torch.zeros(shape, dtype=dtype, device=ctx.device)
        return (None, *found[:3], None, None, of_initial)


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
        entries, slopes, zero = [], [], torch.zeros_like(total[0][0], dtype=shard.carry)
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
