"""Process groups: which ranks hold the shards in which order, the exchange of states, and the check of calls.

Order is the rank in the group, or the coordinate along the dimension of a DeviceMesh, which a permuted mesh makes
another order. States travel as bytes: every backend moves those, whatever dtypes it knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed.device_mesh import DeviceMesh

from scanops.distributed.shards import recorded_with
from scanops.distributed.spans import in_order_of
from scanops.errors import PeerLost, PeerMismatch, UnsupportedRequest, shown

__all__ = ["CHECKS", "Agreed", "Group", "group_of"]

CHECKS = ("first", "always", "never")
UNIT = 16  # bytes: states begin on multiples of it, so that a view in any dtype is legal
# The latter's name until torch 2.13.
_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REFUSED, _LENGTH = 0, 1  # places in a header; the digests of a call's parts follow
# By the name of a group: the calls that all ranks have agreed on by their digests, with the items of the line then.
_AGREED: dict[str, dict[int, int]] = {}


class Agreed(NamedTuple):
    """What ranks know of one another's shards."""

    lengths: list[int]  # of all shards by position; none where this call was not compared
    items: int  # of the line, at the first of equal calls: what ranks may decide by together; 0 if that is not known


class Group(NamedTuple):
    """The ranks that hold the shards of one scanned dimension."""

    process_group: Any  # torch.distributed.ProcessGroup
    members: tuple[int, ...]  # the group rank at each position along the dimension
    position: int  # of this rank along the dimension

    @property
    def size(self) -> int:
        """The number of ranks of the group."""
        return len(self.members)

    def check_captured(self, who: str) -> None:
        """Raise UnsupportedRequest unless a CUDA graph can hold the exchanges of a call."""
        backends = str(dist.distributed_c10d.get_backend_config(self.process_group))
        if "cuda:nccl" not in backends:
            raise UnsupportedRequest(
                f"{who}: a CUDA graph cannot hold the exchanges of this call",
                allowed="a group whose backend for GPUs is NCCL",
                value=f"backends {backends}",
                hint="call it outside the graph, or make the group with backend 'nccl'",
            )

    def gathered(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return each tensor of every rank, stacked by position; shapes and dtypes must be equal on all ranks."""
        packed = _packed([each.unsqueeze(0) for each in tensors])
        return _unpacked(self._by_position(self._gathered_bytes(packed)), tensors)

    def traded(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return slice [this position] of each tensor of every rank, stacked by position; the first dimension is ranks.

        Differentiable to any order: its derivative is the same exchange.
        """
        return tuple(_Trade.apply(self, *tensors))  # type: ignore[no-untyped-call]

    def agree(self, parts: dict[str, str], length: int, problem: Exception | None, check: str) -> Agreed:
        """Raise on every rank unless all ranks make the same call; return the lengths of all shards.

        ``parts`` describes the call, ``length`` is that of this rank's shard, ``problem`` why this rank refuses the
        call. With ``check="first"``, ranks that share a GPU backend alone skip the comparison of a call that they have
        compared before, because to read the others' answers waits for the GPU.
        """
        digests = [_digest(text) for text in parts.values()]
        backends = dist.distributed_c10d.get_backend_config(self.process_group)
        on_cpu = "cpu:" in backends or "cuda:" not in backends
        known = _AGREED.setdefault(f"{self.process_group.group_name} {id(self.process_group)}", {})
        call = _digest(repr(digests))
        if is_captured() and not on_cpu and (problem is not None or check == "always" or call not in known):
            raise problem or UnsupportedRequest(
                f"{parts['function']}: ranks cannot compare a call that a CUDA graph captures",
                allowed="with check='first' a call that ranks have compared before, which reads an answer of the GPU",
                value=f"check={check!r}, the first of its kind: {call not in known}",
                hint="make the same call once before the capture, or make the group with 'cpu:gloo,cuda:nccl'",
            )
        if check == "never" or (check == "first" and not on_cpu and call in known and problem is None):
            return Agreed([], known.get(call, 0))
        header = torch.tensor([problem is not None, length, *digests], dtype=torch.int64)
        if not on_cpu:
            header = header.cuda()
        rows: list[list[int]] = self.gathered([header])[0].tolist()
        refused = [r for r, row in enumerate(rows) if row[_REFUSED]]
        names = list(parts)
        differ = [names[k] for k in range(len(names)) if len({row[2 + k] for row in rows}) > 1]
        if refused or differ:
            self._raise_mismatch(parts, problem, refused, differ)
        lengths = [row[_LENGTH] for row in rows]
        return Agreed(lengths, known.setdefault(call, sum(lengths)))

    def _raise_mismatch(
        self, parts: dict[str, str], problem: Exception | None, refused: list[int], differ: list[str]
    ) -> None:
        """Raise this rank's own problem, or PeerMismatch with what each rank asks for."""
        own = str(problem).partition("\n")[0] if problem is not None else {name: parts[name] for name in differ}
        said: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(said, own, group=self.process_group))
        said = [said[member] for member in self.members]
        if problem is not None:
            raise problem
        if refused:
            value = "; ".join(f"rank {r}: {said[r]}" for r in refused)
            raise PeerMismatch(
                f"{parts['function']}: another rank has refused the call",
                allowed="arguments that every rank accepts",
                value=shown(value).strip("'\""),
                hint="correct the call of that rank, which has raised this error itself",
            )
        value = ", ".join(f"rank {r}: {said[r][differ[0]]}" for r in range(self.size))
        raise PeerMismatch(
            f"{parts['function']}: ranks differ in {differ[0]}",
            allowed="equal calls on all ranks; only the length of a shard may differ",
            value=shown(value).strip("'\""),
            hint="make the same call, in the same order of calls, on every rank of the group",
        )

    def _gathered_bytes(self, packed: Tensor) -> Tensor:
        """Return the row of each rank, by its rank in the group."""
        found = packed.new_empty(self.size * packed.shape[1])
        self._exchange(lambda: _gather(found, packed.reshape(-1), group=self.process_group))
        return found.reshape(self.size, -1)

    def _traded_bytes(self, packed: Tensor) -> Tensor:
        """Return the row for this rank of each rank, by its rank in the group."""
        found = torch.empty_like(packed)
        self._exchange(lambda: dist.all_to_all_single(found, packed, group=self.process_group))
        return found

    def _by_position(self, rows: Tensor) -> Tensor:
        return in_order_of(self.members, rows)

    def _exchange(self, collective: Callable[[], object]) -> None:
        if is_compiling():
            collective()
            return
        try:
            collective()
        except RuntimeError as problem:  # of every backend, also after its timeout
            raise PeerLost(
                "a rank of the process group has left the scan, or is late",
                allowed="all ranks of the group in the same call, within the group's timeout",
                value=str(problem),
                hint="end this process: a group that has lost a rank serves no further call; a longer timeout is an "
                "argument of init_process_group",
            ) from problem


