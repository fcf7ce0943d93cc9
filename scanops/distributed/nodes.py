"""Nodes: ranks whose GPUs reach one another's memory, and the messages that carry states from node to node.

A node is the ranks that report one name: ``SCANOPS_NODE``, else that of the host. Within a node kernels hand on the
states of lines (links.py). The last rank of a node in scan order sends the states at the end of its lines to the first
rank of the next node, in a process group of these two: what it sends waits for no other traffic.

Behind the states of a message are two words: a number that follows from the call and its place in the order of calls,
and whether the node that sends has failed. The receiver's GPU hands a failure on; its process reads both words when
they have arrived, at its next call of the group.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scanops.distributed.call_log import CallLog
from scanops.distributed.exchange import MOST_UNREAD, Message, digest_of
from scanops.distributed.groups import UNIT, Group, run_collective
from scanops.distributed.links import HAS_FAILED, Link
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest
from scanops.torch_private import make_process_group, timeout_of

__all__ = ["Border", "Messages", "Nodes", "are_contiguous", "make_nodes"]

WORD = 8  # bytes
TAIL = 2 * WORD  # bytes behind the states of a message: the number of the call, and whether the sender's node failed


def are_contiguous(names: Sequence[str]) -> bool:
    """Return whether the ranks of each node follow one another; ``names``: of each rank's node, by position."""
    return len(list(itertools.groupby(names))) == len(set(names))


class Border(NamedTuple):
    """The neighbour of this rank on another node, and a process group of the two, the one in front first."""

    process_group: Any
    neighbour: int  # its rank in that group

    def send(self, row: Tensor) -> Any:
        """Begin to send a row of bytes; return what waits until it has been sent."""
        sent: list[Any] = []
        run_collective(lambda: sent.append(self.process_group.send([row], self.neighbour, 0)))
        return sent[0]

    def receive(self, row: Tensor) -> Any:
        """Begin to receive a row of bytes; return what waits until it is there."""
        begun: list[Any] = []
        run_collective(lambda: begun.append(self.process_group.recv([row], self.neighbour, 0)))
        return begun[0]


