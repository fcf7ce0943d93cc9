"""The autograd node of sharded scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops import environment
from scanops.distributed import shards
from scanops.distributed.groups import Ledger
from scanops.distributed.links import CarryIn
from scanops.distributed.onepass import SharedFinal
from scanops.distributed.spans import join_spans
from scanops.ops.backward import keeps
from scanops.ops.node import ScanFunction, backward_pass
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, Needs, RequestKind, Tensors, check_request
from scanops.runtime import native
from scanops.runtime.policies import resumed

Scan = Any  # scanops.distributed.sharded_scan.ShardedScan, which makes the nodes
Outputs = tuple[Tensor, ...]


class Span(NamedTuple):
    """What the gradients of one span of a rank read, with the carry into it as an input of its scan."""

    kind: RequestKind  # of the span's scan, whose carry-out is used
    needs: Needs  # which gradients are asked for of results and carry-out: that of the carry-in is exchanged before
    keep: tuple[bool, ...]  # which of x, mask, gate, carry-in, results and indices these read
    keep_entry: tuple[bool, ...]  # likewise the gradient of the carry-in
    reads_before: bool  # whether the carry-in is saved
    reads_results: bool
    reads_total: bool  # whether the states that this rank has sent are saved

    def pull_back(self, grad: Tensor, of_final: Tensor | None, saved: Tensors, policy: str | None) -> Tensors:
        """Return the gradients of x, mask and gate; with ``of_final`` None that of the carry-in alone, and 3 None.

        ``saved`` are x, mask, gate, carry-in, results, None, head flags and None.
        """
        needs, keep = (self.needs, self.keep) if of_final is not None else (ENTRY, self.keep_entry)
        kept = [each if wanted else None for each, wanted in zip(saved[:6], keep, strict=True)]
        return backward_pass(self.kind, needs, (grad, of_final, *kept, *saved[6:]), policy)[0]


ENTRY = (False, False, False, True)


class Passed(NamedTuple):
    """A forward pass: its results, and what its gradients are made of."""

    outputs: Outputs
    number: int  # of the exchange
    spans: tuple[Span, ...] = ()  # none of a plain sum
    starts: Tensor | None = None  # head flags
    befores: tuple[Tensor | None, ...] = ()  # the carry into each span, where it is read
    results: tuple[Tensor | None, ...] = ()  # of each span, where they are read
    total: Outputs = ()  # the states of the spans, stacked, where they are read


def find_spans(
    scan: Scan, shard: shards.Shard, befores: Sequence[Tensor | None], needs: Sequence[bool]
) -> tuple[Span, ...]:
    """Return what the gradients of a rank's spans read; ``needs``: which of x, mask and gate have one."""
    valued, asked, found = shard.valued, (*needs, False), []
    for part, before in zip(scan.parts(valued), befores, strict=True):
        request = check_request(replace(valued.call, final=True), part.tensors._replace(offsets=None, initial=before))
        kind = RequestKind(request)
        keep, keep_entry = keeps(kind, asked), keeps(kind, ENTRY)
        generic = valued.has_slopes and not valued.is_paired
        found.append(
            Span(
                kind=kind,
                needs=asked,
                keep=keep,
                keep_entry=keep_entry,
                reads_before=keep[3] or generic or (keep_entry[3] and valued.has_slopes),
                reads_results=not shard.row.indices and (keep[4] or (keep_entry[4] and valued.has_slopes)),
                reads_total=generic,
            )
        )
    return tuple(found)


