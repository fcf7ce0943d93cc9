"""The exchange of states between ranks, and the comparison of their calls, which travels with the states.

An exchange begins with a *frame* of a fixed size from each rank: a header, then the rank's states if they fit. Larger
states follow as a *body*, whose size the header tells. Ranks whose calls differ, or of which one refuses its call, so
make the same first collective, and learn from the headers which others do. On the CPU each rank reads all headers
before it goes on. Reading them on a GPU waits for it, so equal calls are read there at the first of them, and later
ones when they have arrived: at the next exchange of the group.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from scanops.distributed.groups import Group, Ledger, is_captured, pack, size_of, unpack
from scanops.errors import PeerMismatch, UnsupportedRequest, format_value
from scanops.torch_private import raw_stream

__all__ = ["CHECKS", "Lane", "Message", "RepeatedExchange", "Turn", "digest_of", "take_turn"]

CHECKS = ("first", "always", "never")
FIELDS = 8
DIGEST, NUMBER, STATUS, LENGTH, OFFSETS, BODY, WAITS, TRADES = range(FIELDS)
HEADER = 8 * FIELDS  # bytes
_NUMBERS = struct.Struct(f"={FIELDS}q")
FRAME = 2048  # bytes
_EQUAL = (DIGEST, NUMBER, OFFSETS, BODY, TRADES)  # the fields that must be equal on all ranks
ONCE = -1  # of TRADES: a body is traded, and nothing is sent back; else the bytes of what is sent back, 0: gathered
MOST_UNREAD = 64  # comparisons on a GPU, before the next exchange waits for the first of them
MOST_HEADERS = 1024
# Memory that an exchange keeps for the next one: of so many streams, and so many bytes that it receives.
MOST_LANES, KEPT_BYTES = 4, 1 << 18
Headers = Sequence[Sequence[int]]  # of all ranks
Model = Sequence[tuple[Sequence[int], torch.dtype]]  # shape and dtype of each state of a rank
States = tuple[Tensor, ...]
# An all_to_all by blocks of lines moves twice a rank's states, an all_gather those of all others.
TRADING_RANKS, TRADING_BYTES = 8, 1 << 16


class Message(NamedTuple):
    """What ranks compare of an exchange."""

    who: str  # the public function
    parts: dict[str, str]  # what has to be equal on all ranks, in words for a message
    digest: int  # of the parts
    check: str = "first"

    def derive(self, name: str) -> Message:
        """Return the message of an exchange that follows from this one, as those of its backward pass."""
        return self._replace(digest=digest_of(f"{self.digest} {name}"), parts={**self.parts, "exchange": name})


def digest_of(text: str) -> int:
    """Return a positive number of 63 bits that equal texts have in common."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def bytes_of(model: Model) -> int:
    """Return the bytes of states in a row."""
    return sum(size_of(*each) for each in model)


class Route(NamedTuple):
    """How states travel: in the frame, or behind it."""

    body: int = 0  # bytes of what each rank sends behind the frame
    trades: int = 0  # bytes of what is sent back, where states travel by blocks of lines


def route_of(model: Model, ranks: int, *, rides: bool, blocks: tuple[Model, Model]) -> Route:
    """Return how states of this model travel: in the frame if they fit and ``rides``.

    ``blocks``: the models of a block of lines that is sent to another rank, and of what that sends back.
    """
    size = bytes_of(model)
    if rides and HEADER + size <= FRAME:
        return Route()
    if ranks >= TRADING_RANKS and size >= TRADING_BYTES:
        return Route(*[HEADER + bytes_of(each) for each in blocks])
    return Route(HEADER + size)


def are_alike(headers: Headers) -> bool:
    """Return whether the headers of all ranks are those of one call, which none refuses."""
    first = headers[0]
    if first[STATUS]:
        return False
    if all([header == first for header in headers]):
        return True
    return not any(h[STATUS] for h in headers) and all(h[k] == first[k] for h in headers for k in _EQUAL)


class PinnedFrames:
    """Memory of the CPU that the frames of an exchange are copied to, and whether they have arrived."""

    __slots__ = ("arrived", "frames", "memory")

    def __init__(self, shape: Sequence[int]) -> None:
        self.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.frames = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        self.memory = memory_of(self.frames)


