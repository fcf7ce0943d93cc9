"""Links between ranks: memory that kernels of other ranks write, so that one pass scans a dimension over several GPUs.

The kernels of a linked call hand the state at the end of each line on to the next rank, which waits for it inside its
own kernel: no collective runs between launches. ``Call.link`` says that lines continue on other ranks; it is a value,
so the call cache, the autograd node and the kernels of backward passes serve linked calls as they serve any other.

Memory of a rank: words that tickets, failures, a time limit and a fault are written to, then an inbox of two halves,
which launches use in turn (templates/headers/tile_status.cuh). Launches of one group run one after the other on a
GPU, whatever streams they are called on, because they share the inbox.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scanops.codegen.spec import ScanSpec
from scanops.distributed.call_order import CallOrder, share_words
from scanops.distributed.groups import Group, is_captured
from scanops.errors import PeerLost, UnsupportedRequest
from scanops.forks import import_late
from scanops.requests.request import RequestKind
from scanops.runtime import call_cache
from scanops.torch_private import raw_stream

__all__ = ["EPOCH_BITS", "HAS_FAILED", "CarryIn", "Link"]

HEAD_WORDS = 4  # of a memory, before the inbox: tickets, which launches fail, the time limit, the fault's address
FAILURE = 1  # the second of them: 0, or an epoch and HAS_FAILED (templates/headers/links.cuh)
HAS_FAILED = 1 << 32  # once a launch of the rank has waited in vain
EPOCH_BITS = 32  # of a word; the tickets have the number of finished launches above them
LEAST_WORDS = 2**15  # of half an inbox: 256 KB
STATE_BYTES = 4  # of a state in a status word
NO_STREAM = 2**64 - 1  # of the last launch, before the first one
SEGMENT_ENDS = 2  # a bit of a state's bounds (templates/stages/segments.cuh.j2)
LIMIT_SECONDS = 120  # that a kernel waits for another rank, which may be building its own


@dataclass(slots=True, eq=False)
class Memory:
    """The memories of all ranks of a group, as this rank addresses them."""

    addresses: tuple[int, ...]  # by rank in the group
    half: int  # words of half an inbox
    own: torch.Tensor  # this rank's
    heads: list[torch.Tensor]  # of the memories of all ranks, their first HEAD_WORDS words
    kept: Any  # what keeps the others mapped
    status: torch.Tensor | None = None  # words of the tiles of this rank's launches

    def workspace(self, size: int) -> torch.Tensor:
        """Return at least ``size`` bytes for the tile status of a launch that this memory counts.

        Other launches on the stream are counted elsewhere, and leave words of the same epochs in its workspace.
        """
        if is_captured(self.own.device):
            return torch.zeros(size, dtype=torch.uint8, device=self.own.device)
        if self.status is None or self.status.numel() < size:
            self.status = torch.zeros(1 << (size - 1).bit_length(), dtype=torch.uint8, device=self.own.device)
        return self.status


class CarryIn(NamedTuple):
    """The carry-in that reached this rank by a link, in memory that launches write in turn."""

    launches: torch.Tensor  # how often the memory was used: by its last bit the half of the last launch
    words: torch.Tensor  # of both halves [half, line, word of the value]
    dtype: torch.dtype
    lines: torch.Size
    bounds: torch.Tensor | None  # likewise those of segments, where one may end with the items of the rank before
    start: float  # of a segment

    def read(self) -> torch.Tensor:
        """Return that of the last launch. Reads on the current stream, before the launch after the next one writes."""
        half = self.launches & 1
        values = self.words.index_select(0, half).view(self.dtype)[..., 0].reshape(self.lines)
        if self.bounds is None:
            return values
        ends = self.bounds.index_select(0, half).view(self.lines) & SEGMENT_ENDS
        return torch.where(ends != 0, self.start, values)


class Link:
    """This rank's links to the ranks before and after it along a sharded dimension, on one device."""

    def __init__(self, group: Group, device: torch.device, order: CallOrder | None) -> None:
        self.group, self.device, self.order = group, device, order
        self._memories: list[Memory] = []  # the last one is in use; CUDA graphs may replay launches of the others
        # What C++ compares before each launch: whether a kernel has waited in vain, and the stream of the last launch.
        self._words = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.address = self._words.data_ptr()
        self._failed, self._stream = (ctypes.c_uint64.from_address(self.address + 8 * place) for place in range(2))
        if device.type == "cuda":
            self._stream.value = NO_STREAM

    def __enter__(self) -> None:
        """Begin a block that makes launches which kernels of other ranks wait for."""

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        """Let them end their waits where an exception, whatever it is, ends the block."""
        if isinstance(problem, Exception):
            self.abandon()

    @property
    def half(self) -> int:
        """The words of half an inbox."""
        return self._memories[-1].half

    def find_neighbours(self, reverse: bool) -> tuple[int | None, int | None]:
        """Return the ranks before and after this one in scan order, None where there is none."""
        own, step = self.group.rank, -1 if reverse else 1
        return tuple([rank if 0 <= rank < self.group.size else None for rank in (own - step, own + step)])  # type: ignore[return-value]

    def bind(self, arguments: Any, spec: ScanSpec, lines: int, state_bytes: int) -> Memory:
        """Set the arguments of a kernel that are this rank's memory and that of the next rank in scan order.

        Returns this rank's memory. The first call with more lines than any before makes it, on all ranks together.
        """
        self.reserve(lines * (state_bytes // STATE_BYTES))
        memory, (previous, following) = self._memories[-1], self.find_neighbours(spec.reverse)
        # the fields of ``struct Link`` of templates/headers/links.cuh
        arguments.offsets, arguments.segments = memory.addresses[self.group.rank], memory.half
        arguments.chunk = previous is not None
        arguments.offsets_end = 0 if following is None else memory.addresses[following]
        return memory

    def reserve(self, words: int) -> None:
        """Make memory with so many words in half an inbox, unless the last one has them: on all ranks together.

        Launches are bound again then, as ``CarryIn`` reads the memory of all of them.
        """
        if self._memories and self.half >= words:
            return
        if self._memories:
            call_cache.forget()
        half = max(LEAST_WORDS, 1 << (words - 1).bit_length())
        self._memories.append(_on_gpus(self, half) if self.device.type == "cuda" else _on_cpu(self, half))
        self._prepare(self._memories[-1])

    def abandon(self) -> None:
        """Let kernels of other ranks end their waits for the next launch: this rank does not make it.

        They go on with earlier ones, of which slower ranks may not be through: the words are written behind those.
        """
        if self.device.type == "cuda":
            self._follow(raw_stream(self.device.index))
        for memory in self._memories:
            epoch = (memory.own[:1] >> EPOCH_BITS & HAS_FAILED - 1) + 1
            for head in memory.heads:
                word = head[FAILURE : FAILURE + 1]
                is_later = (word - epoch).to(torch.int32) > 0  # as epochs begin again, by the sign of the difference
                word.copy_(torch.where((word == 0) | (is_later & (word < HAS_FAILED)), epoch, word))

    def enter(self) -> None:
        """Let the next launch follow the last one; raises PeerLost if a kernel has waited in vain for another rank."""
        if self._failed.value:
            if self.order is not None:
                self.order.compare()
            raise PeerLost(
                f"another rank could not make a call, exited, or did not respond within {LIMIT_SECONDS} s",
                allowed="all ranks of the group in the same calls, in the same order",
                value=f"rank {self.group.rank} waited for another rank; results since then are wrong",
                hint="end this process: a group that has lost a rank serves no further call",
            )
        if self.device.type == "cuda":
            self._follow(raw_stream(self.device.index))

    def view_carry_in(self, kind: RequestKind, lines: torch.Size) -> CarryIn:
        """Return the carry-in of each line that reaches this rank, which is not the first, in scans of ``kind``.

        ``lines`` is the shape of the result.
        """
        memory, row, dtype = self._memories[-1], kind.request.operator, kind.request.carry_dtype
        count, name = len(row.fields), row.project.removeprefix("state.")
        words = -(-dtype.itemsize // STATE_BYTES)  # of a field of a state
        size = (count + kind.segmented) * words  # the bounds of segments are padded
        first = (row.fields.index(name) if name in row.fields else 0) * words
        inbox = memory.own[HEAD_WORDS:].view(torch.int32).view(2, memory.half, 2)
        states = inbox[:, : lines.numel() * size, 0].view(2, lines.numel(), size)
        bounds = states[..., count * words] if kind.segmented and kind.request.call.reverse else None
        launches = memory.own[:1].view(torch.int32)[1:]
        return CarryIn(launches, states[..., first : first + words], dtype, lines, bounds, row.start)

    def _follow(self, stream: int) -> None:
        """Let the current stream wait for the launches on the stream before, if that is another one."""
        if stream == self._stream.value:
            return
        if self._stream.value != NO_STREAM and not torch.cuda.is_current_stream_capturing():
            before = torch.cuda.ExternalStream(self._stream.value, self.device)  # type: ignore[no-untyped-call]
            torch.cuda.current_stream(self.device).wait_event(before.record_event())
        self._stream.value = stream

    def _prepare(self, memory: Memory) -> None:
        """Write the time limit and the address of the fault, and wait for the other ranks to have done so."""
        words = torch.tensor([0, 0, LIMIT_SECONDS * 10**9, self.address], dtype=torch.int64)
        memory.own[:HEAD_WORDS].copy_(words)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier(self.group.process_group)


def _on_gpus(link: Link, half: int) -> Memory:
    """Memory of GPUs that reach one another: torch's symmetric memory."""
    symmetric = import_late("torch.distributed._symmetric_memory")  # which few programs need
    memory = symmetric.empty(HEAD_WORDS + 2 * half, dtype=torch.int64, device=link.device)
    memory.zero_()
    try:
        handle = symmetric.rendezvous(memory, link.group.process_group)
    except RuntimeError as problem:
        raise UnsupportedRequest(
            "method 'onepass' needs GPUs that write one another's memory",
            allowed="GPUs of one host, linked by NVLink or PCIe peer access",
            value=str(problem).partition("\n")[0],
            hint="leave method out, or pass method='twopass'",
        ) from problem
    ranks = range(len(handle.buffer_ptrs))
    heads = [handle.get_buffer(rank, (HEAD_WORDS,), torch.int64) for rank in ranks]
    return Memory(tuple(handle.buffer_ptrs), half, memory, heads, handle)


def _on_cpu(link: Link, half: int) -> Memory:
    """Memory that processes of one host share, for emulated kernels."""
    mapped = share_words(link.group, HEAD_WORDS + 2 * half)
    addresses, own = tuple(each.data_ptr() for each in mapped), mapped[link.group.rank]
    return Memory(addresses, half, own, [each[:HEAD_WORDS] for each in mapped], mapped)