class TwoPass(torch.autograd.Function):
    """A sharded scan with its gradients: one exchange forward, and one backward, against the scan's direction.

    The backward pass is that of a rank's own scans, whose carries-in are inputs and whose carries-out are results: it
    exchanges the gradients of the former, which give those of the latter. The node saves what it reads, plain sums
    nothing, and inputs for derivatives of higher order: where a backward pass is itself recorded, the call is composed
    again of differentiable scans and exchanges.
    """

    @classmethod
    def record(cls, *given: Any) -> Outputs:
        """Return ``apply(*given)``, whose arguments torch need not bind by inspection: no transform is active."""
        found: Outputs = super(torch.autograd.Function, cls).apply(*given)  # type: ignore[misc]
        return found

    @staticmethod
    def forward(ctx: Any, scan: Scan, number: complex | None, *tensors: Tensor | None) -> Any:
        x, mask, gate, initial, starts, offsets = tensors
        assert x is not None
        given, needs = Inputs(x, mask, gate, starts, offsets), ctx.needs_input_grad[2:5]
        first = initial if number is None else number
        repeat, found = scan.repeated_twopass, None
        if repeat is not None:
            found = repeat.record(given, first, needs)
        if found is None:
            found = scan.record_parts(given, first, needs)
        ctx.scan, ctx.initial, ctx.spans, ctx.sent = scan, number, found.spans, found.number
        ctx.like, ctx.policy = (x.dtype, x.device), environment.SCOPED.get()
        if found.spans:
            ctx.save_for_backward(x, mask, gate, initial, found.starts, *found.befores, *found.results, *found.total)
        else:
            ctx.save_for_backward(None, None, None, initial, None)
        results = found.outputs[:-1] if scan.final else found.outputs
        if len(results) > 1:
            ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)
        return found.outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        scan, needs = ctx.scan, ctx.needs_input_grad[2:6]
        # A checkpoint computes the call again, with its exchanges, where saved tensors are read: here, on all ranks.
        x, mask, gate, initial, starts, *saved = ctx.saved_tensors
        dtype, device = ctx.like
        if torch.is_grad_enabled():
            if x is None:  # whatever the items are
                x = torch.zeros((), dtype=dtype, device=device).expand(scan.shape).requires_grad_()
            shard = scan.shard_with(Inputs(x, mask, gate, starts))
            found = scan.gradients(shard, (x, mask, gate, initial), ctx.initial, needs, grads, ctx.sent)
            return (None, None, *found, None, None)
        grad, of_final = grads[0], grads[-1] if scan.final else None
        if grad is None:
            grad = torch.zeros((), dtype=scan.result, device=device).expand(scan.shape)
        if scan.final:
            of_final = _or_zeros(scan, of_final, grad)
        with resumed(ctx.policy):  # autograd runs backward passes in threads of its own
            work = BackwardPass(ctx, Inputs(x, mask, gate, starts), grad, of_final, saved)
            found, of_initial = work.run(needs)
        if not needs[3]:
            return (None, None, *found, None, None, None)
        # The first rank's alone, and no memory of the exchange.
        of_initial = of_initial.clone() if scan.is_first else torch.zeros_like(of_initial)
        return (None, None, *found, of_initial.sum_to_size(initial.shape).to(initial.dtype), None, None)


def _or_zeros(scan: Scan, of_final: Tensor | None, grad: Tensor) -> Tensor:
    if of_final is not None:
        return of_final.contiguous()
    lines = line_shape(scan.shape, scan.call.dim)
    return torch.zeros(lines, dtype=scan.carry, device=grad.device)


