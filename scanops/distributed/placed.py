"""DTensors whose scanned dimension is sharded: their local tensors, the ranks along it, and results placed as x is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from scanops.distributed.groups import Group
from scanops.errors import UnsupportedRequest
from scanops.requests.checks import check_dim
from scanops.requests.geometry import line_shape
from scanops.torch_private import at_tracing

__all__ = ["Placed", "placed"]

_BESIDE = ("mask", "segment_starts")  # options that are tensors and broadcast to x's shape
Placements = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The part of this rank in a call with DTensors, and where its results belong."""

    x: Tensor
    gate: Tensor | None
    options: dict[str, Any]
    group: Group  # of the mesh dimension that the scanned dimension is sharded over
    mesh: Any  # torch.distributed.DeviceMesh
    shape: torch.Size  # of the whole result
    placements: Placements
    dim: int

    def wrapped(self, found: Sequence[Tensor], final: bool) -> tuple[Tensor, ...]:
        """Return local results as DTensors; the last is the carry-out if ``final``, replicated along the group."""
        results = found[:-1] if final else found
        whole = [self._wrap(each, self.shape, self.placements) for each in results]
        if final:
            lines = line_shape(self.shape, self.dim)
            carry = _Once.apply(found[-1], self.group.position == 0)  # type: ignore[no-untyped-call]
            whole.append(self._wrap(carry, lines, _of_lines(self.placements, self.dim)))
        return tuple(whole)

    def _wrap(self, local: Tensor, shape: torch.Size, placements: Placements) -> Tensor:
        strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
        return DTensor.from_local(local, self.mesh, placements, run_check=False, shape=shape, stride=strides)


def placed(who: str, x: Any, gate: Any, dim: int, options: dict[str, Any]) -> Placed | None:
    """Return the local part of a call with DTensors; None where their scanned dimension is not sharded.

    Operands are redistributed to lie as x does: no item of x moves. Raises UnsupportedRequest.
    """
    shape = x.shape if gate is None else torch.broadcast_shapes(x.shape, gate.shape)  # type: ignore[no-untyped-call]
    along = check_dim(who, shape, dim)
    whole = next((each for each in (x, gate) if each is not None and each.shape == shape), x)
    placements = tuple(Replicate() if each.is_partial() else each for each in whole.placements)
    axes = [k for k, each in enumerate(placements) if each.is_shard(along)]
    if not axes:
        return None
    mesh, beside = whole.device_mesh, {name: options[name] for name in _BESIDE if options.get(name) is not None}
    initial, offsets = options.get("initial"), options.get("offsets")
    given = [x, *(each for each in (gate, *beside.values()) if each is not None)]
    given += [initial] if isinstance(initial, Tensor) else []
    exact = type(placements[axes[0]]) is Shard and whole.shape == shape and options.get("group") is None
    if len(axes) > 1 or not exact or not all(isinstance(each, DTensor) and each.device_mesh == mesh for each in given):
        raise UnsupportedRequest(
            f"{who}: the DTensors cannot be scanned where they lie",
            allowed="tensors of a call all DTensors of one mesh, one of them with the result's shape, the scanned "
            "dimension a plain Shard of one mesh dimension, and no group",
            value=", ".join(f"{type(each).__name__} {tuple(getattr(each, 'placements', ()))}" for each in given),
            hint="redistribute the tensors, or pass local tensors and a group",
        )
    group = _group(mesh, axes[0])
    if group.members != tuple(range(group.size)):
        raise UnsupportedRequest(
            f"{who}: the mesh orders its ranks otherwise than its process group",
            allowed="a mesh whose ranks rise: PyTorch places shards by coordinate, and moves them by rank in the group",
            value=f"a mesh dimension of group ranks {group.members}",
            hint="pass local tensors and group=mesh, which scans in the order of the coordinates",
        )
    local = {name: _local(each, shape, placements, placements) for name, each in beside.items()}
    if isinstance(initial, Tensor):
        local["initial"] = _local(initial, line_shape(shape, along), _of_lines(placements, along), placements)
    if isinstance(offsets, DTensor):
        local["offsets"] = offsets.full_tensor()
    return Placed(
        x=_local(x, shape, placements, placements),
        gate=None if gate is None else _local(gate, shape, placements, placements),
        options={name: each for name, each in options.items() if name != "group"} | local,
        group=group,
        mesh=mesh,
        shape=shape,
        placements=placements,
        dim=along,
    )


def _group(mesh: Any, axis: int) -> Group:
    return Group(mesh.get_group(axis), *_along(mesh, axis))


@at_tracing
def _along(mesh: Any, axis: int) -> tuple[tuple[int, ...], int]:
    """The group rank at each position along a mesh dimension, and this rank's position."""
    found, here = mesh.get_group(axis), list(mesh.get_coordinate())
    ranks = mesh.mesh[(*here[:axis], slice(None), *here[axis + 1 :])].tolist()
    return tuple(dist.get_group_rank(found, rank) for rank in ranks), here[axis]


def _local(operand: Any, shape: torch.Size, wanted: Placements, placements: Placements) -> Tensor:
    """The local part of an operand that broadcasts to ``shape``, placed as ``wanted`` as far as it has the items.

    Where x is sharded, as ``placements`` say, what is replicated has a part of its gradient on each rank.
    """
    own = list(wanted)
    for k, each in enumerate(wanted):
        if each.is_shard():
            d = each.dim - len(shape) + operand.ndim
            own[k] = Shard(d) if d >= 0 and operand.shape[d] == shape[each.dim] else Replicate()
    parts = [
        Partial() if each.is_replicate() and along.is_shard() else each
        for each, along in zip(own, placements, strict=True)
    ]
    found: Tensor = operand.redistribute(placements=own).to_local(grad_placements=parts)
    return found


def _of_lines(placements: Placements, dim: int) -> Placements:
    """Where one element per line belongs."""
    return tuple(
        each if not each.is_shard() else Replicate() if each.dim == dim else Shard(each.dim - (each.dim > dim))
        for each in placements
    )


class _Once(torch.autograd.Function):
    """A value that all ranks hold, whose gradient all ranks hold as well: one of them passes it on."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, here: bool) -> Tensor:
        ctx.here = here
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return (grad if ctx.here else torch.zeros_like(grad)), None
