"""The order of calls of a group: each rank notes its calls in memory of the host, and reads what the others noted.

Kernels of linked calls exchange states and nothing else, so the processes compare the calls. They share memory, because
ranks of one host have links. A note is two words that a rank writes before it launches a kernel or begins a collective;
no rank waits for another one's note. Of two ranks, the one that comes to a call later finds the other's note and
refuses to launch. The earlier one learns of the difference at its next call.

A note holds the number of the call and a hash of all calls so far, so a difference that was overwritten is found as
well. A CUDA graph is noted when it is captured, not when it is replayed.
"""

from __future__ import annotations

import ctypes
import tempfile
import threading
import time
from typing import Any, NoReturn

import torch

from scanops.distributed.exchange import Message, Turn, difference
from scanops.distributed.groups import Group
from scanops.errors import PeerMismatch

__all__ = ["CallLog", "map_shared_words"]

NOTES = 1024  # of each rank that the memory holds
REFUSED = 2 * NOTES  # the word behind them: the number of a call in which this rank has found a difference
REFUSAL_SECONDS = 0.1  # in which ranks that find a difference at the same time say so
HASH_BITS = 24  # of a note's first word; the number of the call has the others
LAUNCH, EXCHANGE, COMPARISON = range(3)  # what a call begins with: a kernel, a frame of states, a comparison of words
KINDS = ("in one pass", "in two passes", "compared on all ranks first")


class CallLog:
    """The calls that this rank and the others have made, of which each has to be the same on all."""

    def __init__(self, group: Group) -> None:
        self.group, self.rank, self.count = group, group.rank, 0
        self._kept = map_shared_words(group, REFUSED + 1)
        words = [(ctypes.c_uint64 * (REFUSED + 1)).from_address(each.data_ptr()) for each in self._kept]
        self._own = words[self.rank]
        self._others = [(rank, each) for rank, each in enumerate(words) if rank != self.rank]
        self._next = dict.fromkeys(range(group.size), 1)  # the number of the next note to compare
        self._hash = 0
        self._known: dict[int, Message] = {}  # of this rank's latest notes, by their second word
        self._failure: PeerMismatch | None = None
        self._lock = threading.Lock()

    def note_launch(self, message: Message, *which: int) -> None:
        """Note a call whose ranks exchange states in kernels; ``which``: what else has to be equal.

        Raises PeerMismatch if another rank has made a different call, as the methods below do.
        """
        self._note(message, LAUNCH, which)

    def note_exchange(self, message: Message) -> None:
        """Note a call that begins with an exchange of frames, which compares it."""
        self._note(message, EXCHANGE)

    def note_comparison(self, message: Message) -> None:
        """Note a call that begins with a comparison in words."""
        self._note(message, COMPARISON)

    def raise_refusal(self, who: str) -> None:
        """Raise PeerMismatch if another rank has found a difference that this one has not come to."""
        refused = [f"rank {rank}: call {theirs[REFUSED]}" for rank, theirs in self._others if theirs[REFUSED]]
        if refused and self._failure is None:
            self._failure = self._mismatch(f"{who}: ranks differ in a later call", ", ".join(refused))
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _note(self, message: Message, kind: int, which: tuple[int, ...] = ()) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            number = self.count = self.count + 1
            word = message.digest << 2 & 2**64 - 1 | kind
            self._known.pop(word, None)
            self._known[word] = message
            if len(self._known) > NOTES:
                del self._known[next(iter(self._known))]
            self._hash = hash((self._hash, word if kind == LAUNCH else kind, which)) & (1 << HASH_BITS) - 1
            at, own = number % NOTES * 2, self._own
            own[at + 1] = word
            own[at] = number << HASH_BITS | self._hash
            for rank, theirs in self._others:
                following = self._next[rank]
                while following <= number:
                    at = following % NOTES * 2
                    seen = theirs[at]
                    if seen >> HASH_BITS < following:
                        break  # that rank will compare this one's note
                    if seen >> HASH_BITS == following == own[at] >> HASH_BITS and seen != own[at]:
                        self._refuse(message, rank, following)
                    following += 1  # the notes hash those that a rank has overwritten
                self._next[rank] = following

    def _refuse(self, message: Message, rank: int, number: int) -> NoReturn:
        """Let the other ranks hear that the calls of this number differ, and raise it."""
        self._own[REFUSED] = number
        for link in filter(None, self.group.ledger.links.values()):
            link.abandon()
        theirs = dict(self._others)[rank]
        (mine, of_other), is_joined = (each[number % NOTES * 2 + 1] for each in (self._own, theirs)), False
        if number == self.count and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            time.sleep(REFUSAL_SECONDS)  # that rank has found the difference as well by then, or waits in a collective
            is_joined = not theirs[REFUSED]
        own, other = self._known.get(mine, message), self._known.get(of_other)
        here, said = self.rank, {self.rank: own.parts, rank: {"function": "a call that this rank has not made"}}
        if is_joined and of_other & 3 == COMPARISON:
            words = self.group.gather_words((own.digest, own.parts, ""))
            said = {each: parts for each, (_, parts, _) in enumerate(words)}
        elif other is not None:
            said[rank] = other.parts
        for each in said:
            how = f"call {number}, {KINDS[(mine if each == here else of_other) & 3]}"
            said[each] = {**said[each], "order of backward passes, method or check": how}
        said = dict(sorted(said.items()))
        differ, values = difference(list(said.values()))
        self._failure = self._mismatch(
            f"{own.who}: ranks differ in {differ}",
            f"call {number}, " + ", ".join(f"rank {each}: {value}" for each, value in zip(said, values, strict=True)),
        )
        if is_joined and of_other & 3 == EXCHANGE and mine & 3 != EXCHANGE:
            Turn(self.group, self.group.ledger, own, self.group.device_of(None)).refuse(self._failure)
        raise self._failure

    def _mismatch(self, words: str, value: str) -> PeerMismatch:
        return PeerMismatch(
            words,
            allowed="equal calls on all ranks; only the length of a shard may differ",
            value=f"{value}, counted from the first in one pass",
            hint="end this process: a rank may have computed with states of another call",
        )


def map_shared_words(group: Group, count: int) -> list[torch.Tensor]:
    """Return so many words of each rank, zeros, that all ranks of a host map; by rank in the group.

    Raises OSError or RuntimeError on all ranks if one of them cannot map them.
    """
    with tempfile.NamedTemporaryFile(prefix="scanops-link-") as file:  # removed when all have mapped it
        file.truncate(count * 8)
        found: list[Any] = [None] * group.size
        problem = None
        for rank, name in enumerate(group.gather_words(file.name)):
            try:
                found[rank] = torch.from_file(name, shared=True, size=count, dtype=torch.int64)
            except (OSError, RuntimeError) as refused:
                problem = refused
        said = group.gather_words("" if problem is None else str(problem))
    if any(said):
        raise OSError("; ".join(filter(None, said)))
    return found
