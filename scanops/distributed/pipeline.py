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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed.exchange import Message
from scanops.distributed.links import EPOCH_BITS, HAS_FAILED
from scanops.distributed.nodes import Messages, Nodes
from scanops.requests.call import Call
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, check_request
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


class BandedScan:
    """A scan of one rank over nodes, of tensors of one kind: its bands and the launches that serve them."""

    def __init__(self, nodes: Nodes, message: Message, call: Call, carry: torch.dtype, given: Inputs) -> None:
        self.nodes, self.message, self.generation = nodes, message, native.generation()
        self._result, self._carry = call.result, carry
        shape, dim, reverse = given.x.shape, call.dim, call.reverse
        self._facts, self._starts_line = call_cache.facts(given[:5]), given.initial is not None
        self._number: tuple[complex, Tensor] | None = None  # a carry-in that is a number, as kernels read it
        self._shape, self._dim = shape, dim
        self._bands = divide_lines(shape, dim, nodes.bands[message.digest])
        self._source, self._target = nodes.source(reverse), nodes.target(reverse)
        depth = len(self._bands[0].at)
        self._call = replace(call, dim=dim - depth, link=nodes.link, final=self._target is not None)
        lines = torch.empty(line_shape(shape, dim), device="meta")
        self._lines = [band.take(lines).shape for band in self._bands]
        self._launchers: list[Launcher | None] = [None] * len(self._bands)
        self.is_repeatable = True  # whether the launches read their tensors as they were given

    def serves(self, given: Inputs) -> bool:
        """Return whether the launches of this scan read tensors such as these."""
        return self.generation == native.generation() and self._facts == call_cache.facts(given[:5])

    def run(self, given: Inputs) -> tuple[Tensor]:
        """Return the results for tensors such as those that the scan was made for, in a call of its own."""
        self.nodes.log.note_launch(self.message)
        return (self.scan(given),)

    def scan(self, given: Inputs) -> Tensor:
        """Return the results of this rank."""
        device = given.x.device
        number = self.nodes.begin_call(self.message)
        received = sent = None
        if self._source is not None:
            received = Messages(self._source, self._lines, self._carry, device)
        if self._target is not None:
            sent = Messages(self._target, self._lines, self._carry, device)
            sent.tails[:, 0].fill_(number)
        y = torch.empty(self._shape, dtype=self._result, device=device)
        operands = [None if each is None else each.expand(self._shape) for each in given[:4]]
        try:
            self._scan_bands(operands, self._read_initial(given), y, received, sent)
        except Exception:  # whatever it is: other ranks wait for this one's kernels and messages
            self._end_messages(received, sent)
            raise
        if received is not None:
            self.nodes.read_later(self.message, number, received)
        return y

    def _read_initial(self, given: Inputs) -> Tensor | None:
        """Return the carry-in of the lines of the first rank: one for all, or one for each; None on other ranks."""
        initial: Any = given.initial if self._starts_line else None
        if initial is None:
            return None
        if not isinstance(initial, Tensor):
            if self._number is None or self._number[0] != initial:
                self._number = initial, torch.full((), initial, dtype=self._carry, device=given.x.device)
            return self._number[1]
        lines = line_shape(self._shape, self._dim)
        return initial.reshape(()).to(self._carry) if initial.numel() == 1 else initial.to(self._carry).expand(lines)

    def _scan_bands(
        self,
        operands: Sequence[Tensor | None],
        initial: Tensor | None,
        y: Tensor,
        received: Messages | None,
        sent: Messages | None,
    ) -> None:
        nodes, reverse = self.nodes, self._call.reverse
        if received is not None:
            received.receive_next()
        for k, band in enumerate(self._bands):
            before = None
            if received is not None:
                received.receive_next()  # the next band's message, while this band is scanned
                received.wait(k)
                nodes.last_failure_word(reverse).add_(received.tails[k, 1:], alpha=HAS_FAILED)
                before = received.states(k)
            elif initial is not None:
                before = band.take(initial).contiguous() if initial.ndim else initial
            outs = (band.take(y), *(() if sent is None else (sent.states(k),)))
            self._launch(k, (*[None if each is None else band.take(each) for each in operands], None, before), outs)
            if sent is not None:
                torch.bitwise_right_shift(nodes.failure_word, EPOCH_BITS, out=sent.tails[k, 1:])
                sent.send_next()
        if sent is not None:
            sent.wait_for_all()

    def _launch(self, k: int, inputs: tuple[Tensor | None, ...], outs: tuple[Tensor, ...]) -> None:
        launcher = self._launchers[k]
        if launcher is None:
            request = check_request(self._call, Inputs(*inputs), outs[:1])  # type: ignore[arg-type]
            launcher, read = call_cache.bind_launcher(request, outs[0], is_awaited=True), readable(request).flat
            assert launcher is not None
            kept = all(mine is theirs for mine, theirs in zip(inputs, read, strict=True))
            if launcher.own and kept:
                self._launchers[k] = launcher
            else:
                self.is_repeatable = False
            inputs = read
        launcher(inputs, outs)

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
