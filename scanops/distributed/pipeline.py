"""One pass over several nodes: the lines in bands, each scanned by one node while the next scans the band before.

Within a node a band is one linked scan (onepass.py). The last rank of the node sends the states at the end of the
band's lines to the first rank of the next node (nodes.py), which scans them as its carry-in, and goes on with the next
band. With B bands and N nodes this takes (B + N - 1) / B of the time of one pass.

Bands are views along the dimensions in front of the scanned one, and their results are slices of one tensor: nothing is
copied. A call without such dimensions is one band.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scanops.distributed.exchange import Message
from scanops.distributed.groups import bytes_of_tensor, is_captured, run_collective
from scanops.distributed.links import EPOCH_BITS, HAS_FAILED, CarryIn
from scanops.distributed.nodes import Border, Messages, Nodes
from scanops.errors import PeerLost
from scanops.ops.backward import keeps
from scanops.ops.node import backward_pass
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import NAMES, Inputs, Needs, RequestKind, Tensors, check_request
from scanops.requests.torch_state import runs_kernels
from scanops.runtime import call_cache, native
from scanops.runtime.launcher import Launcher, readable

__all__ = ["Band", "BandedScan", "count_cuts", "divide_lines"]

ALIGNED_LINES = 16  # a multiple of so many lines begins on a 16-byte boundary, of any dtype and length


class Band(NamedTuple):
    """Some of the lines of a tensor: items ``start`` to ``stop`` of the dimension behind those that ``at`` indexes."""

    at: tuple[int, ...]
    start: int
    stop: int

    def take(self, tensor: Tensor) -> Tensor:
        """Return a view of these lines of a tensor; of the whole one if it is a single band."""
        if self.stop < 0:
            return tensor
        return (tensor[self.at] if self.at else tensor).narrow(0, self.start, self.stop - self.start)


WHOLE = Band((), 0, -1)


def count_cuts(shape: Sequence[int], dim: int) -> int:
    """Return how many bands the lines of a tensor can be cut into."""
    return math.prod(shape[:dim])


def divide_lines(shape: Sequence[int], dim: int, count: int) -> list[Band]:
    """Return about ``count`` bands of the lines of a tensor, of the same shape on all ranks; the first is the largest.

    Each is contiguous in a contiguous tensor. Where they are long enough, bands begin on 16-byte boundaries.
    """
    if count == 1 or dim == 0:
        return [WHOLE]
    outer = 1
    for d in range(dim):
        if outer * shape[d] >= count or d == dim - 1:
            break
        outer *= shape[d]
    step = -(-shape[d] // min(shape[d], -(-count // outer)))
    step = step if step < ALIGNED_LINES else step + -step % ALIGNED_LINES
    ends = [*range(0, shape[d], step), shape[d]]
    prefixes = itertools.product(*(range(size) for size in shape[:d]))
    return [Band(at, *piece) for at in prefixes for piece in itertools.pairwise(ends)]


class Banded(NamedTuple):
    """The results of a rank, and what a backward pass reads beside its operands."""

    y: Tensor
    final: Tensor | None  # the carry-out of the line, where the call returns it
    kinds: tuple[RequestKind, ...]  # of each band's launch
    carries: tuple[Tensor | None, ...]  # into each band's lines, where the backward pass reads it


class Saved(NamedTuple):
    """What a node of autograd has saved; None where the backward pass does not read it."""

    operands: tuple[Tensor | None, ...]  # x, mask, gate and head flags
    y: Tensor | None
    kinds: tuple[RequestKind, ...]
    carries: tuple[Tensor | None, ...]
    policy: str | None  # of the block of the forward call


class BandedScan:
    """A scan of one rank over nodes, of tensors of one kind: its bands and the launches that serve them.

    ``call`` is that of a shard, without a carry-out; ``returns_final``: whether ranks return the carry-out of the line.
    ``recorded``: whether gradients will be asked for.
    """

    def __init__(
        self,
        nodes: Nodes,
        messages: tuple[Message, Message],
        call: Call,
        carry: torch.dtype,
        given: Inputs,
        bands: int,
        *,
        returns_final: bool,
        recorded: bool,
    ) -> None:
        self.nodes, self.generation = nodes, native.generation()
        self._message, self._backward_message = messages
        self._result, self._carry = call.result, carry
        shape, dim, reverse = given.x.shape, call.dim, call.reverse
        self._facts, self._starts_line = call_cache.facts(given[:5]), given.initial is not None
        self._number: tuple[complex, Tensor] | None = None  # a carry-in that is a number, as kernels read it
        self._shape, self._whole_lines, self._recorded = shape, line_shape(shape, dim), recorded
        self._bands = divide_lines(shape, dim, bands)
        self._source, self._target = nodes.source(reverse), nodes.target(reverse)
        self._last = None if not returns_final else 0 if reverse else nodes.group.size - 1  # position of the last rank
        self._ends_line = nodes.group.position == self._last
        depth = len(self._bands[0].at)
        has_final = self._target is not None or self._ends_line
        self._call = replace(call, dim=dim - depth, link=nodes.link, final=has_final)
        lines = torch.empty(self._whole_lines, device="meta")
        self._lines = [band.take(lines).shape for band in self._bands]
        self._launches: list[tuple[Launcher, RequestKind] | None] = [None] * len(self._bands)
        self._carries: list[CarryIn | None] = [None] * len(self._bands)  # of ranks to which kernels hand states on
        self.is_repeatable = True  # whether the launches read their tensors as they were given

    def serves(self, given: Inputs) -> bool:
        """Return whether the launches of this scan read tensors such as these."""
        return self.generation == native.generation() and self._facts == call_cache.facts(given[:5])

    # ---- forward

    def scan(self, given: Inputs, needs: Needs | None = None) -> Banded:
        """Return the results of this rank, and what a backward pass reads where ``needs`` says what it computes."""
        device, reverse = given.x.device, self._call.reverse
        number = self.nodes.begin_call(self._message)
        received, sent = self._make_messages(self._source, self._target, number, device)
        y = torch.empty(self._shape, dtype=self._result, device=device)
        final = None if self._last is None else torch.empty(self._whole_lines, dtype=self._carry, device=device)
        initial, operands = self._read_initial(given), self._expand(given[:4])
        kinds: list[RequestKind] = []
        carries: list[Tensor | None] = []
        try:
            for k, band, before in self._receive_bands(received, reverse):
                if initial is not None:
                    before = band.take(initial).contiguous() if initial.ndim else initial
                of_band = [None if each is None else band.take(each) for each in operands]
                states = None if sent is None else sent.states(k)
                if final is not None and self._ends_line:
                    states = band.take(final)
                kinds.append(self._launch(k, (*of_band, None, before), band.take(y), states))
                if needs is not None:
                    carries.append(self._find_carry(k, kinds[-1], needs, before))
                self._send_band(sent, k)
            if sent is not None:
                sent.wait_for_all()
            if final is not None:
                self._broadcast(final)
        except Exception as problem:  # whatever it is: other ranks wait for this one's kernels and messages
            self._end_messages(received, sent)
            if final is not None and not isinstance(problem, PeerLost):
                self._broadcast(final)
            raise
        if received is not None:
            self.nodes.read_later(self._message, number, received)
        return Banded(y, final, tuple(kinds), tuple(carries))

    def _launch(self, k: int, inputs: tuple[Tensor | None, ...], y: Tensor, states: Tensor | None) -> RequestKind:
        outs = (y,) if states is None else (y, states)
        known = self._launches[k]
        if known is not None:
            known[0](inputs, outs)
            return known[1]
        request = check_request(self._call, Inputs(*inputs), (y,))  # type: ignore[arg-type]
        launcher, read = call_cache.bind_launcher(request, y, is_awaited=True), readable(request).flat
        assert launcher is not None
        kind = RequestKind(replace(request, outs=()))
        if launcher.own and all(mine is theirs for mine, theirs in zip(inputs, read, strict=True)):
            self._launches[k], kind.lasts = (launcher, kind), True
        else:
            self.is_repeatable = False
        launcher(read, outs)
        return kind

    def _read_initial(self, given: Inputs) -> Tensor | None:
        """Return the carry-in of the lines of the first rank: one for all, or one for each; None on other ranks."""
        initial: Any = given.initial if self._starts_line else None
        if initial is None:
            return None
        if not isinstance(initial, Tensor):
            if self._number is not None and self._number[0] == initial:
                return self._number[1]
            number = torch.full((), initial, dtype=self._carry, device=given.x.device)
            if not is_captured(number):  # a CUDA graph fills its own at each replay
                self._number = initial, number
            return number
        is_one = initial.numel() == 1 and not self._recorded
        found: Tensor = initial.to(self._carry)
        return found.reshape(()) if is_one else found.expand(self._whole_lines)

    def _find_carry(self, k: int, kind: RequestKind, needs: Needs, before: Tensor | None) -> Tensor | None:
        """Return the carry-in of a band's lines, if the backward pass reads it and this rank has one."""
        link, (reads_initial, reads_results) = self.nodes.link, self.find_kept(kind, needs)[3:5]
        if before is not None:
            return before if reads_initial else None
        if link is None or not reads_results or not link.fields(self._call.reverse)["linked_in"]:
            return None
        view = self._carries[k]
        if view is None:
            view = self._carries[k] = link.view_carry_in(kind, self._lines[k])
        return view.read()

    def find_kept(self, kind: RequestKind, needs: Needs) -> tuple[bool, ...]:
        """Return which of x, mask, gate, carry-in, results and indices the backward pass of this rank reads."""
        return keeps(kind, self._find_needs(needs))

    def _expand(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [None if each is None else each.expand(self._shape) for each in tensors]

    # ---- backward

    def differentiate(self, saved: Saved, grad: Tensor, of_final: Tensor | None, needs: Needs, which: int) -> Tensors:
        """Return the gradients of x, mask, gate and of the initial value; the last is None on all but the first rank.

        ``which`` is the number of the forward pass; ``of_final`` the gradient that this rank gives to the carry-out.
        """
        device, reverse = grad.device, not self._call.reverse
        self.nodes.log.note_launch(self._backward_message, which)
        number = self.nodes.begin_call(self._backward_message, which)
        received, sent = self._make_messages(self._target, self._source, number, device)
        own, kinds = self._find_needs(needs), saved.kinds
        shapes = [*[self._shape] * 3, self._whole_lines]
        found: list[Tensor | None] = [None] * len(NAMES)
        if len(self._bands) > 1:
            for at, (need, shape, told) in enumerate(zip(own, shapes, kinds[0].shapes, strict=True)):
                if need and told is not None and not (at == len(NAMES) - 1 and sent is not None):
                    found[at] = torch.empty(shape, dtype=told[1], device=device)
        grad = grad.resolve_conj().resolve_neg()
        keep = (*keeps(kinds[0], own)[:3], True)
        pairs = zip(self._expand(saved.operands), keep, strict=True)
        x, mask, gate, starts = [each if wanted else None for each, wanted in pairs]
        try:
            if self._last is not None:
                of_final = self._reduce(of_final, device)
            for k, band, after in self._receive_bands(received, reverse):
                if after is None and self._ends_line and of_final is not None:
                    after = band.take(of_final)
                read = [None if each is None else band.take(each) for each in (x, mask, gate, saved.y, starts)]
                given = (band.take(grad), after, *read[:3], saved.carries[k], read[3], None, read[4], None)
                places = tuple(None if each is None else band.take(each) for each in found)
                for at, each in enumerate(self._differentiate_band(kinds[k], own, given, places, saved.policy)):
                    if each is None:
                        continue
                    if at == len(NAMES) - 1 and sent is not None:
                        sent.states(k).copy_(each)
                    elif (place := places[at]) is None:
                        found[at] = each
                    elif place is not each:
                        place.copy_(each)
                self._send_band(sent, k)
            if sent is not None:
                sent.wait_for_all()
        except Exception:
            self._end_messages(received, sent)
            raise
        if received is not None:
            self.nodes.read_later(self._backward_message, number, received)
        return tuple(found)

    def _find_needs(self, needs: Needs) -> Needs:
        """Return which gradients the kernels of this rank compute: that of a carry-in for the node before, too."""
        return (*needs[:3], self._source is not None or (needs[3] and self._starts_line))

    @staticmethod
    def _differentiate_band(
        kind: RequestKind, needs: Needs, given: Tensors, places: Tensors, policy: str | None
    ) -> Tensors:
        if kind.lasts and runs_kernels(given):
            recipe = call_cache.recall_gradient(kind, needs, given, policy)[1]
            if recipe is not None:
                return recipe.repeat_into(given, places)
        return backward_pass(kind, needs, given, policy)[0]

    # ---- messages

    def _make_messages(
        self, source: Border | None, target: Border | None, number: int, device: torch.device
    ) -> tuple[Messages | None, Messages | None]:
        """Return the messages that this rank receives and sends, None where it has no such border."""
        received, sent = (
            None if border is None else Messages(border, self._lines, self._carry, device)
            for border in (source, target)
        )
        if sent is not None:
            sent.tails[:, 0].fill_(number)
        return received, sent

    def _receive_bands(self, received: Messages | None, reverse: bool) -> Iterator[tuple[int, Band, Tensor | None]]:
        """Return the bands with their numbers, and the states of the node before as each has arrived."""
        if received is not None:
            received.receive_next()
        for k, band in enumerate(self._bands):
            if received is None:
                yield k, band, None
                continue
            received.receive_next()  # the next band's message, while this band is scanned
            received.wait(k)
            self.nodes.last_failure_word(reverse).add_(received.tails[k, 1:], alpha=HAS_FAILED)
            yield k, band, received.states(k)

    def _send_band(self, sent: Messages | None, k: int) -> None:
        if sent is not None:
            torch.bitwise_right_shift(self.nodes.failure_word, EPOCH_BITS, out=sent.tails[k, 1:])
            sent.send_next()

    def _end_messages(self, received: Messages | None, sent: Messages | None) -> None:
        """Make the rest of the messages of a call that has failed: other nodes go on, and hear of it."""
        self.nodes.abandon()
        if received is not None:
            while not received.is_complete:
                received.receive_next()
        if sent is not None:
            sent.tails[sent.count :, 1].fill_(1)
            while not sent.is_complete:
                sent.send_next()
            sent.wait_for_all()

    def _broadcast(self, final: Tensor) -> None:
        """Copy the carry-out of the line from the last rank to all others."""
        group, source, row = self.nodes.group, self._find_last_rank(), bytes_of_tensor(final)
        run_collective(lambda: dist.broadcast(row, group=group.process_group, group_src=source))

    def _reduce(self, of_final: Tensor | None, device: torch.device) -> Tensor:
        """Return, on the last rank, the sum of the gradients that ranks give to the carry-out; None counts as zeros."""
        group, target = self.nodes.group, self._find_last_rank()
        if of_final is None:
            total = torch.zeros(self._whole_lines, dtype=self._carry, device=device)
        else:
            total = of_final.to(self._carry).clone(memory_format=torch.contiguous_format)
        run_collective(lambda: dist.reduce(total, group=group.process_group, group_dst=target))
        return total

    def _find_last_rank(self) -> int:
        """Return the last rank in scan order, by its rank in the group."""
        assert self._last is not None
        return self.nodes.group.members[self._last]