class Messages:
    """The messages of one call across a border, one for each band of lines."""

    def __init__(self, border: Border, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device) -> None:
        self._border, self._dtype, self._shapes = border, dtype, shapes
        self._bytes = [shape.numel() * dtype.itemsize for shape in shapes]
        size = max(self._bytes)
        self._rows = torch.empty((len(shapes), size + -size % UNIT + TAIL), dtype=torch.uint8, device=device)
        self.tails = self._rows.view(torch.int64)[:, -TAIL // WORD :]  # the two words of each message
        self._works: list[Any] = []

    def states(self, band: int) -> Tensor:
        """Return the states of a band, in the message."""
        return self._rows[band, : self._bytes[band]].view(self._dtype).view(self._shapes[band])

    @property
    def count(self) -> int:
        """How many messages have been begun."""
        return len(self._works)

    @property
    def is_complete(self) -> bool:
        """Whether all messages have been begun."""
        return len(self._works) == len(self._shapes)

    def send_next(self) -> None:
        """Begin to send the next band's message."""
        self._works.append(self._border.send(self._rows[len(self._works)]))

    def receive_next(self) -> None:
        """Begin to receive the next band's message, if there is another one."""
        if not self.is_complete:
            self._works.append(self._border.receive(self._rows[len(self._works)]))

    def wait(self, band: int) -> None:
        """Let the current stream, and a program on a CPU, wait for a band's message."""
        run_collective(self._works[band].wait)

    def wait_for_all(self) -> None:
        """Let the current stream wait for all messages that have been begun: their memory is free from here on."""
        for band in range(len(self._works)):
            self.wait(band)


class Unread(NamedTuple):
    """The last words of the messages of a call, and when the host has them."""

    message: Message
    number: int
    tails: Tensor
    arrived: Any  # an event of the GPU; None on a CPU


class Nodes:
    """This rank's link within its node, and its borders to the nodes in front and behind, on one device."""

    def __init__(self, group: Group, device: torch.device, names: Sequence[str]) -> None:
        runs = [len(list(ranks)) for _, ranks in itertools.groupby(names)]  # the ranks of each node
        ends = list(itertools.accumulate(runs))
        self.group, self.device, self.count = group, device, len(runs)
        self.index = next(k for k, end in enumerate(ends) if group.position < end)
        self.most_ranks = max(runs)
        # Of each kind of call, by its digest and whether one pass is required; 0: two passes take less time.
        self.bands: dict[tuple[int, bool], int] = {}
        self._calls = 0  # over nodes so far: the same number on all ranks
        self._unread: deque[Unread] = deque()
        self._failure: PeerLost | PeerMismatch | None = None
        first, size = ends[self.index] - runs[self.index], runs[self.index]
        self._place, self._size = group.position - first, size
        self._of_node = list(range(first, first + size))
        self._first_positions = [0, *ends[:-1]]
        self._last_positions = [end - 1 for end in ends]
        self._borders: list[Border | None] = [None, None]  # to the node in front, to the node behind
        self._failed = torch.zeros(1, dtype=torch.int64, device=device)  # of a node of one rank
        self.link: Link | None = None
        self.log: CallLog

    def connect_ranks(self) -> None:
        """Make this rank's link, together with the other ranks of its node."""
        name, ranks, limit = self._describe_groups()
        of_node = make_process_group(f"{name} node {self.index}", [ranks[k] for k in self._of_node], "gloo", limit)
        node = Group(of_node, tuple(range(self._size)), self._place)
        self.log = self.group.ledger.log or CallLog(node, self.group, self._of_node[0])
        self.log.inspections.append(self.raise_failure)
        if self._size > 1:
            self.link = Link(of_node, node.members, node.position, self.device, self.log)
            self.link.reserve(1)

    def connect_nodes(self) -> None:
        """Make this rank's borders, together with the ranks on their other sides."""
        name, ranks, limit = self._describe_groups()
        for behind in range(1, self.count):
            pair = self._last_positions[behind - 1], self._first_positions[behind]
            if self.group.position not in pair:
                continue
            backend = "gloo" if self.device.type == "cpu" else "nccl"
            made = make_process_group(f"{name} border {behind}", [ranks[k] for k in pair], backend, limit)
            receives = self.group.position == pair[1]
            border = self._borders[not receives] = Border(made, 1 - receives)
            row = torch.zeros(TAIL, dtype=torch.uint8, device=self.device)  # the first message makes a communicator
            for turn in (receives, not receives):
                run_collective((border.receive if turn else border.send)(row).wait)

    def _describe_groups(self) -> tuple[str, list[int], timedelta]:
        """Return what names of process groups begin with, the rank in the world at each position, and the timeout."""
        group = self.group
        ranks = dist.get_process_group_ranks(group.process_group)
        name = f"scanops {group.process_group.group_name} {len(group.ledger.links)}"
        return name, [ranks[member] for member in group.members], timeout_of(group.process_group, self.device)

    # ---- the place of this rank in a scan

    def source(self, is_reversed: bool) -> Border | None:
        """Return the border that states come from, if this is the first rank of its node in scan order."""
        return self._borders[is_reversed]

    def target(self, is_reversed: bool) -> Border | None:
        """Return the border that states are sent to, if this is the last rank of its node in scan order."""
        return self._borders[1 - is_reversed]

    # ---- failures

    @property
    def failure_word(self) -> Tensor:
        """The word of this rank that says whether its node has failed (HAS_FAILED), where it is."""
        return self._failed if self.link is None else self.link.failure_word(self._place)

    def last_failure_word(self, is_reversed: bool) -> Tensor:
        """The same word of the last rank of this node in scan order, which this rank may write."""
        return self._failed if self.link is None else self.link.failure_word(0 if is_reversed else self._size - 1)

    def abandon(self) -> None:
        """Let kernels of this node end their waits, and the nodes behind hear of it: a call was not made."""
        self._failed.fill_(HAS_FAILED)
        if self.link is not None:
            self.link.abandon()

    # ---- the order of calls

    def begin_call(self, message: Message, which: int = 0) -> int:
        """Return the number that all messages of the next call carry; ``which``: what else has to be equal.

        Raises PeerMismatch or PeerLost for earlier calls.
        """
        self.raise_failure()
        self._calls += 1
        return digest_of(f"{message.digest} {self._calls} {which}")

    def read_later(self, message: Message, number: int, messages: Messages) -> None:
        """Let the next call of the group read the last words of the messages that this one has received."""
        if self.device.type == "cpu":
            self._unread.append(Unread(message, number, messages.tails, None))
        elif not torch.cuda.is_current_stream_capturing():
            tails = torch.empty(messages.tails.shape, dtype=torch.int64, pin_memory=True)
            tails.copy_(messages.tails, non_blocking=True)
            arrived = torch.cuda.current_stream(self.device).record_event()
            self._unread.append(Unread(message, number, tails, arrived))

    def raise_failure(self) -> None:
        """Raise PeerMismatch or PeerLost if a message that has arrived was of another call, or of a failed node."""
        is_captured = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        while self._failure is None and self._unread and not is_captured:  # which forbids to ask for events
            message, number, tails, arrived = self._unread[0]
            if arrived is not None:
                if len(self._unread) < MOST_UNREAD and not arrived.query():
                    return
                arrived.synchronize()
            self._unread.popleft()
            for said, failed in tails.tolist():
                if said != number and self._failure is None:
                    self._failure = PeerMismatch(
                        f"{message.who}: the node before makes a different call",
                        allowed="equal calls on all ranks, in the same order; only the length of a shard may differ",
                        value=f"call {self._calls} over nodes, here {message.parts}",
                        hint="end this process: it may have computed with states of another call; check='always' "
                        "compares before each call and says what differs",
                    )
                elif failed and self._failure is None:
                    self._failure = PeerLost(
                        f"{message.who}: a rank of the node before has failed",
                        allowed="all ranks of the group in the same calls, in the same order",
                        value=f"call {self._calls} over nodes; results since then are wrong",
                        hint="end this process: a group that has lost a rank serves no further call",
                    )
            if self._failure is not None:
                self.abandon()
        if self._failure is not None:
            raise self._failure.with_traceback(None)


def make_nodes(group: Group, device: torch.device, names: Sequence[str]) -> Nodes | None:
    """Return this rank's place among nodes, if all ranks of the group have made theirs.

    ``names``: of each rank's node, by position. None where nodes are not contiguous, where the group cannot send
    messages from device to device, or where GPUs of a node do not reach one another.
    """
    sends = "cuda:nccl" if device.type == "cuda" else "cpu:gloo"
    if sends not in group.backends or not dist.is_gloo_available() or not are_contiguous(names):
        return None
    made, problem = Nodes(group, device, names), ""
    try:
        made.connect_ranks()
    except (UnsupportedRequest, OSError, RuntimeError) as refused:
        problem = str(refused) or type(refused).__name__
    if any(group.gather_words(problem)):
        return None
    made.connect_nodes()
    group.ledger.log = made.log
    return made