def memory_of(tensor: Tensor) -> Any:
    """Return the bytes of a tensor on the CPU, without copies, as long as the tensor lives."""
    return (ctypes.c_char * (tensor.numel() * tensor.itemsize)).from_address(tensor.data_ptr())


def read_headers(memory: Any, ranks: int) -> Headers:
    """Return the headers of as many frames in the memory of the CPU."""
    size = len(memory) // ranks
    return [_NUMBERS.unpack_from(memory, rank * size) for rank in range(ranks)]


def compare_later(
    ledger: Ledger, frames: Tensor, differ: Callable[[Headers, Tensor], NoReturn], stream: Any = None
) -> None:
    """Let a later exchange compare frames that are on a GPU; ``differ`` raises PeerMismatch for headers and frames.

    The frames are those of the current stream, which is ``stream`` where that is given.
    """
    spare = ledger.spare
    pinned = spare.pop() if spare and spare[-1].frames.shape == frames.shape else PinnedFrames(frames.shape)
    pinned.frames.copy_(frames, non_blocking=True)
    pinned.arrived.record(torch.cuda.current_stream(frames.device) if stream is None else stream)
    ledger.unread.append((pinned, differ))


def read_unread(ledger: Ledger, join: Callable[[], None]) -> None:
    """Compare the frames that have arrived from the GPU, which this waits for where many have not.

    Raises PeerMismatch where they differ. A rank for which they had not arrived yet may have begun the next exchange:
    ``join`` makes it as a rank that refuses. A rank that has refused one since then has done so, and makes no other.
    """
    unread = ledger.unread
    while unread:
        pinned, differ = unread[0]
        if not pinned.arrived.query():
            if len(unread) < MOST_UNREAD:
                return
            pinned.arrived.synchronize()
        unread.popleft()
        headers = read_headers(pinned.memory, len(pinned.frames))
        if not are_alike(headers):
            is_known = any(header[STATUS] for header in headers)
            for later, _ in unread:
                later.arrived.synchronize()
                is_known = is_known or any(h[STATUS] for h in read_headers(later.memory, len(later.frames)))
            unread.clear()
            if not is_known:
                join()
            differ(headers, pinned.frames)
        ledger.spare.append(pinned)


@contextmanager
def take_turn(group: Group, message: Message, device: torch.device) -> Iterator[Turn]:
    """Let one thread at a time exchange states over a group.

    Raises UnsupportedRequest in a thread that had to wait for another, and in that one: nothing says which of them
    comes first on other ranks. A thread that has waited refuses its call, so that all ranks hear of it.
    """
    ledger = group.ledger
    if ledger.log is not None:
        ledger.log.note_exchange(message)
    waited = not ledger.lock.acquire(blocking=False)
    if waited:
        ledger.was_disturbed = True
        ledger.lock.acquire()
    outermost = ledger.owner is None
    if outermost:
        ledger.owner, ledger.was_disturbed = threading.get_ident(), False
    ledger.device = device
    try:
        turn = Turn(group, ledger, message, device)
        if waited:
            turn.refuse(_describe_disturbance(message.who))
        yield turn
        if ledger.was_disturbed:
            raise _describe_disturbance(message.who)
    finally:
        if outermost:
            ledger.owner = None
        ledger.lock.release()


def _describe_disturbance(who: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"{who}: two threads call the same process group at the same time",
        allowed="one call of a group at a time: nothing says which thread's call comes first on other ranks",
        value=f"thread {threading.current_thread().name!r}",
        hint="make a group for each thread with torch.distributed.new_group, or hold a lock around the calls",
    )


def difference(said: Sequence[dict[str, str]]) -> tuple[str, tuple[str | None, ...]]:
    """Return the first part in which the calls of ranks differ, and what it is on each."""
    names = [name for parts in said for name in parts]
    differ = next((name for name in names if len({parts.get(name) for parts in said}) > 1), "function")
    return differ, tuple(parts.get(differ) for parts in said)


