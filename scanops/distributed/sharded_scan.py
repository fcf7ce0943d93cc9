"""Sharded calls: checks, what equal calls have in common, and the exchanges of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops import emulator, environment
from scanops import torch_private as private
from scanops.codegen.lazy import lazy
from scanops.codegen.operators import find_operator
from scanops.distributed import autograd_nodes, onepass, shards
from scanops.distributed.exchange import (
    CHECKS,
    Message,
    RepeatedExchange,
    Route,
    Turn,
    digest_of,
    refuse,
    route_of,
    take_turn,
)
from scanops.distributed.groups import Group, is_captured
from scanops.distributed.linked_calls import make_repeat
from scanops.distributed.links import Link
from scanops.distributed.shards import Carry, Shard, record_with
from scanops.distributed.spans import (
    Layout,
    in_order_of,
    join_spans,
    layout_of,
    split_spans,
)
from scanops.distributed.trade import Exchange, trade
from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.call import Call
from scanops.requests.geometry import ALIGNMENT, line_shape
from scanops.requests.request import NAMES, Inputs
from scanops.requests.segments import check_offsets, flags_along
from scanops.requests.torch_state import is_transformed, runs_kernels
from scanops.runtime import native

__all__ = ["How", "ShardedScan", "key_of", "scan_alone", "scan_shards"]

Outputs = tuple[Tensor, ...]
Initial = Tensor | complex | None
Starts = Sequence[int] | Tensor
METHODS = ("auto", "onepass", "twopass")
MOST_CALLS = 1024  # prepared calls of a group


class How(NamedTuple):
    """How ranks compute a call together: keywords of the functions of ``scanops.distributed``."""

    method: str = "auto"
    check: str = "first"
    spans: Any = None


# ---- repeated calls


def key_of(options: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
    """Return what is equal of equal calls of a group, or None for calls that are prepared anew.

    ``options`` are what is no tensor, ``tensors`` are as ``Inputs`` has them, the carry-in possibly a number. The key
    holds what a kernel's launch depends on: strides, alignment, the policy and the emulated GPU.
    """
    if private.are_transforms_active() or private.dual_level() >= 0 or private.count_modes():
        return None
    x, active = tensors[0], emulator.ACTIVE.get()
    try:
        key = (
            options,
            environment.SCOPED.get(),
            None if active is None or x.is_cuda else active.multiprocessors,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            private.is_autograd_excluded(),
            *[None if each is None else _facts_of(each) for each in tensors],
        )
        hash(key)
    except (TypeError, RuntimeError, AttributeError):  # a list among the options, or a tensor without sizes
        return None
    return key


def _facts_of(each: Any) -> Any:
    if type(each) is Tensor or type(each) is torch.nn.Parameter:
        if each.is_neg() or each.is_conj():
            raise TypeError
        aligned = each.data_ptr() % ALIGNMENT == 0
        return each.dtype, each.shape, each.stride(), each.device, each.requires_grad, aligned
    if isinstance(each, Tensor):
        raise TypeError
    return type(each), each


def scan_shards(
    who: str,
    request: Callable[[], tuple[Call, Inputs]],
    group: Group,
    how: How,
    key: Any,
    given: Inputs,
    asked: tuple[Any, ...] = (),
) -> Outputs:
    """Return this rank's results, and the carry-out of the whole line if the call asks for it.

    ``request`` makes the call and its tensors, or raises; ``who`` is the public function; ``key`` is that of
    ``key_of``, and ``given`` are the tensors that it is of; ``asked`` is what C++ knows the call by. Raises
    UnsupportedRequest, PeerMismatch or PeerLost.
    """
    if is_compiling():
        return _scan_traced(who, request, group, how)
    calls = group.ledger.calls
    known: ShardedScan | None = None if key is None else calls.get(key)
    if known is not None and (repeat := known.repeat) is not None and repeat.generation == native.generation():
        found = repeat.run(given)
        if found is not None:
            return found
    if known is None:
        try:
            call, read = request()
            number_gate = None if given.gate is None or isinstance(given.gate, Tensor) else read.gate
            known = prepare(who, call, read, group, how, number_gate)
            known.asked = asked
        except Exception as problem:  # whatever it is: the other ranks have to hear of it
            links = [each for each in group.ledger.links.values() if each]
            if links and how.method != "twopass":  # they may wait in kernels, and in no collective
                for link in links:
                    link.abandon()
                raise
            refuse(group, Message(who, {}, 0), problem, given.x)
        if key is not None:
            if len(calls) >= MOST_CALLS:
                calls.clear()
            calls[key] = known
    if is_captured(given.x) and (group.size > 1 or how.spans is not None):
        group.check_captured(who)
    return known.run(given)


def scan_alone(call: Call, given: Inputs) -> Outputs:
    """Return the outputs of the scan of one GPU."""
    found = shards.scan_local(call, given.x, **{name: getattr(given, name) for name in shards.OTHERS})
    return found if isinstance(found, tuple) else (found,)


def prepare(
    who: str, call: Call, given: Inputs, group: Group, how: How, number_gate: Tensor | None = None
) -> ShardedScan:
    """Return what equal calls have in common; the arguments are checked but for the values of offsets.

    ``number_gate``: the gate of ``given``, where users gave a number.
    """
    shard = _check_call(call, given, how)
    layout = layout_of(who, how.spans, group.size, group.rank, shard.length, reverse=shard.call.reverse)
    parts = {"function": who, **_parts(given, shard), "spans": layout.words}
    tensors = shard.tensors
    carry_in = given.initial if isinstance(given.initial, Tensor) else None
    recorded = tensors._replace(initial=carry_in).differentiates
    return ShardedScan(
        group=group,
        message=Message(who, parts, digest_of(str(parts)), how.check),
        call=shard.call,
        whole=call,
        carry=shard.carry,
        result=shard.result,
        final=shard.final,
        layout=layout,
        shape=tensors.x.shape,
        dtypes=tuple(None if each is None else each.dtype for each in tensors[:3]),
        recorded=recorded and (shard.result.is_floating_point or shard.result.is_complex),
        number_gate=number_gate,
        method=onepass.choose_method(
            how.method,
            shard,
            group.size,
            layout.width,
            recorded=recorded,
            of_initial=carry_in is not None and carry_in.requires_grad,
        ),
    )


def _check_call(call: Call, given: Inputs, how: How) -> Shard:
    for name, words in (("check", CHECKS), ("method", METHODS)):
        if getattr(how, name) not in words:
            *others, last = map(repr, words)
            raise UnsupportedRequest(
                f"{call.name}: {name} must be {', '.join(others)} or {last}",
                allowed=", ".join(map(repr, words)),
                value=f"{name}={format_value(getattr(how, name))}",
                hint=f"leave {name} out",
            )
    if not is_compiling() and is_transformed():
        raise UnsupportedRequest(
            f"{call.name}: a sharded scan does not run under torch.func transforms or forward mode",
            allowed="eager code, backward passes and torch.compile",
            value="an active transform",
            hint="transform a function that holds the whole dimension",
        )
    return shards.shard_of(call, given._replace(offsets=None), given.offsets)


def _parts(given: Inputs, shard: Shard) -> dict[str, str]:
    """Describe a call: what has to be equal on all ranks, in words for a message."""
    row, call, tensors, initial, offsets = shard.row, shard.call, shard.tensors, given.initial, given.offsets
    differentiable = tensors._replace(initial=initial if isinstance(initial, Tensor) else None)
    pairs = zip(NAMES, differentiable.differentiable, strict=True) if differentiable.differentiates else ()
    wanted = [name for name, each in pairs if each is not None and each.requires_grad]
    return {
        "operator": f"{row.name} {row.lift} {row.combine} {row.identity}",
        "dimension": f"dim={call.dim} of {tensors.x.ndim}",
        "lines": f"lines of shape {tuple(shard.lines)}",
        "dtypes": f"{tensors.x.dtype} to {shard.result}, carried in {shard.carry}",
        "options": f"reverse={call.reverse}, exclusive={call.exclusive}, return_final={shard.final}, "
        f"compensated={call.compensated}",
        "operands": ", ".join(name for name in ("mask", "gate", "starts") if getattr(tensors, name) is not None),
        "initial": f"{tuple(initial.shape)} {initial.dtype}" if isinstance(initial, Tensor) else f"{initial}",
        "offsets": "" if offsets is None else f"offsets of shape {tuple(offsets.shape)}",
        "gradients": f"gradients of {', '.join(wanted) or 'nothing'}",
    }


# ---- one call of a rank


class Sent(NamedTuple):
    """What a rank knows after the exchange of a forward pass."""

    shard: Shard  # with head flags in place of offsets
    total: tuple[Tensor, ...]  # the states of this rank's spans, stacked
    carries: list[Carry]  # into each span
    starts: list[Any]  # where each span begins, 0 where that does not count
    number: int  # of the exchange, the same on all ranks


@dataclass(kw_only=True, eq=False)
class ShardedScan:
    """A call whose arguments have been checked, without its tensors: what equal calls have in common."""

    group: Group
    message: Message
    call: Call  # for a shard alone
    whole: Call  # as it was given
    carry: torch.dtype
    result: torch.dtype
    final: bool
    layout: Layout  # positions in scan order
    shape: torch.Size  # of x
    dtypes: tuple[torch.dtype | None, ...]  # in which x, mask and gate are read
    recorded: bool  # whether autograd records the call
    method: str = "twopass"  # or "onepass"
    number_gate: Tensor | None = None  # the gate as a tensor, where it was given as a number
    asked: tuple[Any, ...] = ()  # what C++ knows equal calls by; nothing where they are left to Python
    repeat: Repeat | None = None  # what an equal call was made of, for the next one
    shared_final: onepass.SharedFinal | None = None  # of calls in one pass that return the carry-out

    def run(self, given: Inputs) -> Outputs:
        """Return the outputs for tensors that the call was prepared for."""
        if self.number_gate is not None:
            given = given._replace(gate=self.number_gate)
        x, mask, gate = (
            each if each is None or each.dtype == dtype else each.to(dtype)
            for each, dtype in zip(given[:3], self.dtypes, strict=True)
        )
        assert x is not None
        x = x if x.shape == self.shape else x.expand(self.shape)
        if self.group.size == 1 and self.layout.width == 1:
            return scan_alone(self.whole, given._replace(x=x))
        tensors, initial = given._replace(x=x, mask=mask, gate=gate, initial=None), given.initial
        shard = self.shard_with(tensors)
        if 0 in shard.lines:  # on every rank: there are no states, but calls are compared
            with take_turn(self.group, self.message, self.group.device_of(x)) as turn:
                turn.length = shard.length
                turn.offsets = 0 if given.offsets is None else _digest_of_offsets(given.offsets)
                turn.begin()
                self._check_offsets(given.offsets, turn.lengths())
            return self.without_lines(shard, initial)
        if self.method == "onepass" and (link := self.find_link(x)) is not None:
            return self.run_linked(link, tensors, given)
        if self.recorded:
            found = self.record_twopass(given._replace(x=x, mask=mask, gate=gate))
        else:
            sent = self.send_forward(shard, initial)
            found = self.with_final(self.finish(sent), sent.carries[0].final)
        if self._is_repeatable(shard) and all(
            mine is theirs for mine, theirs in zip(tensors[:5], given[:5], strict=True)
        ):
            self.repeat = RepeatedTwoPass(self, shard, initial)
        return found

    def record_twopass(self, given: Inputs) -> Outputs:
        """Return the results of two passes, recorded by autograd."""
        number = None if isinstance(given.initial, Tensor) else given.initial
        leaves = (*given[:3], given.initial if number is None else None)
        return autograd_nodes.TwoPass.record(self, number, *leaves, given.starts, given.offsets)

    def record_parts(self, given: Inputs, initial: Initial, needs: Sequence[bool]) -> autograd_nodes.Passed:
        """Return the results of two passes, and what is kept for gradients; ``needs``: of x, mask and gate."""
        sent = self.send_forward(self.shard_with(given), initial)
        shard, found = sent.shard, self.finish(sent)
        outputs = self.with_final(found, sent.carries[0].final)
        if shard.is_plain_sum:
            return autograd_nodes.Passed(outputs, sent.number)
        befores = [None if each.before is None else each.before.to(shard.carry) for each in sent.carries]
        spans = autograd_nodes.find_spans(self, shard, befores, needs)
        results = split_spans(Inputs(found[0]), shard.call.dim, self.layout.lengths_of(shard.length))
        return autograd_nodes.Passed(
            outputs,
            sent.number,
            spans,
            shard.tensors.starts,
            tuple(each if span.reads_before else None for each, span in zip(befores, spans, strict=True)),
            tuple(each.x if span.reads_results else None for each, span in zip(results, spans, strict=True)),
            sent.total if spans[0].reads_total else (),
        )

    @lazy
    def has_indices(self) -> bool:
        """Whether results have indices beside them."""
        return bool(find_operator(self.call.op).indices)

    @property
    def repeated_twopass(self) -> RepeatedTwoPass | None:
        """What repeats the call in two passes, if something does."""
        return self.repeat if isinstance(self.repeat, RepeatedTwoPass) else None

    @property
    def call_back(self) -> Call:
        """The scan of the gradients of a plain sum."""
        return replace(self.call, reverse=not self.call.reverse, dtype=self.result)

    def _is_repeatable(self, shard: Shard) -> bool:
        """Whether the next equal call may do without what does not depend on its tensors."""
        tensors, (_, route) = shard.tensors, self.forward_route(shard)
        return (
            self.layout.width == 1
            and not (shard.row.indices or route.trades or self.number_gate is not None or tensors.offsets is not None)
            and self.group.device_of(tensors.x) == tensors.x.device
            and not (tensors.x.is_cuda and (self.message.check == "always" or is_captured(tensors.x)))
        )

    def find_link(self, x: Tensor) -> Link | None:
        """Return the link of this rank, None where the call takes two passes."""
        return onepass.link_of(self.group, self.message, x)

    def run_linked(self, link: Link, tensors: Inputs, given: Inputs) -> Outputs:
        """Return the results by kernels that hand on the states of lines; ``given`` is what ``run`` was given."""
        call = replace(self.call, link=link, final=self.final and self.is_last, dtype=self.result)
        read = tensors._replace(initial=given.initial) if self.is_first else tensors
        final, lines = self.shared_final, line_shape(self.shape, call.dim)
        if self.final and (final is None or final.link is not link):
            self.shared_final = final = onepass.SharedFinal(link, call, self.carry, lines)
        found = onepass.scan_linked(call, read, partial(self.record, given.initial, final) if self.recorded else None)
        if final is not None and not self.recorded:
            found = final.share(found)
        # Equal calls are repeated where the kernel read their tensors as they were given.
        kept = all(mine is theirs for mine, theirs in zip(tensors[:5], given[:5], strict=True))
        if kept and self.number_gate is None and self.message.check != "always":
            self.repeat = make_repeat(self, call, read, final)
        return found

    def record(
        self, initial: Initial, final: onepass.SharedFinal | None, work: Any, tensors: tuple[Tensor | None, ...]
    ) -> Outputs:
        """Return the results of kernels that hand on the states of lines, recorded by autograd.

        ``initial`` is that of the whole line, which the first rank's ``tensors`` hold. ``final`` hands the carry-out
        to all ranks; None where it stays on the last one, or is not asked for.
        """
        return autograd_nodes.OnePass.record_linked(self, work, tensors, initial, final)

    def shard_with(self, tensors: Inputs) -> Shard:
        """Return the shard of these tensors."""
        return Shard(call=self.call, tensors=tensors, carry=self.carry, result=self.result, final=self.final)

    @lazy
    def is_first(self) -> bool:
        """Whether this rank has the first span in scan order, which the initial value enters."""
        return 0 in self.layout.positions

    @lazy
    def is_last(self) -> bool:
        """Whether this rank has the last span in scan order, whose carry-out is that of the line."""
        return len(self.layout.rows) - 1 in self.layout.positions

    @lazy
    def backward_message(self) -> Message:
        """What ranks compare of the exchange of a backward pass."""
        return self.message.derive("backward")

    def without_lines(self, shard: Shard, initial: Initial) -> Outputs:
        """Return the outputs of a shard without lines, which depend on the inputs as those of other ranks do."""
        empty = shard.tensors.x.new_empty(shard.lines, dtype=self.carry)
        with torch.no_grad():
            found = join_spans(
                [shards.finish(part, Carry(None, empty), 0) for part in self.parts(shard)], self.call.dim
            )
        if self.recorded:
            given = (*shard.tensors.differentiable[:3], initial)
            for leaf in (each for each in given if isinstance(each, Tensor) and each.requires_grad):
                found, empty = (record_with(leaf, found[0]), *found[1:]), record_with(leaf, empty)
        return self.with_final(found, empty)

    def parts(self, shard: Shard) -> list[Shard]:
        """Return the spans of this rank's shard, each a shard of its own."""
        if self.layout.width == 1:
            return [shard]
        pieces = split_spans(shard.tensors, shard.call.dim, self.layout.lengths_of(shard.length))
        return [replace(shard, tensors=each) for each in pieces]

    # ---- forward

    def send_forward(self, shard: Shard, initial: Initial) -> Sent:
        """Exchange states; return the carry into each span of this rank."""
        offsets, indices = shard.tensors.offsets, bool(shard.row.indices)
        layout, device, reverse = self.layout, shard.tensors.x.device, self.call.reverse
        gives = [self.carry, torch.int64] if indices else [self.carry]
        common = [self.carry] if self.final else []
        total: list[Any] = []
        with take_turn(self.group, self.message, self.group.device_of(shard.tensors.x)) as turn:
            turn.length = shard.length
            model, route = self.forward_route(shard)
            turn.plan(route)
            begins: Starts = ()
            if offsets is not None:
                turn.offsets = _digest_of_offsets(offsets)
                turn.begin()
                lengths = turn.lengths()
                self._check_offsets(offsets, lengths)
                try:
                    begins, shard = self.place_flags(lengths, shard, offsets)
                except Exception as problem:
                    turn.refuse(problem)

            def compute() -> tuple[Tensor, ...]:
                total.extend(_stack([shards.totals(part) for part in self.parts(shard)]))
                return tuple(total)

            def fold(states: Outputs, first: Initial) -> tuple[list[Tensor], list[Tensor]]:
                begin: Starts = begins
                if indices:
                    begin = self.starts(turn.lengths()) if layout.half is None else layout.starts_on(device, reverse)
                folded = shards.fold(shard, states, first, begin)
                after = [each for each in folded if each is not None]
                return after, [folded.after[-1]]

            into, ends = self.combine(turn, shard, compute, model, fold, initial, gives, common, behind=True)
            begins = begins if len(begins) or not indices else self.starts(turn.lengths())
            number = turn.ledger.count
        carries = []
        for k, position in enumerate(self.layout.positions):
            before, *places = (each[k] for each in into)
            if position == 0:
                carries.append(Carry(_first_of(initial, shard, self.carry), ends[0] if ends else before))
            else:
                carries.append(Carry(before, ends[0] if ends else before, places[0] if places else None))
        starts: list[Any] = [begins[position] if len(begins) else 0 for position in self.layout.positions]
        return Sent(shard, tuple(total), carries, starts, number)

    def _check_offsets(self, offsets: Tensor | None, lengths: Tensor | list[int]) -> None:
        """Raise for positions that are not those of a line, on all ranks: they have the same, and know the lengths."""
        if offsets is not None and not isinstance(lengths, Tensor):
            check_offsets(self.message.who, offsets, offsets.new_empty(1).expand(sum(lengths)), 0)

    def starts(self, lengths: Tensor | Sequence[int]) -> Starts:
        """Return where the span at each position begins in the line, from the lengths of all shards."""
        return self.layout.starts_of(lengths, self.call.reverse)

    def place_flags(self, lengths: Tensor | Sequence[int], shard: Shard, offsets: Tensor) -> tuple[Starts, Shard]:
        """Return where the spans of all positions begin, and the shard with head flags in place of offsets."""
        dim, x, begins = self.call.dim, shard.tensors.x, self.starts(lengths)
        begins = begins.to(x.device) if isinstance(begins, Tensor) else begins
        line = x.new_empty(1).expand([shard.length if d == dim else 1 for d in range(x.ndim)])
        spans = split_spans(Inputs(line), dim, self.layout.lengths_of(shard.length))
        pieces = zip(spans, self.layout.positions, strict=True)
        of_spans: Any = [flags_along(None, offsets, piece.x, dim, self.call.chunk, begins[at]) for piece, at in pieces]
        flags = of_spans[0] if len(of_spans) == 1 else torch.cat(of_spans, dim)
        return begins, replace(shard, tensors=shard.tensors._replace(starts=flags, offsets=None))

    def finish(self, sent: Sent) -> Outputs:
        """Return the results of this rank's spans."""
        each = zip(self.parts(sent.shard), sent.carries, sent.starts, strict=True)
        return join_spans([shards.finish(part, carry, start) for part, carry, start in each], self.call.dim)

    def with_final(self, found: Outputs, final: Tensor) -> Outputs:
        """Return results, with the carry-out if the call asks for it."""
        return (*found, final.to(self.carry)) if self.final else found

    # ---- exchanges

    def forward_route(self, shard: Shard) -> tuple[Any, Route]:
        """Return shape and dtype of the states of a shard, and how they travel."""
        known = self.__dict__.get("_forward")
        if known is None:
            gives = [self.carry, torch.int64] if shard.row.indices else [self.carry]
            common = [self.carry] if self.final else []
            known = self._find_route(shard.model, gives, common, rides=shard.tensors.offsets is None)
            self.__dict__["_forward"] = known
        found: tuple[Any, Route] = known
        return found

    def _find_route(
        self, model: Any, gives: Sequence[torch.dtype], common: Sequence[torch.dtype], *, rides: bool
    ) -> tuple[Any, Route]:
        width, lines = self.layout.width, model[0][0].numel()
        size = -(-lines // self.group.size)
        out = [((width, size), dtype) for _, dtype in model]
        back = [*[((width, size), dtype) for dtype in gives], *[((size,), dtype) for dtype in common]]
        stacked = [((width, *shape), dtype) for shape, dtype in model]
        return stacked, route_of(stacked, self.group.size, rides=rides, blocks=(out, back))

    def combine(
        self, turn: Turn, shard: Shard, compute: Callable[[], Outputs], model: Any, fold: Callable[..., Any],
        initial: Initial, gives: Sequence[torch.dtype], common: Sequence[torch.dtype], *, behind: bool,
    ) -> tuple[list[list[Tensor]], list[Tensor]]:  # fmt: skip
        """Fold the states of all ranks; return what each span of this rank gets of it, and what all ranks get.

        ``fold`` maps states in scan order, and the carry-in of the line, to tensors with an item for each position, of
        which a span gets the one of its own position, or with ``behind`` of that before, and to those for all.
        """
        layout, ranks = self.layout, self.group.size
        at = [max(position - behind, 0) for position in layout.positions]
        if not turn.trades:
            found = turn.send_states(compute, model)
            by_position, for_all = fold(self.in_order(found), initial)
            return [[each[k] for k in at] for each in by_position], for_all if common else []
        states = turn.compute_states(compute)
        lines, size = shard.lines, -(-shard.lines.numel() // ranks)
        own = turn.trade_blocks([_in_blocks(each, ranks, size) for each in states],
                                [((layout.width, size), each.dtype) for each in states])  # fmt: skip
        if isinstance(initial, Tensor):
            initial = _in_blocks(initial.expand(lines).unsqueeze(0), ranks, size)[self.group.rank][0]
        by_position, for_all = fold(self.in_order(own), initial)
        rows = [max(layout.rows.index(row) - behind, 0) for row in range(ranks * layout.width)]
        back = [in_order_of(rows, each).reshape(ranks, layout.width, -1) for each in by_position]
        back += [each.expand(ranks, *each.shape) for each in for_all] if common else []
        model = [((layout.width, size), dtype) for dtype in gives] + [((size,), dtype) for dtype in common]
        whole = turn.trade_blocks(back, model, back=True)
        each_of = [
            each.movedim(0, -2).flatten(-2)[..., : lines.numel()].reshape((*each.shape[1:-1], *lines)) for each in whole
        ]
        return [list(each.unbind(0)) for each in each_of[: len(gives)]], each_of[len(gives) :]

    def in_order(self, stacked: Outputs) -> Outputs:
        """States [rank, span, ...] as [position in scan order, ...]."""
        return tuple(in_order_of(self.layout.rows, each.flatten(0, 1)) for each in stacked)

    def send_backward(self, shard: Shard, compute: Callable[[], Outputs], number: int) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of the carries out of this rank's spans, and that of the initial value.

        ``compute`` returns the states of ``shards.find_entries`` of the spans, stacked, and the gradient of the
        carry-out where the call returns it.
        """

        def fold(states: Outputs, _: Initial) -> tuple[list[Tensor], list[Tensor]]:
            entries, slopes = shards.split_gradients(shard, states)
            of_final = states[-1].sum(0, dtype=entries.dtype) if self.final else None
            into, of_initial = shards.fold_back(slopes, entries, of_final, shards.back_over_ranks(shard, reverse=True))
            return [into.to(self.carry)], [of_initial.to(self.carry)]

        gives = common = [self.carry]
        stacked, route = self._find_route(self.backward_model(shard), gives, common, rides=True)
        with take_turn(self.group, self.backward_message, self.group.device_of(shard.tensors.x)) as turn:
            turn.number, turn.length = number, shard.length
            turn.plan(route)
            into, of_all = self.combine(turn, shard, compute, stacked, fold, None, gives, common, behind=False)
        return into[0], of_all[0]

    def backward_model(self, shard: Shard) -> list[tuple[torch.Size, torch.dtype]]:
        """Return shape and dtype of the states of a backward pass."""
        return [*shard.backward_model, *[(shard.lines, self.carry)] * self.final]

    def backward_route(self, shard: Shard) -> Route:
        """Return how the states of a backward pass travel."""
        return self._find_route(self.backward_model(shard), [self.carry], [self.carry], rides=True)[1]

    # ---- derivatives of higher order, and compiled code

    def compose(self, shard: Shard, initial: Initial, exchange: Exchange) -> tuple[Outputs, Tensor]:
        """Return the outputs by differentiable scans and exchanges; and a state that this rank has sent."""
        valued, ranks = shard.valued, self.group.size
        parts = self.parts(valued)
        total = _stack([shards.totals(part, recorded=True) for part in parts])
        read = (*shard.tensors.differentiable[:3], initial)
        leaf = next((each for each in read if isinstance(each, Tensor) and each.requires_grad), shard.tensors.x)
        # Those of an empty shard may be constants, but ranks exchange the same gradients.
        total = tuple(each if each.dtype == torch.bool else record_with(leaf, each) for each in total)
        # The initial value travels from the first rank, so that its whole gradient is there.
        first = [initial.expand(shard.lines)] if isinstance(initial, Tensor) else []
        traded = trade(self.group, exchange, [each.expand(ranks, *each.shape) for each in (*total, *first)])
        states = self.in_order(traded[: len(total)])
        initial = traded[-1][self.layout.rows[0] // self.layout.width] if first else initial
        carries = shards.fold_recorded(valued, states, initial, self.layout.positions)
        found = join_spans([shards.finish(*each, 0) for each in zip(parts, carries, strict=True)], self.call.dim)
        return self.with_final(found, carries[0].final), total[0]

    def gradients(
        self, shard: Shard, tensors: Sequence[Tensor | None], number: Any, needs: Any, grads: Any, sent: int
    ) -> list[Tensor | None]:
        """Return the gradients as functions of inputs and incoming gradients, which can be differentiated."""
        x, mask, gate, initial = tensors
        assert x is not None
        read = replace(shard, tensors=shard.tensors._replace(x=x, mask=mask, gate=gate))
        exchange = Exchange("again", self.message.derive("again"), sent)
        outputs, state = self.compose(read, initial if number is None else number, exchange)
        grads = (grads[0], *grads[2:]) if shard.row.indices else grads
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
        used = [(y, g) for y, g in pairs if g is not None]  # zeros would make second derivatives of 0 * inf
        pairs = used or [(y, torch.zeros_like(y)) for y, _ in pairs]
        wanted = [each for each, need in zip(tensors, needs, strict=True) if need and each is not None]
        of_state, *found = torch.autograd.grad(
            [y for y, _ in pairs], [state, *wanted], [g for _, g in pairs], create_graph=True, allow_unused=True
        )
        # A rank without items has gradients that depend on no exchange, but the others wait for it.
        each_of = iter(
            record_with(of_state, torch.zeros_like(leaf) if each is None else each)
            for each, leaf in zip(found, wanted, strict=True)
        )
        return [next(each_of) if need else None for need in needs]


class Repeat(Protocol):
    """What an equal call was made of."""

    @property
    def generation(self) -> int: ...
    def run(self, given: Inputs) -> Outputs | None: ...


class Folding(NamedTuple):
    """Views of the states of all ranks, and where their scan over the ranks is written."""

    value: Tensor
    other: Tensor | None  # products of gates, or slopes
    third: Tensor | None  # head flags, or the gradients of the carry-out
    after: Tensor
    before: Tensor | None  # of ``after``, behind the rank before this one; None where there is none
    last: Tensor  # of ``after``, behind the last rank


class RepeatedTwoPass:
    """What repeats a call in two passes: its scans of one GPU and its exchanges, made once."""

    def __init__(self, scan: ShardedScan, shard: Shard, initial: Initial) -> None:
        call, (x, _, gate, *_) = shard.call, shard.tensors
        self.generation = native.generation()
        self._scan, self._shard, self._position = scan, shard.without_memory(), scan.layout.positions[0]
        self._lines, self._carry, self._device = shard.lines, scan.carry, x.device
        self._totals = shards.find_totals(shard, shards.RepeatedScan)
        route = scan.forward_route(shard)[1]
        self._exchange = self._exchange_of(scan.message, shard.model, route, self._view_states)
        over_ranks = shards.over_ranks(shard, reverse=self._exchange.is_backwards)
        self._fold, self._fold_dtype = shards.RepeatedScan(over_ranks), over_ranks.dtype or scan.carry
        self._fold_carry = scan.carry if gate is None else shard.wide  # the dtype of its carry-in
        self._finish = shards.RepeatedScan(call)
        # A carry-in that is a number, as the scans of states and of items read it.
        self._number: Tensor | None = None
        self._first: Tensor | None = None
        if initial is not None and not isinstance(initial, Tensor):
            self._number = torch.full((), initial, dtype=self._fold_carry, device=x.device)
            self._first = _first_of(initial, shard, scan.carry)
        # What is kept for gradients, by those that are needed, and the exchange of a backward pass.
        self._is_plain = shard.is_plain_sum
        self._spans: dict[tuple[bool, ...], autograd_nodes.Span] = {}
        self._backward: RepeatedExchange | None = None
        if scan.recorded and not (route := scan.backward_route(shard)).trades:
            model = scan.backward_model(shard)
            self._backward = self._exchange_of(scan.backward_message, model, route, self._view_gradients)
            call_back = shards.back_over_ranks(shard, reverse=not self._backward.is_backwards)
            self._fold_back = shards.RepeatedScan(call_back)
            self._has_carry, self._has_pairs = self._position > 0 or initial is not None, shard.has_paired_entries
            self._entry = shards.RepeatedScan(shards.call_of_entry(shard), varies=True)
            self._scan_back = shards.RepeatedScan(scan.call_back, varies=True)

    def _exchange_of(
        self, message: Message, model: Any, route: Route, view: Callable[[Outputs], Folding]
    ) -> RepeatedExchange:
        shard, rows, flagged = self._shard, self._scan.layout.rows, self._shard.tensors.starts is not None
        return RepeatedExchange(
            self._scan.group, message, self._device, shard.length, model, route, rows, view, flagged=flagged
        )

    def _place_of(self, position: int) -> int:
        """Return where the state at a position of scan order is among those of all ranks."""
        return position if not self._exchange.is_backwards else self._scan.group.size - 1 - position

    def _view_states(self, states: Outputs) -> Folding:
        value, other, begins = shards.split_states(self._shard, states)
        after = torch.empty(value.shape, dtype=self._fold_dtype, device=value.device)
        before = after[self._place_of(self._position - 1)] if self._position else None
        return Folding(value, other, begins, after, before, after[self._place_of(len(after) - 1)])

    def run(self, given: Inputs) -> Outputs | None:
        """Return the outputs for tensors like those of the call; None where it has to be made by its parts."""
        if self._scan.recorded:
            return None if is_captured(given.x) else self._scan.record_twopass(given)
        sent = self.send(given, given.initial)
        if sent is None:
            return None
        found = self.finish(given, sent[0])
        return (*found, sent[0].final) if self._scan.final else found

    def send(self, given: Inputs, initial: Initial) -> tuple[Carry, Outputs, int] | None:
        """Exchange states; return the carry into this shard, its states, and the number of the exchange.

        The carry-out is the caller's; the others are good until the next exchange.
        """
        lane = None if is_captured(given.x) else self._exchange.send(partial(self._totals, *given[:4]))
        if lane is None:
            return None
        fold: Folding = lane.views
        before, final = self._first, None
        if isinstance(initial, Tensor) and not self._position:
            before = initial.to(self._carry).expand(self._lines).contiguous()
        if self._position or self._scan.final:
            first = initial.to(self._fold_carry) if isinstance(initial, Tensor) else self._number
            (after,) = self._fold(fold.value, None, fold.other, fold.third, None, first, outs=(fold.after,))
            if after is not fold.after:
                fold.after.copy_(after)
            if fold.before is not None:
                before = fold.before if self._fold_dtype == self._carry else fold.before.to(self._carry)
            final = fold.last.to(self._carry, copy=True) if self._scan.final else None
        return Carry(before, final), lane.own, self._exchange.ledger.count  # type: ignore[arg-type]

    def finish(self, given: Inputs, carry: Carry) -> Outputs:
        """Return the results of the shard."""
        return self._finish(*given[:4], None, carry.before)

    def record(self, given: Inputs, initial: Initial, needs: tuple[bool, ...]) -> autograd_nodes.Passed | None:
        """Return the results, and what is kept for gradients; None where the call has to be made by its parts."""
        sent = self.send(given, initial)
        if sent is None:
            return None
        carry, own, number = sent
        found = self.finish(given, carry)
        outputs = (*found, carry.final) if self._scan.final else found
        if self._is_plain:
            return autograd_nodes.Passed(outputs, number)
        span = self._spans.get(needs)
        if span is None:
            shard = self._scan.shard_with(given)
            (span,) = autograd_nodes.find_spans(self._scan, shard, [carry.before], needs)
            span.kind.lasts = True
            self._spans[needs] = span
        before = carry.before if span.reads_before else None
        if self._position and before is not None:  # the next exchange writes over it
            before = before.clone()
        total = tuple([each.clone().unsqueeze(0) for each in own]) if span.reads_total else ()
        return autograd_nodes.Passed(
            outputs, number, (span,), given.starts, (before,), (found[0] if span.reads_results else None,), total
        )

    def send_backward(
        self, grad: Tensor, of_final: Tensor | None, tensors: Inputs, number: int, compute: Callable[[], Outputs]
    ) -> tuple[Tensor, Tensor] | None:
        """Return the gradients of the carry out of this shard and of the initial value, as ``shards.fold_back``.

        They are good until the next exchange. ``grad`` and ``of_final`` are the gradients of results and carry-out;
        ``compute`` returns the states to exchange where no single operator or kernel does. None where the backward pass
        has to be made by its parts.
        """
        if self._backward is None:
            return None

        def find(own: Outputs) -> Outputs:
            entries = self._find_entries(grad, tensors, own) or tuple([each.squeeze(0) for each in compute()])
            return entries if of_final is None else (*entries, of_final)

        lane = self._backward.send(find, number, is_captured=is_captured(grad))
        if lane is None:
            return None
        fold: Folding = lane.views
        of_line = None if fold.third is None else fold.third.sum(0, dtype=fold.value.dtype)
        (after,) = self._fold_back(fold.value, None, fold.other, None, None, of_line, outs=(fold.after,))
        if after is not fold.after:
            fold.after.copy_(after)
        into = of_line if fold.before is None else fold.before
        assert into is not None
        return into if into.dtype == self._carry else into.to(self._carry), fold.last

    def _find_entries(self, grad: Tensor, tensors: Inputs, own: Outputs) -> Outputs:
        """The states of ``shards.find_entries`` by one operator or kernel, in ``own`` if possible, else nothing."""
        shard = self._shard
        if not shard.has_slopes:
            return (torch.sum(grad, shard.call.dim, dtype=self._carry, out=own[0]),)
        if not self._has_carry:  # nothing reads them
            return own[: len(own) - self._scan.final]
        if self._has_pairs and grad.dtype == shard.result and runs_kernels((grad,)):
            return self._entry(grad, tensors.mask, tensors.gate, None, None, None, outs=own[:1])
        return ()

    def scan_back(self, grad: Tensor, into: Tensor) -> Tensor:
        """Return the gradient of a plain sum, from those of its results and of its carry-out: a sum as well."""
        return self._scan_back(grad, None, None, None, None, into)[0]

    def _view_gradients(self, states: Outputs) -> Folding:
        entries, slopes = shards.split_gradients(self._shard, states)
        dtype = shards.back_over_ranks(self._shard, reverse=False).dtype
        after, behind = torch.empty(entries.shape, dtype=dtype, device=entries.device), self._position + 1
        before = None if self._scan.final else torch.zeros(self._lines, dtype=self._carry, device=entries.device)
        if behind < len(entries):
            before = after[self._place_of(behind)]
        return Folding(
            entries, slopes, states[-1] if self._scan.final else None, after, before, after[self._place_of(0)]
        )


def _scan_traced(who: str, request: Callable[[], tuple[Call, Inputs]], group: Group, how: How) -> Outputs:
    """Return the outputs of a call that a compiler traces: differentiable scans, and exchanges by an operator."""
    call, given = request()
    shard = _check_call(call, given, how)
    layout = layout_of(who, how.spans, group.size, group.rank, shard.length, reverse=shard.call.reverse)
    if group.size == 1 and layout.width == 1:
        return scan_alone(call, given)
    recorded = torch.is_grad_enabled() and (shard.result.is_floating_point or shard.result.is_complex)
    scan = ShardedScan(
        group=group, message=Message(who, {}, 0), call=shard.call, whole=call, carry=shard.carry, result=shard.result,
        final=shard.final, layout=layout, shape=shard.tensors.x.shape, dtypes=(),
        recorded=recorded,
    )  # fmt: skip
    if 0 in shard.lines:
        return scan.without_lines(shard, given.initial)
    name = f"{who} {call.op} {shard.call.dim} {shard.tensors.x.dtype} {shard.result} {call.reverse} {call.exclusive}"
    offsets, lengths = shard.tensors.offsets, torch.empty(0)
    begins: Any = None if layout.half is None else scan.starts(())
    starts: list[Any] = [0] * layout.width if begins is None else [begins[at] for at in scan.layout.positions]
    if begins is None and (offsets is not None or shard.row.indices):
        length = torch.full((group.size, 1), shard.length, device=shard.tensors.x.device)
        lengths = trade(group, Exchange(f"lengths of {name}"), [length])[0][:, 0]
        begins = scan.layout.starts_of(lengths, shard.call.reverse)  # type: ignore[assignment]
        starts = [begins[at] for at in scan.layout.positions]  # type: ignore[index]
    if offsets is not None:
        begins, shard = scan.place_flags(lengths, shard, offsets)  # type: ignore[assignment]
    found: Outputs = ()
    if recorded or not shard.row.indices:
        found, _ = scan.compose(shard, given.initial, Exchange(name))
    if not shard.row.indices:
        return found
    with torch.no_grad():
        total = _stack([shards.totals(part) for part in scan.parts(shard)])
        states = [each.expand(group.size, *each.shape) for each in total]
        in_order = scan.in_order(trade(group, Exchange(f"indices of {name}"), states))
        folded = shards.fold(shard, in_order, given.initial, begins)  # type: ignore[arg-type]
        first = Carry(_first_of(given.initial, shard, shard.carry), folded.after[-1])
        carries = [
            Carry(folded.after[at - 1], folded.after[-1], folded.places[at - 1]) if at else first  # type: ignore[index]
            for at in scan.layout.positions
        ]
        values = scan.finish(Sent(shard, total, carries, starts, 0))
    return (found[0], values[1], *found[1:]) if found else scan.with_final(values, folded.after[-1])


def _first_of(initial: Initial, shard: Shard, dtype: torch.dtype) -> Tensor | None:
    """The carry into the first span, with an item for each line."""
    if initial is None:
        return None
    if isinstance(initial, Tensor):
        return initial.expand(shard.lines)
    return torch.full(shard.lines, initial, dtype=dtype, device=shard.tensors.x.device)


def _digest_of_offsets(offsets: Tensor) -> Tensor:
    """A number that equal positions have in common, where they are: a sum that wraps around."""
    weights = torch.arange(1, offsets.numel() + 1, device=offsets.device) * 0x1E3779B97F4A7C15 | 1
    return (offsets.long() * weights).sum()


def _in_blocks(states: Tensor, ranks: int, size: int) -> Tensor:
    """States [span, ...] as [block of lines, span, line]; the last blocks may hold lines that there are not."""
    flat = states.flatten(1) if states.ndim > 1 else states.unsqueeze(1)
    flat = torch.nn.functional.pad(flat, (0, ranks * size - flat.shape[1]))
    return flat.reshape(-1, ranks, size).transpose(0, 1)


def _stack(states: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    if len(states) == 1:
        return tuple([each.unsqueeze(0) for each in states[0]])
    return tuple(torch.stack(each) for each in zip(*states, strict=True))
