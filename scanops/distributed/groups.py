"""Process groups: which ranks hold the shards in which order, and the collectives that move bytes between them.

The order of the shards is that of the ranks in the group. States travel as bytes: every backend moves those, whatever
dtypes it knows.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed.device_mesh import DeviceMesh

from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest, format_value
from scanops.requests.sharding import KernelLink
from scanops.runtime import call_cache

__all__ = [
    "Group",
    "Ledger",
    "bytes_of_tensor",
    "group_of",
    "is_captured",
    "pack",
    "run_collective",
    "size_of",
    "unpack",
]

UNIT = 16  # bytes: states begin on multiples of it, so that a view in any dtype is legal
# The latter's name until torch 2.13.
_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# What the backend of a collective does not raise, although it is a RuntimeError: it says nothing about other ranks.
_OWN_PROBLEMS = (
    torch.OutOfMemoryError,
    NotImplementedError,
    getattr(torch, "AcceleratorError", torch.OutOfMemoryError),
)


class Order(Protocol):
    """The order of calls, which exchanges are noted in."""

    def note_exchange(self) -> None: ...


class Ledger:
    """What one process remembers of a process group: its calls, what ranks have compared, and whose turn it is."""

    def __init__(self) -> None:
        self.count = 0  # exchanges so far: the same number on all ranks
        self.compared: set[int] = set()  # digests that all ranks have agreed on
        self.failure: PeerMismatch | None = None  # that was found after ranks had gone on
        self.order: Order | None = None  # in which all ranks make their calls; None before the first one in one pass
        self.links: dict[torch.device, KernelLink | str] = {}  # of this rank to others, or why there is none
        self._lock = threading.Lock()  # held while this process exchanges something
        self._pinned: Tensor | None = None  # frames of the last exchange on a GPU
        self._arrived: Any = None
        self._compare: Callable[[Any], None] | None = None  # what reads them

    def abandon(self) -> None:
        """Let kernels of other ranks end their waits for this one."""
        for link in self.links.values():
            if not isinstance(link, str):
                link.abandon()

    def take_turn(self, who: str) -> Ledger:
        """Let one thread at a time exchange something, in a ``with`` block. Raises UnsupportedRequest in another."""
        if not self._lock.acquire(blocking=False):
            raise UnsupportedRequest(
                f"{who}: two threads call the same process group at the same time",
                allowed="one call of a group at a time: nothing says which thread's call comes first on other ranks",
                value=f"thread {threading.current_thread().name!r}",
                hint="make a group for each thread with torch.distributed.new_group, or hold a lock around the calls",
            )
        return self

    def __enter__(self) -> None:
        """Begin the turn that ``take_turn`` has taken."""

    def __exit__(self, *_: object) -> None:
        """End the turn."""
        self._lock.release()

    def compare_later(self, frames: Tensor, compare: Callable[[Any], None]) -> None:
        """Let the next exchange compare frames that are on a GPU."""
        if self._pinned is None:
            self._pinned = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pinned.copy_(frames, non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(frames.device))
        self._compare = compare

    def settle(self) -> None:
        """Compare the frames of the last exchange, if nobody has. Raises PeerMismatch, on all ranks alike."""
        compare, self._compare = self._compare, None
        if compare is not None:
            assert self._pinned is not None
            self._arrived.synchronize()
            compare((ctypes.c_char * self._pinned.numel()).from_address(self._pinned.data_ptr()))
        if self.failure is not None:
            raise self.failure.with_traceback(None)


_LEDGERS: weakref.WeakKeyDictionary[Any, Ledger] = weakref.WeakKeyDictionary()
_GROUPS: weakref.WeakKeyDictionary[Any, dict[Any, Group]] = weakref.WeakKeyDictionary()  # by what users pass


@atexit.register
def forget_groups() -> None:
    """Let go of all process groups, whose ledgers and prepared calls hold them past ``destroy_process_group``.

    At exit, while threads still run: those of a group that is freed with the interpreter may abort it (pytorch#179291).
    """
    _LEDGERS.clear()
    _GROUPS.clear()
    call_cache.forget()  # calls in one pass, of which C++ would keep the groups for ever


class Group(NamedTuple):
    """The ranks that hold the shards of one scanned dimension."""

    process_group: Any  # torch.distributed.ProcessGroup
    size: int  # the number of ranks
    rank: int  # of this process

    @property
    def ledger(self) -> Ledger:
        """What this process remembers of the process group; gone when the group is."""
        found = _LEDGERS.get(self.process_group)
        return _LEDGERS.setdefault(self.process_group, Ledger()) if found is None else found

    @property
    def backends(self) -> str:
        """The backend for each kind of device, such as ``"cpu:gloo,cuda:nccl"``."""
        return str(dist.distributed_c10d.get_backend_config(self.process_group))

    def check_captured(self, who: str) -> None:
        """Raise UnsupportedRequest unless a CUDA graph can hold the exchanges of a call."""
        if "cuda:nccl" not in self.backends:
            raise UnsupportedRequest(
                f"{who}: a CUDA graph cannot hold the exchanges of this call",
                allowed="a group whose backend for GPUs is NCCL",
                value=f"backends {self.backends}",
                hint="call it outside the graph, or make the group with backend 'nccl'",
            )

    def device_of(self, device: torch.device) -> torch.device:
        """Return where ranks exchange the states of tensors: the CPU unless a backend moves the memory of a device."""
        kind, backends = device.type, self.backends
        if kind == "cpu" or f"{kind}:gloo" in backends or f"{kind}:" not in backends:
            return torch.device("cpu")
        return device

    def gather_into(self, found: Tensor, row: Tensor) -> None:
        """Write the row of bytes of each rank, one after the other."""
        run_collective(lambda: _gather(found, row, group=self.process_group))

    def trade(self, rows: Tensor) -> Tensor:
        """Send row r to rank r; return the row that each rank has for this one."""
        found = torch.empty_like(rows)
        run_collective(lambda: dist.all_to_all_single(found, rows, group=self.process_group))
        return found

    def gather_words(self, own: Any) -> list[Any]:
        """Return an object of each rank."""
        said: list[Any] = [None] * self.size
        run_collective(lambda: dist.all_gather_object(said, own, group=self.process_group))
        return said


def run_collective(collective: Callable[[], object]) -> None:
    """Communicate. Raises PeerLost where the backend says that a rank has ended or is late."""
    try:
        collective()
    except _OWN_PROBLEMS:
        raise
    except RuntimeError as problem:  # of every backend, also after its timeout
        raise PeerLost(
            "a rank of the process group exited, or did not respond within the timeout of the group",
            allowed="all ranks of the group in the same call, within the group's timeout",
            value=str(problem),
            hint="end this process: a group that has lost a rank serves no further call; a longer timeout is an "
            "argument of init_process_group",
        ) from problem


def is_captured(device: torch.device) -> bool:
    """Return whether a CUDA graph captures the calls on the current stream of a device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def group_of(given: Any) -> Group:
    """Return the ranks of a process group, of a DeviceMesh of one dimension, of (mesh, name), or of the world.

    Raises UnsupportedRequest for anything else, and where there is no process group or this process is outside it.
    """
    if isinstance(given, Group):
        return given
    if given is None and not is_compiling() and (world := dist.group.WORLD) is not None:
        of_world = _GROUPS.get(world)
        if of_world is not None:
            return of_world[None]
    if not (dist.is_available() and dist.is_initialized()):
        raise UnsupportedRequest(
            "scanops.distributed: there is no process group",
            allowed="a program that has called torch.distributed.init_process_group",
            value=f"group={format_value(given)}",
            hint="start the program with python -m torch.distributed.run and call init_process_group first",
        )
    given = dist.group.WORLD if given is None else given
    if is_compiling():
        return _look_up(given)
    of_mesh = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], DeviceMesh)
    owner, name = given if of_mesh else (given, None)
    if not isinstance(owner, DeviceMesh | dist.ProcessGroup) or not isinstance(name, str | None):
        return _look_up(given)
    known = _GROUPS.get(owner)
    if known is None:
        known = _GROUPS.setdefault(owner, {})
    if name not in known:
        known[name] = _look_up(given)
    return known[name]