class Turn:
    """One exchange of this rank: ``send_states``, or ``begin``, ``lengths`` and ``send_states``, or ``refuse``."""

    def __init__(self, group: Group, ledger: Ledger, message: Message, device: torch.device) -> None:
        self.group, self.ledger, self.message, self.device = group, ledger, message, device
        self.number = 0  # of the forward pass that this exchange belongs to
        self.length = 0  # of this rank's shard
        self.offsets: Tensor | int = 0  # a digest of the positions of segments
        self.frames: Tensor | None = None
        self.headers: Headers | None = None  # of all ranks, by position, where they have been read
        self._body = self._trades = 0
        self.waits = self._must_wait()

    def _must_wait(self) -> bool:
        if self.device.type == "cpu" or self.message.check == "always":
            return True
        return self.message.check == "first" and self.message.digest not in self.ledger.compared

    # ---- the frame

    def plan(self, route: Route) -> None:
        """Set the route by which states travel between ranks."""
        self._body, self._trades = route

    def begin(self, states: Sequence[Tensor] = ()) -> None:
        """Exchange the frames and compare them. Raises PeerMismatch on all ranks where they differ."""
        is_captured = self.device.type != "cpu" and torch.cuda.is_current_stream_capturing()
        if not is_captured:
            read_unread(self.ledger, self.join)
        elif self.waits:
            raise UnsupportedRequest(
                f"{self.message.who}: ranks cannot compare a call that a CUDA graph captures",
                allowed="with check='first' a call that ranks have compared before, which reads an answer of the GPU",
                value=f"check={self.message.check!r}, compared before: {self.message.digest in self.ledger.compared}",
                hint="make the same call once before the capture, on every rank",
            )
        self._exchange_frames(self._row(0, states, FRAME))
        if self.waits:
            headers = self._read_headers()
            if not are_alike(headers):
                self.raise_difference(headers)
            self.ledger.compared.add(self.message.digest)
        elif not is_captured:
            assert self.frames is not None
            compare_later(self.ledger, self.frames, self.raise_late)

    def refuse(self, problem: Exception) -> NoReturn:
        """Let the other ranks hear that this one does not make the call, and raise the problem."""
        if self.device.type != "cpu" and torch.cuda.is_current_stream_capturing():
            raise problem
        text = str(problem).partition("\n")[0].encode()[: FRAME - HEADER]
        said = torch.frombuffer(bytearray(text or b"?"), dtype=torch.uint8).to(self.device)
        if self.frames is None:
            self.join([said])
        else:  # the others have begun to wait for a body
            headers = self._read_headers()
            if not are_alike(headers):
                self._join_rest(headers)
            else:
                self._join_body(self._row(1, [said[: self._body - HEADER]], self._body))
                if self._trades > 0 and any(not header[WAITS] for header in headers):
                    self.group.trade(self._row(1, [], self._trades).repeat(self.group.size, 1))
        raise problem

    def join(self, said: Sequence[Tensor] = ()) -> None:
        """Make the collectives of ranks that go on, as one that refuses the call; ``said``: why, in bytes."""
        self._exchange_frames(self._row(1, said, FRAME))
        self._join_rest(self._read_headers())

    def _row(self, status: int, states: Sequence[Tensor], size: int) -> Tensor:
        return pack(states, size, front=self.header(status))

    def header(self, status: int) -> Tensor:
        """Return the header of this rank as bytes, where ranks exchange them."""
        fields = [self.message.digest, self.number, status, self.length, 0, self._body, int(self.waits), self._trades]
        if self.device.type == "cpu":
            fields[OFFSETS] = int(self.offsets)
            return torch.tensor(fields, dtype=torch.int64).view(torch.uint8)
        fields[NUMBER] = 0
        row = self._on_gpu(fields)
        if self.number:
            row = torch.add(row, self._on_gpu([int(k == NUMBER) for k in range(FIELDS)]), alpha=self.number)
        if isinstance(self.offsets, Tensor):
            row = row.clone()
            row[OFFSETS].copy_(self.offsets)
        return row.view(torch.uint8)

    def _on_gpu(self, fields: list[int]) -> Tensor:
        """Numbers on the GPU, made by kernels: a copy from the CPU would wait, and no CUDA graph holds it."""
        known, key = self.ledger.headers, (self.device, *fields)
        found = known.get(key)
        if found is None:
            found = torch.cat([torch.full((1,), each, dtype=torch.int64, device=self.device) for each in fields])
            if torch.cuda.is_current_stream_capturing():  # it has no values until the graph is replayed
                return found
            if len(known) >= MOST_HEADERS:
                known.clear()
            known[key] = found
        return found

    def _exchange_frames(self, row: Tensor) -> None:
        self.ledger.count += 1
        self.frames = self.group.gather(row)

    def _read_headers(self) -> Headers:
        if self.headers is None:
            assert self.frames is not None
            self.headers = self.frames[:, :HEADER].contiguous().view(torch.int64).tolist()
        return self.headers

    def raise_difference(self, headers: Headers) -> NoReturn:
        """Make the collectives of the ranks that go on, and raise PeerMismatch."""
        assert self.frames is not None
        joined = self._join_rest(headers)
        self.raise_mismatch(headers, self.frames, ask=not joined)

    def raise_late(self, headers: Headers, frames: Tensor) -> NoReturn:
        """Raise PeerMismatch for an exchange that was not compared before the call ended."""
        self.raise_mismatch(headers, frames, ask=False, late=True)

    def raise_mismatch(self, headers: Headers, frames: Tensor, *, ask: bool, late: bool = False) -> NoReturn:
        """Raise PeerMismatch for headers that differ; ``ask``: whether ranks tell one another what they call."""
        refused = [rank for rank, header in enumerate(headers) if header[STATUS]]
        who, parts, when = self.message.who, self.message.parts, " in an earlier call" if late else ""
        if refused:
            said = [bytes(frames[rank, HEADER:].tolist()).rstrip(b"\0").decode(errors="replace") for rank in refused]
            raise PeerMismatch(
                f"{who}: another rank has refused the call{when}",
                allowed="arguments that every rank accepts",
                value="; ".join(f"rank {rank}: {text}" for rank, text in zip(refused, said, strict=True)),
                hint="correct the call of that rank, which has raised this error itself",
            )
        hint = "make the same call, in the same order of calls, on every rank of the group"
        allowed = "equal calls on all ranks; only the length of a shard may differ"
        if not ask:
            own = headers[self.group.rank]
            other = [rank for rank, header in enumerate(headers) if any(header[k] != own[k] for k in _EQUAL)]
            value = f"ranks {other} differ from rank {self.group.rank}: {format_value(parts)}"
            raise PeerMismatch(f"{who}: ranks make different calls{when}", allowed=allowed, value=value,
                               hint=f"{hint}; check='always' says what differs")  # fmt: skip
        if len({header[OFFSETS] for header in headers}) > 1:
            parts = {**parts, "offsets": f"positions with digest {headers[self.group.rank][OFFSETS]:x}"}
        parts = {**parts, "place in the order of calls": f"number {headers[self.group.rank][NUMBER]}"}
        words = self.group.gather_words({"function": who, **parts})
        differ, values = difference(words)
        value = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(values))
        raise PeerMismatch(
            f"{who}: ranks differ in {differ}", allowed=allowed, value=format_value(value).strip("'\""), hint=hint
        )

    def _join_rest(self, headers: Headers) -> bool:
        """Make the collectives of the ranks that go on without having read the frames; return whether there are any."""
        going = [header for header in headers if not header[WAITS] and not header[STATUS]]
        if not going:
            return False
        self._body, self._trades = going[0][BODY], going[0][TRADES]
        if self._body:
            self._join_body(self._row(1, [], self._body))
        if self._trades > 0:
            self.group.trade(self._row(1, [], self._trades).repeat(self.group.size, 1))
        return True

    def _join_body(self, row: Tensor) -> None:
        if self._trades:
            self.group.trade(row.repeat(self.group.size, 1))
        else:
            self.group.gather(row)

    # ---- states

    def lengths(self) -> Tensor | list[int]:
        """Return the lengths of all shards by position: numbers where the headers have been read."""
        if self.headers is not None:
            return [header[LENGTH] for header in self.headers]
        assert self.frames is not None
        return self.frames[:, 8 * LENGTH : 8 * LENGTH + 8].contiguous().view(torch.int64)[:, 0]

    def send_states(self, compute: Callable[[], States], model: Model) -> tuple[Tensor, ...]:
        """Return the states of every rank, stacked by position; of this rank they are what ``compute`` returns."""
        if self._body == 0:
            states = self.compute_states(compute)
            self.begin([each.to(self.device) for each in states])
            assert self.frames is not None
            return self._move_back(unpack(self.frames, model, HEADER), states)
        states = self.compute_states(compute)
        rows = self.group.gather(self._row(0, [each.to(self.device) for each in states], self._body))
        self.compare_body(rows)
        return self._move_back(unpack(rows, model, HEADER), states)

    def compute_states(self, compute: Callable[[], States]) -> States:
        """Return this rank's states, after the frames where a body follows; others hear of a problem."""
        if self._body and self.frames is None:
            self.begin()
        try:
            return compute()
        except Exception as problem:  # whatever it is: the others wait for this rank's states
            self.refuse(problem)

    def _move_back(self, found: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(each.to(state.device) for each, state in zip(found, states, strict=True))

    @property
    def trades(self) -> bool:
        """Whether states travel by blocks of lines: each rank folds a block of all ranks' states."""
        return bool(self._trades)

    def trade_blocks(self, blocks: Sequence[Tensor], model: Model, *, back: bool = False) -> tuple[Tensor, ...]:
        """Send block r of each tensor to rank r; return this rank's block of every rank, stacked by position.

        ``model`` is that of a block. The first such exchange carries the problem of a rank, ``back`` does not.
        """
        size, header = self._trades if back else self._body, self.header(0)
        sent = [each.to(self.device) for each in blocks]
        rows = [pack([each[rank] for each in sent], size, front=header) for rank in range(self.group.size)]
        found = self.group.trade(torch.stack(rows))
        if not back:
            self.compare_body(found)
        return self._move_back(unpack(found, model, HEADER), blocks)

    def trade_rows(self, rows: Tensor) -> Tensor:
        """Send row r, of bytes, to rank r; return the rows that all ranks have for this one, by position."""
        self._body, self._trades = HEADER + rows.shape[1], ONCE
        self.begin()
        front = self.header(0).expand(self.group.size, -1)
        found = self.group.trade(torch.cat([front, rows.to(self.device)], 1))
        self.compare_body(found)
        return found[:, HEADER:].to(rows.device)

    def compare_body(self, rows: Tensor) -> None:
        """Raise PeerMismatch where a rank could not compute its states, if the headers have been read."""
        if self.waits:
            headers = rows[:, :HEADER].contiguous().view(torch.int64).tolist()
            if any(header[STATUS] for header in headers):
                self.raise_mismatch(headers, rows, ask=False)


class Lane:
    """Memory of a repeated exchange for the calls of one stream, or of one thread that exchanges on the CPU.

    Launches on a stream follow one another, and an exchange on the CPU ends before the next one of its thread.
    """

    __slots__ = ("found", "frame", "frames", "memory", "number", "own", "row", "rows", "states", "stream", "views")

    def __init__(self, exchange: RepeatedExchange) -> None:
        device, ranks, body = exchange.device, exchange.group.size, exchange.route.body
        self.stream = None if device.type == "cpu" else torch.cuda.current_stream(device)
        self.row = torch.zeros(body or FRAME, dtype=torch.uint8, device=device)  # of this rank
        self.rows = torch.empty(ranks * self.row.numel(), dtype=torch.uint8, device=device)  # by rank in the group
        self.row[:HEADER].copy_(exchange.header)
        # What is exchanged first: the same, or the header alone.
        self.frame, self.frames = self.row, self.rows
        if body:
            self.frame = torch.zeros(FRAME, dtype=torch.uint8, device=device)
            self.frames = torch.empty(ranks * FRAME, dtype=torch.uint8, device=device)
            self.frame[:HEADER].copy_(exchange.header)
        self.memory = memory_of(self.frames) if device.type == "cpu" else None
        self.frames = self.frames.view(ranks, FRAME)
        self.number = self.frame.view(torch.int64)[NUMBER]
        # The states of this rank, which are computed into the row, and those of all ranks.
        of_rank = self.rows.view(ranks, -1)
        self.found = of_rank if exchange.order is None else torch.empty_like(of_rank)
        self.own = tuple(each[0] for each in unpack(self.row.unsqueeze(0), exchange.model, HEADER))
        self.states = unpack(self.found, exchange.model, HEADER)
        self.views = exchange.view(self.states)


class RepeatedExchange:
    """The exchange of calls that differ in their tensors alone: headers and memory are made once.

    ``rows`` are the positions of ranks in scan order. States lie in this order, or the other way round where
    ``is_backwards``: where the order is that of memory backwards, unless they are ``flagged``, as flags are read in one
    direction. ``view`` makes what callers keep of the states.
    """

    def __init__(
        self, group: Group, message: Message, device: torch.device, length: int, model: Model, route: Route,
        rows: Sequence[int], view: Callable[[States], Any], *, flagged: bool = False,
    ) -> None:  # fmt: skip
        self.group, self.message, self.device, self.length, self.model = group, message, device, length, model
        self.ledger, self.route, self.view = group.ledger, route, view
        turn = self._turn(0)
        self.header, self._waits = turn.header(0), turn.waits
        order, rising = list(rows), list(range(group.size))
        self.is_backwards = order == rising[::-1] and not flagged
        is_plain = self.is_backwards or order == rising
        self.order = None if is_plain else torch.tensor(order, device=device)
        self._lanes: dict[Any, Lane] = {}

    def _turn(self, number: int) -> Turn:
        """The same exchange by its parts: what raises where ranks differ or one of them has failed."""
        turn = Turn(self.group, self.ledger, self.message, self.device)
        turn.number, turn.length = number, self.length
        turn.plan(self.route)
        return turn

    def send(self, compute: Callable[[States], States], number: int = 0, *, is_captured: bool = False) -> Lane | None:
        """Exchange the states that ``compute`` returns, into the tensors that it is given where it can.

        Return the memory with the states of every rank, good until the next exchange of the stream. ``number`` is that
        of the forward pass, in a backward pass. A CUDA graph that captures the exchange has memory of its own, and
        compares nothing. None, and nothing was exchanged, while another thread holds the group, and in a capture before
        ranks have compared the call. Raises PeerMismatch.
        """
        ledger = self.ledger
        if is_captured and self._waits:
            return None
        if not ledger.lock.acquire(blocking=False):
            return None
        is_outermost = ledger.owner is None
        if is_outermost:
            ledger.owner, ledger.was_disturbed = threading.get_ident(), False
        try:
            if ledger.log is not None:
                ledger.log.note_exchange(self.message)
            found = self._send(compute, number, is_captured)
            if ledger.was_disturbed:
                raise _describe_disturbance(self.message.who)
            return found
        finally:
            if is_outermost:
                ledger.owner = None
            ledger.lock.release()

    def _send(self, compute: Callable[[States], States], number: int, is_captured: bool) -> Lane:
        ledger, has_body = self.ledger, self.route.body > 0
        ledger.device = self.device
        if ledger.unread and not is_captured:
            read_unread(ledger, self._turn(number).join)
        lane = self._make_lane() if is_captured else self._find_lane()
        if number:
            lane.number.fill_(number)
        if has_body:
            ledger.count += 1
            self.group.gather_into(lane.frames.view(-1), lane.frame)
            if not is_captured:
                self._compare(lane, number)
        try:
            for state, place in zip(compute(lane.own), lane.own, strict=True):
                if state is not place:
                    place.copy_(state)
        except Exception as problem:  # whatever it is: the others wait for this rank's states
            turn = self._turn(number)
            turn.frames = lane.frames if has_body else None
            turn.refuse(problem)
        if not has_body:
            ledger.count += 1
        self.group.gather_into(lane.rows, lane.row)
        if self.order is not None:
            torch.index_select(lane.rows.view(lane.found.shape), 0, self.order, out=lane.found)
        if not has_body and not is_captured:
            self._compare(lane, number)
        elif self._waits:
            turn = self._turn(number)
            turn.frames = lane.frames
            turn.compare_body(lane.rows.view(lane.found.shape))
        if self._waits:  # a call that was compared is compared later from here on
            ledger.compared.add(self.message.digest)
            self._waits = self._turn(number).waits
        return lane

    def _find_lane(self) -> Lane:
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

    def _raise_late(self, number: int, headers: Headers, frames: Tensor) -> NoReturn:
        self._turn(number).raise_late(headers, frames)

    def _compare(self, lane: Lane, number: int) -> None:
        if not self._waits:
            compare_later(self.ledger, lane.frames, partial(self._raise_late, number), lane.stream)
            return
        frames = lane.frames if lane.memory is not None else lane.frames.cpu()
        headers = read_headers(lane.memory or memory_of(frames), self.group.size)
        if not are_alike(headers):
            turn = self._turn(number)
            turn.frames = frames
            turn.headers = headers
            turn.raise_difference(turn.headers)


def refuse(group: Group, message: Message, problem: Exception, x: object) -> NoReturn:
    """Let the other ranks hear that this one does not make a call, and raise the problem."""
    if group.size == 1 or is_captured(x):
        raise problem
    with take_turn(group, message, group.device_of(x)) as turn:
        turn.refuse(problem)
    raise problem