def _trade(group: Group, *tensors: Tensor) -> tuple[Tensor, ...]:
    packed = in_order_of([group.members.index(member) for member in range(group.size)], _packed(tensors)).contiguous()
    return _unpacked(group._by_position(group._traded_bytes(packed)), [each[0] for each in tensors])


class _Trade(torch.autograd.Function):
    """Row r of each tensor goes to the rank at position r: an all-to-all, which is its own derivative.

    What is recorded of a backward pass depends on this exchange on every rank, whatever reaches it there: derivatives
    of higher order make the same exchanges on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Tensor) -> Any:
        ctx.group, ctx.count = group, len(tensors)
        ctx.traded = [k for k, each in enumerate(tensors) if each.is_floating_point() or each.is_complex()]
        ctx.save_for_backward(tensors[0])
        traded = _trade(group, *tensors)
        ctx.mark_non_differentiable(*[each for k, each in enumerate(traded) if k not in ctx.traded])
        return traded

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # A compiler traces one derivative, and no node within the derivative of a node.
        again = _trade if is_compiling() else _Trade.apply
        (state,) = ctx.saved_tensors
        traded = again(ctx.group, *[recorded_with(state, grads[k]) for k in ctx.traded])
        found = dict(zip(ctx.traded, traded, strict=True))
        return (None, *[found.get(k) for k in range(ctx.count)])


def is_captured() -> bool:
    """Return whether a CUDA graph captures the calls on the current stream."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def group_of(given: Any) -> Group:
    """Return the ranks of a process group, of a DeviceMesh of one dimension, of (mesh, name), or of the world.

    Raises UnsupportedRequest for anything else, and where there is no process group or this process is outside it.
    """
    if isinstance(given, Group):
        return given
    if not (dist.is_available() and dist.is_initialized()):
        raise UnsupportedRequest(
            "scanops.distributed: there is no process group",
            allowed="a program that has called torch.distributed.init_process_group",
            value=f"group={shown(given)}",
            hint="start the program with python -m torch.distributed.run and call init_process_group first",
        )
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
        of_mesh = given.get_group()
        members = tuple(dist.get_group_rank(of_mesh, rank) for rank in given.mesh.tolist())
        return Group(of_mesh, members, members.index(dist.get_rank(of_mesh)))
    found = dist.group.WORLD if given is None else given
    if not isinstance(found, dist.ProcessGroup) or dist.get_rank(found) < 0:
        raise UnsupportedRequest(
            "scanops.distributed: group must be a process group that this rank belongs to",
            allowed="a torch.distributed.ProcessGroup, a DeviceMesh of one dimension, (mesh, name), or None",
            value=f"group={shown(given)}",
            hint="call it on members of the group alone, and pass what new_group returned to them",
        )
    return Group(found, tuple(range(dist.get_world_size(found))), dist.get_rank(found))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of all tensors as bytes, one row for each: the first dimension stays."""
    # A clone: a tensor of one item counts as contiguous whatever its strides, which a view as bytes does not take.
    rows = [each.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg() for each in tensors]
    rows = [each.reshape(each.shape[0], -1) for each in rows]
    parts = [row.reshape(-1).view(torch.uint8).reshape(len(row), row.shape[1] * row.itemsize) for row in rows]
    return torch.cat([torch.nn.functional.pad(part, (0, -part.shape[1] % UNIT)) for part in parts], 1)


def _unpacked(rows: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors of ``_packed`` again, each of the shape and dtype of its model behind the dimension of rows."""
    found, start = [], 0
    for each in like:
        size = each.numel() * each.itemsize
        part = rows.narrow(1, start, size).contiguous().reshape(-1).view(each.dtype)
        found.append(part.reshape(len(rows), *each.shape))
        start += size + -size % UNIT
    return tuple(found)
