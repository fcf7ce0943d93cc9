"""The exchange of states between ranks, and the comparison of their calls, which travels with the states.

An exchange begins with a *frame* of a fixed size from each rank: a header, then the rank's states if they fit. Larger
states follow as a *body*. So ranks whose calls differ make the same first collective and learn it from the headers: on
the CPU at once; on a GPU, where reading them waits, at once for the first of equal calls, and for later ones at the
next exchange of the group, which waits for the one before. Ranks say nothing else to one another: for a rank that
raises before it exchanges anything others wait as long as the backend lets them.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.distributed.groups import Group, is_captured, size_of, unpack
from scanops.errors import PeerMismatch, UnsupportedRequest
from scanops.torch_private import raw_stream

__all__ = ["Exchange", "Message", "digest_of"]

FIELDS = 4
DIGEST, NUMBER, OFFSETS, LENGTH = range(FIELDS)  # all but the last have to be equal on all ranks
HEADER = 8 * FIELDS  # bytes
FRAME = 2048  # bytes
_NUMBERS = struct.Struct(f"={FIELDS}q")
# Memory that an exchange keeps for the next one: of so many streams, and so many bytes that it receives.
MOST_LANES, KEPT_BYTES = 4, 1 << 18
Model = Sequence[tuple[Sequence[int], torch.dtype]]  # shape and dtype of each state of a rank
States = tuple[Tensor, ...]


class Message(NamedTuple):
    """What ranks compare of an exchange."""

    who: str  # the public function
    parts: dict[str, str]  # what has to be equal on all ranks, in words for a message
    digest: int  # of the parts

    @classmethod
    def describe(cls, who: str, parts: dict[str, str]) -> Message:
        """Return the message of a call of these parts."""
        return cls(who, parts, digest_of(str(parts)))

    def derive(self, name: str) -> Message:
        """Return the message of an exchange that follows from this one, as those of its backward pass."""
        return Message.describe(self.who, {**self.parts, "exchange": name})

    @property
    def words(self) -> str:
        """The call in words."""
        return ", ".join(filter(None, self.parts.values()))


def digest_of(text: str) -> int:
    """Return a positive number of 63 bits that equal texts have in common."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def digest_positions(offsets: Tensor) -> Tensor:
    """Return a number that equal positions have in common, where they are: a sum that wraps around."""
    weights = torch.arange(1, offsets.numel() + 1, device=offsets.device) * 0x1E3779B97F4A7C15 | 1
    return (offsets.long() * weights).sum()


class Lane:
    """Memory of an exchange for the calls of one stream, or of one thread that exchanges on the CPU.

    Launches on a stream follow one another, and an exchange on the CPU ends before the next one of its thread.
    """

    __slots__ = ("bytes", "frame", "frames", "header", "lengths", "memory", "own", "row", "rows", "states", "views")

    def __init__(self, exchange: Exchange) -> None:
        ranks, body, device = exchange.group.size, exchange.body, exchange.device
        self.frame = torch.zeros(FRAME, dtype=torch.uint8, device=device)  # of this rank
        self.frames = torch.empty(ranks, FRAME, dtype=torch.uint8, device=device)
        self.row, self.rows, start = self.frame, self.frames, HEADER  # what the states are in
        if body:
            self.row = torch.zeros(body, dtype=torch.uint8, device=device)
            self.rows, start = torch.empty(ranks, body, dtype=torch.uint8, device=device), 0
        self.bytes = self.frames.view(-1), self.rows.view(-1)
        self.header = self.frame[:HEADER].view(torch.int64)
        for field, value in ((DIGEST, exchange.message.digest), (LENGTH, exchange.length)):
            self.header[field].fill_(value)
        self.memory = None
        if device.type == "cpu":
            self.memory = (ctypes.c_char * self.frames.numel()).from_address(self.frames.data_ptr())
        self.lengths = self.frames.view(torch.int64)[:, LENGTH]
        model, spans = exchange.model, range(exchange.width)
        own = [each[0] for each in unpack(self.row.unsqueeze(0), model, start)]
        self.own = tuple(each[span] for span in spans for each in own)
        self.states = unpack(self.rows, model, start)
        self.views = exchange.view(tuple(each[:, 0] for each in self.states)) if model else ()