def _look_up(given: Any) -> Group:
    if isinstance(given, tuple) and len(given) == 2:
        given = given[0][given[1]]
    if isinstance(given, DeviceMesh):
        if given.ndim != 1:
            raise UnsupportedRequest(
                "scanops.distributed: group must be a DeviceMesh of one dimension",
                allowed="one dimension: the one that the scanned dimension is sharded over",
                value=f"a mesh of shape {tuple(given.mesh.shape)}",
                hint="pass mesh['name of the dimension']",
            )
        ranks, given = given.mesh.tolist(), given.get_group()
        if ranks != sorted(ranks):
            raise UnsupportedRequest(
                "scanops.distributed: group must be a DeviceMesh whose ranks rise",
                allowed="a mesh that orders its ranks as its process group does, which is the order of the shards",
                value=f"a mesh of ranks {ranks}",
                hint="make the mesh of rising ranks",
            )
    if not isinstance(given, dist.ProcessGroup) or dist.get_rank(given) < 0:
        raise UnsupportedRequest(
            "scanops.distributed: group must be a process group that this rank belongs to",
            allowed="a torch.distributed.ProcessGroup, a DeviceMesh of one dimension, (mesh, name), or None",
            value=f"group={format_value(given)}",
            hint="call it on members of the group alone, and pass what new_group returned to them",
        )
    return Group(given, dist.get_world_size(given), dist.get_rank(given))


# ---- tensors as rows of bytes


def size_of(shape: Sequence[int], dtype: torch.dtype, unit: int = UNIT) -> int:
    """Return the bytes of a tensor in a row, with those up to the next multiple of ``unit``."""
    size = dtype.itemsize
    for each in shape:
        size *= each
    return size + -size % unit


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors as one row of bytes."""
    parts = []
    for each in tensors:
        parts.append(bytes_of_tensor(each))
        if len(parts[-1]) % UNIT:
            parts.append(parts[-1].new_zeros(-len(parts[-1]) % UNIT))
    return torch.cat(parts)


def unpack(rows: Tensor, like: Sequence[tuple[Sequence[int], torch.dtype]], start: int = 0) -> tuple[Tensor, ...]:
    """Return the tensors of ``pack`` again, of these shapes and dtypes, behind the dimension of the rows."""
    found = []
    for shape, dtype in like:
        size = size_of(shape, dtype, 1)
        part = rows.narrow(1, start, size)
        part = part if part.shape[1] and part.stride(0) % dtype.itemsize == 0 else part.contiguous()
        found.append(part.view(dtype).reshape(len(rows), *shape))
        start += size_of(shape, dtype)
    return tuple(found)


def bytes_of_tensor(tensor: Tensor) -> Tensor:
    """Return the items of a tensor as a row of bytes, a view where they lie side by side."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # a view as bytes does not take it, whatever counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
