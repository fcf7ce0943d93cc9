"""The order of calls in one pass: each rank notes its calls in memory that the ranks of a host share.

Kernels of linked calls exchange states and nothing else, so the processes compare the calls. A note is one word that a
rank writes before it launches a kernel; no rank waits for another one's. Of two ranks, the one that comes to a call
later finds the other's note and launches nothing; the earlier one finds it at its next call. A note holds a hash of all
calls so far, so a difference that was overwritten is found as well. A CUDA graph is noted when it is captured.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
import threading
from pathlib import Path

import torch

from scanops.distributed.exchange import Message, mismatch
from scanops.distributed.groups import Group
from scanops.errors import PeerMismatch

__all__ = ["CallOrder", "share_words"]

NOTES = 1024  # of each rank that the memory holds
HASH_BITS = 32  # of a note; the number of the call has the others
EXCHANGE = Message("a call in two passes", {"function": "a call in two passes"}, 0)
MEMORY = "/dev/shm"


class CallOrder:
    """The calls that this rank and the others have made, of which each has to be the same on all."""

    def __init__(self, group: Group) -> None:
        self.group, self.count = group, 0
        self._kept = share_words(group, NOTES)
        words = [(ctypes.c_uint64 * NOTES).from_address(each.data_ptr()) for each in self._kept]
        self._own = words[group.rank]
        self._others = [(rank, each) for rank, each in enumerate(words) if rank != group.rank]
        self._next = dict.fromkeys(range(group.size), 1)  # the number of the next note to compare
        self._hash = 0
        self._calls: list[Message] = [EXCHANGE] * NOTES  # of this rank's latest notes
        self._failure: PeerMismatch | None = None
        self._lock = threading.Lock()

    def note_exchange(self) -> None:
        """Note a call that begins with an exchange of frames, which compares it."""
        self.note(EXCHANGE)

    def note(self, message: Message, *which: int) -> None:
        """Note a call whose ranks exchange states in kernels; ``which``: what else has to be equal.

        Raises PeerMismatch if another rank has made a different call.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            number = self.count = self.count + 1
            self._hash = hash((self._hash, message.digest, which)) & (1 << HASH_BITS) - 1
            self._calls[number % NOTES] = message
            self._own[number % NOTES] = number << HASH_BITS | self._hash
            self._compare()

    def compare(self) -> None:
        """Raise PeerMismatch if another rank has made a different call by now."""
        with self._lock:
            self._compare()

    def _compare(self) -> None:
        number, own = self.count, self._own
        for rank, theirs in self._others:
            following = self._next[rank]
            while following <= number:
                at = following % NOTES
                seen = theirs[at]
                if seen >> HASH_BITS < following:
                    break  # that rank will compare this one's note
                if seen >> HASH_BITS == following == own[at] >> HASH_BITS and seen != own[at]:
                    self._fail(rank, following)
                following += 1  # the notes hash those that a rank has overwritten
            self._next[rank] = following

    def _fail(self, rank: int, number: int) -> None:
        """Let kernels of other ranks end their waits, and raise that the calls of this number differ."""
        self.group.ledger.abandon()
        own = self._calls[number % NOTES]
        self._failure = mismatch(f"{own.who}: ranks make different calls", own, self.group.rank, [rank])
        raise self._failure


def share_words(group: Group, count: int) -> list[torch.Tensor]:
    """Return so many words of each rank, zeros, that all ranks of a host map; by rank.

    They are in a file of this user's that nobody else makes or opens, whose blocks there are before anything is
    written, and which has no name when all have mapped it. Raises OSError on all ranks if one of them cannot map them.
    """
    folder = MEMORY if os.access(MEMORY, os.W_OK) else None
    problem, name = "", ""
    try:
        handle, name = tempfile.mkstemp(prefix="scanops-link-", dir=folder)  # exclusive, and no other user's
        try:
            os.posix_fallocate(handle, 0, count * 8)
        finally:
            os.close(handle)
    except OSError as refused:
        problem = str(refused)
    found: list[torch.Tensor] = []
    try:
        for other, their_problem in group.gather_words((name, problem)):
            if problem := problem or their_problem:
                break
            found.append(_map_words(other, count))
    except (OSError, RuntimeError) as refused:
        problem = str(refused)
    said = group.gather_words(problem)
    if name:
        Path(name).unlink()
    if any(said):
        raise OSError("; ".join(filter(None, said)))
    return found


def _map_words(name: str, count: int) -> torch.Tensor:
    """Map a file of another rank, unless it is anything else than ``share_words`` makes."""
    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # which makes none
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size != count * 8:
            raise OSError(f"{name} is no file of this user's with {count} words")
        # By the handle: what has the name by now may be another file.
        return torch.from_file(f"/proc/self/fd/{handle}", shared=True, size=count, dtype=torch.int64)
    finally:
        os.close(handle)