class BackwardPass:
    """One backward pass in two passes, of a rank."""

    def __init__(
        self, ctx: Any, tensors: Inputs, grad: Tensor, of_final: Tensor | None, saved: Sequence[Tensor | None]
    ) -> None:
        self.scan, self.spans, self.number, self.policy = ctx.scan, ctx.spans, ctx.sent, ctx.policy
        self.tensors, self.grad, self.of_final = tensors, grad, of_final
        count = len(self.spans)
        self.befores, results, self.total = saved[:count], saved[count : 2 * count], saved[2 * count :]
        # Those of several spans are views, which kernels do not read.
        self.results = [None if each is None else each.contiguous() for each in results]
        self._values: dict[int, Tensor] = {}  # of spans, where results have indices

    def run(self, needs: Sequence[bool]) -> tuple[list[Tensor | None], Tensor]:
        """Return the gradients of x, mask and gate, and that of the initial value."""
        scan, repeat = self.scan, self.scan.repeated_twopass
        sent: tuple[Tensor, Tensor] | None = None
        if repeat is not None:
            sent = repeat.send_backward(self.grad, self.of_final, self.tensors, self.number, self.compute_states)
        if sent is None:
            into, of_initial = scan.send_backward(self.shard, self.compute, self.number)
        else:
            into, of_initial = [sent[0]], sent[1]
        if not any(needs[:3]):
            return [None, None, None], of_initial
        if self.spans:
            return self.pull_back(into), of_initial
        if repeat is not None and sent is not None:
            return [repeat.scan_back(self.grad, into[0]), None, None], of_initial
        back = [
            (shards.scan_local(scan.call_back, piece, initial=each),)
            for piece, each in zip(self.pieces, into, strict=True)
        ]
        return [join_spans(back, scan.call.dim)[0], None, None], of_initial

    @property
    def shard(self) -> shards.Shard:
        """The shard, of a plain sum without its items."""
        tensors, scan = self.tensors, self.scan
        if not self.spans:
            tensors = Inputs(self.grad.new_zeros((), dtype=scan.result).expand(scan.shape))
        found: shards.Shard = scan.shard_with(tensors)
        return found

    @property
    def pieces(self) -> Sequence[Tensor]:
        """The gradients of the results of each span."""
        layout = self.scan.layout
        if layout.width == 1:
            return [self.grad]
        return torch.split(self.grad, list(layout.lengths_of(self.scan.shape[self.scan.call.dim])), self.scan.call.dim)

    def compute(self) -> Outputs:
        """Return the states that a rank sends."""
        of_final, count = self.of_final, self.scan.layout.width
        if of_final is None:
            return self.compute_states()
        # The gradient of the carry-out is a state of the first span.
        each_of = [of_final, *[torch.zeros_like(of_final)] * (count - 1)]
        return (*self.compute_states(), torch.stack(each_of))

    def compute_states(self) -> Outputs:
        """Return the states of ``shards.find_entries`` of the spans, stacked."""
        shard, total = self.shard, [each for each in self.total if each is not None]
        if self.scan.has_indices:
            del total[1:2]
        found = []
        for k, (part, piece) in enumerate(zip(self.scan.parts(shard.valued), self.pieces, strict=True)):
            before = self.befores[k] if self.spans else None
            states = tuple(each[k] for each in total)
            found.append(shards.find_entries(part, piece, before, states, partial(self.find_entry, k)))
        return tuple(torch.stack(each) for each in zip(*found, strict=True))

    def find_entry(self, k: int, piece: Tensor) -> Tensor:
        """Return the gradient of the carry into a span, from that of its results."""
        found = self.spans[k].pull_back(piece, None, self.list_saved(k), self.policy)[3]
        return torch.zeros(self.shard.lines, dtype=self.scan.carry, device=piece.device) if found is None else found

    def list_saved(self, k: int) -> Tensors:
        """Return what the gradients of a span may read."""
        scan, tensors = self.scan, self.tensors
        if scan.layout.width > 1:
            tensors = scan.parts(self.shard)[k].tensors
        x, mask, gate, starts, *_ = tensors
        results, span = self.results[k], self.spans[k]
        if scan.has_indices and (span.keep[4] or span.keep_entry[4]):  # those of the values alone
            if k not in self._values:
                given = {"mask": mask, "gate": gate, "starts": starts, "initial": self.befores[k]}
                self._values[k] = shards.scan_local(self.shard.valued.call, x, **given)
            results = self._values[k]
        return (x, mask, gate, self.befores[k], results, None, starts, None)

    def pull_back(self, into: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of x, mask and gate, from those of the carries out of the spans."""
        every = zip(self.spans, self.pieces, into, strict=True)
        found = [
            span.pull_back(piece, each, self.list_saved(k), self.policy)[:3]
            for k, (span, piece, each) in enumerate(every)
        ]
        if len(found) == 1:
            return list(found[0])
        of_x, of_mask, of_gate = zip(*found, strict=True)
        (x, mask, gate, *_), dim = self.tensors, self.scan.call.dim
        whole = None if None in of_x else torch.cat(of_x, dim)
        return [whole, _join_gradients(of_mask, x.ndim, dim, mask), _join_gradients(of_gate, x.ndim, dim, gate)]


def _join_gradients(found: Sequence[Tensor | None], rank: int, dim: int, operand: Tensor | None) -> Tensor | None:
    """The gradient of an operand from those of its spans: of what belongs to each span, their sum."""
    pieces = [each for each in found if each is not None]
    if not pieces or operand is None:
        return None
    at = dim - rank + operand.ndim
    if at < 0 or operand.shape[at] == 1:
        return torch.stack(pieces).sum(0)
    return torch.cat(pieces, at)


def _compose_gradients(
    scan: Scan, grads: tuple[Tensor, Tensor | None], leaves: Tensors, starts: Tensor | None, number: complex | None,
    needs: Sequence[bool], likes: Sequence[tuple[torch.Size, torch.dtype] | None], sent: int,
) -> Tensors:  # fmt: skip
    """Return the gradients of one pass as functions of scans and exchanges, which can be differentiated.

    ``grads`` are those of the result and of the carry-out, ``leaves`` x, mask, gate and the initial value, which is
    ``number`` where it is one. ``likes``: shape and dtype of x and of the initial value, of which nodes save nothing
    where their values do not count.
    """
    x, mask, gate, initial = leaves

    def make_zeros(like: tuple[torch.Size, torch.dtype] | None) -> Tensor:
        assert like is not None
        return grads[0].new_zeros((), dtype=like[1]).expand(like[0]).requires_grad_()

    x = make_zeros(likes[0]) if x is None else x
    initial = make_zeros(likes[1]) if initial is None and needs[3] else initial
    shard = scan.shard_with(Inputs(x, mask, gate, starts))
    found = scan.gradients(shard, (x, mask, gate, initial), number, needs, grads[: 1 + scan.final], sent)
    return tuple(found)


class LinkedBackward:
    """The backward pass of linked calls of one kind, whose nodes are ``OnePass`` or in C++.

    ``needs`` are the gradients that a node is asked for. The initial value is an input of the node on every rank, with
    a gradient of zeros on all but the first in scan order.
    """

    def __init__(
        self,
        scan: Scan,
        kind: RequestKind,
        needs: Needs,
        initial: Tensor | complex | None,
        final: SharedFinal | None,
    ) -> None:
        self.scan, self.kind, self.final, self.needs = scan, kind, final, needs
        self._ledger: Ledger = scan.group.ledger
        self.initial = None if isinstance(initial, Tensor) else initial  # of the whole line, where it is a number
        self.like_initial = (initial.shape, initial.dtype) if isinstance(initial, Tensor) else None
        # Whether this rank's kernel begins with the initial value: that of the first rank in scan order.
        self.reads_initial = kind.shapes[3] is not None
        self.own_needs = (*needs[:3], needs[3] and self.reads_initial)  # of this rank's kernels
        self.keeps = keeps(kind, needs)
        call = kind.request.call
        receives = not self.reads_initial and call.link.fields(call.reverse)["linked_in"]
        gradient = kind.request.operator.gradient
        reads_before = gradient is not None and gradient.saved == "before" and keeps(kind, self.own_needs)[4]
        self.reads_carry_in = reads_before and receives  # whether the backward pass does
        self._carry_in: CarryIn | None = None
        self.number: int | None = None  # by which C++ asks for it

    @property
    def saves(self) -> bool:
        """Whether the node saves tensors: where kernels read some, all inputs are for derivatives of higher order."""
        kind = self.kind
        there = (*[each is not None for each in kind.shapes], True, kind.indexed)
        return kind.segmented or any(kept and given for kept, given in zip(self.keeps, there, strict=True))

    @property
    def saved_bits(self) -> int:
        """What the node saves of x, mask, gate, initial, result, indices and starts, as bits."""
        flags = (True, True, True, True, self.keeps[4], False, True) if self.saves else ()
        return sum(flag << place for place, flag in enumerate(flags))

    def read_carry_in(self, lines: torch.Size) -> Tensor | None:
        """Return what reached this rank in the last launch, if the backward pass reads it."""
        if not self.reads_carry_in:
            return None
        if self._carry_in is None:
            self._carry_in = self.kind.request.call.link.view_carry_in(self.kind, lines)
        return self._carry_in.read()

    def note(self) -> tuple[int, int]:
        """Return what the forward pass has to note for its backward pass: its place in the order of calls."""
        return self._ledger.count, self._ledger.log.count

    def begin(
        self, policy: str | None, noted: tuple[int, int], grad: Tensor | None, of_final: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Note the pass, which is not recorded itself, for other ranks. Return its gradients if they are others now."""
        self._ledger.log.note_launch(self.scan.backward_message, noted[1])
        if grad is not None and self.final is None:
            return None
        grad = self._gradient_or_zeros(grad)
        if self.final is None:
            return grad, of_final
        try:
            with resumed(policy):  # autograd runs backward passes in threads of its own
                of_line = self.final.add_up(of_final, grad)  # on all ranks, whether their losses depend on it or not
        except Exception:  # whatever it is: kernels of other ranks wait for this one's
            self.kind.request.call.link.abandon()
            raise
        return grad, of_line if self.kind.final else None

    def __call__(
        self, policy: str | None, given: Tensors, entered: Tensor | None, noted: tuple[int, int]
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients as ``NAMES``.

        ``given`` is as in ``backward_pass``, without offsets; ``entered``: the carry-in that reached this rank. The
        pass has begun unless it is recorded itself.
        """
        grad, of_final, x, mask, gate, initial, y, indices, starts = given
        if torch.is_grad_enabled():
            return self._compose(self._gradient_or_zeros(grad), of_final, (x, mask, gate, initial), starts, noted[0])
        assert grad is not None
        own = initial if self.reads_initial else entered
        read = zip((x, mask, gate, own, y, indices), self.keeps, strict=True)
        kept = [each if wanted else None for each, wanted in read]
        try:
            passed = (grad, of_final, *kept, starts, None)
            found, recipe = backward_pass(self.kind, self.own_needs, passed, policy)
        except Exception:  # whatever it is: kernels of other ranks wait for this one's
            self.kind.request.call.link.abandon()
            raise
        if recipe is not None and self.number is not None:
            begin = initial if entered is None else entered
            native.learn_gradient(self.number, (grad, of_final, x, mask, gate, begin, y, indices, starts), recipe)
        of_initial = found[3]
        if self.needs[3] and of_initial is None:
            assert self.like_initial is not None
            shape, dtype = self.like_initial
            of_initial = torch.zeros(shape, dtype=dtype, device=grad.device)
        return (*found[:3], of_initial)

    def _gradient_or_zeros(self, grad: Tensor | None) -> Tensor:
        """Return the gradient of the result."""
        if grad is not None:
            return grad
        shape, _ = self.kind.shapes[0]  # type: ignore[misc]
        return torch.zeros(shape, dtype=self.scan.result, device=self.kind.request.call.link.device)

    def _compose(
        self, grad: Tensor, of_final: Tensor | None, tensors: Tensors, starts: Tensor | None, number: int
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients as functions of scans and exchanges, which can be differentiated."""
        likes = self.kind.shapes[0], self.like_initial
        return _compose_gradients(self.scan, (grad, of_final), tensors, starts, self.initial, self.needs, likes, number)


class LinkedWork(NamedTuple):
    """The forward pass of a scan of linked lines: a kernel's, and what its backward pass is."""

    work: Any  # of ScanFunction
    passes: LinkedBackward
    entered: list[Tensor | None]  # the carry-in that reached this rank

    @property
    def kind(self) -> RequestKind:
        """What equal calls have in common."""
        return self.passes.kind

    def compute(self, tensors: Tensors) -> Outputs:
        """Launch on an operator's six tensors, the last of which is the initial value of the whole line."""
        passes = self.passes
        found: Outputs = self.work.compute(tensors if passes.reads_initial else (*tensors[:5], None))
        self.entered.append(passes.read_carry_in(line_shape(found[0].shape, passes.kind.request.call.dim)))
        return found if passes.final is None else passes.final.share(found)


class OnePass(ScanFunction):
    """A scan of linked lines, whose backward pass is the kernels of ``ScanFunction``'s: scans of linked lines.

    Where a backward pass is itself recorded, the call is composed of scans and exchanges as that of ``TwoPass``.
    """

    @classmethod
    def record_linked(
        cls, scan: Scan, work: Any, tensors: Tensors, initial: Tensor | complex | None, final: SharedFinal | None
    ) -> Outputs:
        """Return the results of ``work``, whose gradients are those of a sharded call.

        ``initial`` is that of the whole line; ``tensors`` are the operator's six, as this rank's kernel reads them;
        ``final`` hands the carry-out to all ranks.
        """
        if isinstance(initial, Tensor) and tensors[5] is None:
            tensors = (*tensors[:5], initial)
        needs = tuple(each is not None and each.requires_grad for each in Inputs(*tensors).differentiable)  # type: ignore[arg-type]
        return cls.record(LinkedWork(work, LinkedBackward(scan, work.kind, needs, initial, final), []), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        work, x, mask, gate, starts, _, initial = inputs
        passes = ctx.passes = work.passes
        ctx.policy, ctx.noted = environment.SCOPED.get(), passes.note()
        if passes.saves:  # in the order of nodes in C++
            y = output[0] if passes.keeps[4] else None
            ctx.save_for_backward(x, mask, gate, initial, y, None, starts, *work.entered)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        passes, grad, of_final = ctx.passes, given[0], given[1] if len(given) > 1 else None
        # What saves nothing may be run backward twice, as torch's own scans.
        *saved, entered = ctx.saved_tensors if passes.saves else (None,) * 8
        if not torch.is_grad_enabled():
            grad, of_final = passes.begin(ctx.policy, ctx.noted, grad, of_final) or (grad, of_final)
        x, mask, gate, initial = passes(ctx.policy, (grad, of_final, *saved), entered, ctx.noted)
        return (None, x, mask, gate, None, None, initial)