class Exchange:
    """The exchange of calls that differ in their tensors alone.

    ``model`` describes the states of a rank, each for ``width`` spans; ``view`` makes of those of all ranks [rank and
    span, ...] what callers read. ``follows``: whether the states depend on the frames, which ``begin`` exchanges.
    """

    def __init__(
        self, group: Group, message: Message, device: torch.device, length: int = 0, model: Model = (),
        view: Callable[[States], tuple[Tensor | None, ...]] = tuple, *, width: int = 1, follows: bool = False,
        number: int = 0,
    ) -> None:  # fmt: skip
        self.group, self.message, self.length, self.width, self.view = group, message, length, width, view
        self.place, self.device = device, group.device_of(device)  # of the tensors, and of what ranks exchange
        self.model = [((width, *shape), dtype) for shape, dtype in model]
        size = sum(size_of(*each) for each in self.model)
        self.body = size if follows or HEADER + size > FRAME else 0  # bytes of what each rank sends behind the frame
        self.follows = follows
        self.number = number  # of the forward pass that a backward pass belongs to
        self._lanes: dict[Any, Lane] = {}

    def derive(self, name: str) -> Exchange:
        """Return an exchange without states that follows from this one, as that of a derivative."""
        return Exchange(self.group, self.message.derive(name), self.place, number=self.number)

    @property
    def is_late(self) -> bool:
        """Whether calls are compared when they have ended, but for the first of equal ones."""
        return self.device.type != "cpu"

    def begin(self, offsets: Tensor | None = None) -> tuple[Tensor]:
        """Exchange the frames; return the lengths of all shards. ``offsets`` have to be equal on all ranks."""
        lane = self._find_lane()
        with self.group.ledger.take_turn(self.message.who):
            if offsets is not None:
                lane.header[OFFSETS].copy_(digest_positions(offsets))
            self._exchange_frames(lane)
        return (lane.lengths,)

    def send(self, *states: Tensor) -> tuple[Tensor | None, ...]:
        """Exchange the states of this rank's spans, one span after the other, with the frames unless ``begin`` has.

        Return the lengths of all shards, and what ``view`` makes of the states of all ranks: good until the next
        exchange of the stream. Raises PeerMismatch and PeerLost.
        """
        lane = self._find_lane()
        with self.group.ledger.take_turn(self.message.who):
            if self.body and not self.follows:
                self._exchange_frames(lane)
            for state, place in zip(states, lane.own, strict=True):
                place.copy_(state)
            if self.body:
                self.group.gather_into(lane.bytes[1], lane.row)
            else:
                self._exchange_frames(lane)
        views = lane.views if self.width == 1 else self.view(tuple(each.flatten(0, 1) for each in lane.states))
        if self.device == self.place:
            return (lane.lengths, *views)
        return tuple([None if each is None else each.to(self.place) for each in (lane.lengths, *views)])

    def trade(self, rows: Tensor) -> Tensor:
        """Send row r, of bytes, to rank r; return the row that each rank has for this one."""
        with self.group.ledger.take_turn(self.message.who):
            self._exchange_frames(self._find_lane())
            return self.group.trade(rows.to(self.device)).to(rows.device)

    def _find_lane(self) -> Lane:
        if is_captured(self.device):  # a CUDA graph has memory of its own
            return self._make_lane()
        key = threading.get_ident(), 0 if self.device.type == "cpu" else raw_stream(self.device.index)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._make_lane()
            if lane.rows.numel() <= KEPT_BYTES:
                if len(self._lanes) >= MOST_LANES:
                    self._lanes.clear()
                self._lanes[key] = lane
        return lane

    def _make_lane(self) -> Lane:
        with torch.inference_mode(False), torch.no_grad():
            return Lane(self)

    def _exchange_frames(self, lane: Lane) -> None:
        ledger, digest, captured = self.group.ledger, self.message.digest, is_captured(self.device)
        is_new = digest not in ledger.compared
        if captured and is_new:
            raise refuse_capture(self.message.who)
        if not captured:
            ledger.settle()
        if ledger.order is not None:
            ledger.order.note_exchange()
        if self.number:
            lane.header[NUMBER].fill_(self.number)
        ledger.count += 1
        self.group.gather_into(lane.bytes[0], lane.frame)
        if captured:
            return
        if lane.memory is not None and not self.is_late:
            self.compare(lane.memory)
        elif is_new:
            frames = lane.frames.cpu()
            self.compare((ctypes.c_char * frames.numel()).from_address(frames.data_ptr()))
        else:
            ledger.compare_later(lane.frames, self.compare)
        ledger.compared.add(digest)

    def compare(self, memory: Any) -> None:
        """Raise PeerMismatch unless the frames in the memory of the CPU are those of equal calls.

        On the CPU all ranks raise in this very call, and go on with the next one. Elsewhere some have gone on: the
        group serves no further call.
        """
        ranks, rank = self.group.size, self.group.rank
        headers = [_NUMBERS.unpack_from(memory, k * FRAME) for k in range(ranks)]
        own = headers[rank]
        others = [k for k, header in enumerate(headers) if header[:LENGTH] != own[:LENGTH]]
        if not others:
            return
        first = next(field for field in range(LENGTH) if any(header[field] != own[field] for header in headers))
        what = ("make different calls", "differ in the order of backward passes", "differ in offsets")[first]
        problem = mismatch(f"{self.message.who}: ranks {what}", self.message, rank, others)
        if self.is_late:
            self.group.ledger.failure = problem
        raise problem


def mismatch(words: str, own: Message, rank: int, others: Sequence[int]) -> PeerMismatch:
    """Return the error of a rank whose call ``own`` is not that of others."""
    return PeerMismatch(
        words,
        allowed="equal calls on all ranks, in the same order; only the length of a shard may differ",
        value=f"rank {rank} calls {own.words}; ranks {list(others)} differ from it",
        hint="compare this message with that of the other ranks, and let every rank make the same call",
    )


def refuse_capture(who: str) -> UnsupportedRequest:
    """Return the error for a call that ranks have not compared and a CUDA graph captures."""
    return UnsupportedRequest(
        f"{who}: ranks cannot compare a call that a CUDA graph captures",
        allowed="a call that ranks have made before",
        value="a first call, in a capture",
        hint="make the same call once before the capture, on every rank",
    )
