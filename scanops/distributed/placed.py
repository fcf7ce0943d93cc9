"""DTensors: each rank scans its local tensors, with an exchange where the scanned dimension is sharded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from scanops.codegen.operators import find_operator
from scanops.distributed.groups import Group
from scanops.distributed.sharded_scan import scan_sharded
from scanops.distributed.shards import is_exchanged
from scanops.errors import UnsupportedRequest
from scanops.ops.dispatch import run
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.checks import check_dim
from scanops.requests.geometry import line_shape
from scanops.requests.request import Inputs, check_request
from scanops.requests.sharding import Sharding
from scanops.torch_private import at_tracing

__all__ = ["scan_placed"]

_BESIDE = ("mask", "gate", "starts")  # tensors of a scan that broadcast to x's shape
Placements = tuple[Any, ...]


def scan_placed(
    call: Call, given: Inputs, method: str = "auto", spans: str | None = None, group: Any = None
) -> Outputs:
    """Return the outputs of a call with DTensors as DTensors, placed as x is; the carry-out as x's lines are.

    Operands are redistributed to lie as x does. x is gathered along the scanned dimension only where ranks cannot
    exchange states: of operators whose state is more than an element, for complete results, carries of segments, and
    where several mesh dimensions or strided shards divide the dimension. Raises UnsupportedRequest.
    """
    who, x = call.name, given.x
    mesh: Any = getattr(next(each for each in given if type(each).__name__ == "DTensor"), "device_mesh", None)
    tensors = [each for each in given._replace(offsets=None) if isinstance(each, Tensor)]
    if not all(isinstance(each, DTensor) and each.device_mesh == mesh for each in tensors) or (
        group is not None or spans is not None
    ):
        raise UnsupportedRequest(
            f"{who}: the tensors of a call must all be DTensors of one mesh, without group or spans",
            allowed="DTensors of one mesh: their placements say which rank has which items",
            value=", ".join(f"{type(each).__name__} {tuple(getattr(each, 'placements', ()))}" for each in tensors),
            hint="distribute the tensors, or pass local tensors and a group",
        )
    if not is_compiling():
        check_request(call, given)
    shape, dim = x.shape, check_dim(who, x.shape, call.dim)
    placements, axis = _placements(call, given, dim)
    lines = _of_lines(placements, dim)
    local = {name: _local(who, getattr(given, name), shape, placements, placements) for name in ("x", *_BESIDE)}
    initial, offsets = given.initial, given.offsets
    if isinstance(initial, Tensor):
        of_segments = call.per_segment and initial.ndim == x.ndim
        carried, own = (None, placements) if of_segments else (line_shape(shape, dim), lines)
        local["initial"] = _local(who, initial, carried, own, placements)
    if isinstance(offsets, DTensor):
        local["offsets"] = offsets.full_tensor()
    read = given._replace(**local)
    call = replace(call, dim=dim)
    if axis is not None:
        along = _group(who, mesh, axis)
        found = scan_sharded(who, replace(call, sharding=Sharding(along, method)), read)
        if call.final:
            once = _Once.apply(found[-1], along.rank == 0)  # type: ignore[no-untyped-call]
            found = (*found[:-1], once)
    else:
        found = run(call, read)
    results = found[:-1] if call.final else found
    whole = [_wrap(each, shape, mesh, placements, axis is None and dim) for each in results]
    if call.final and call.per_segment:
        whole.append(_wrap(found[-1], shape, mesh, placements, dim))
    elif call.final:
        whole.append(_wrap(found[-1], line_shape(shape, dim), mesh, lines, None))
    return tuple(whole)


def _placements(call: Call, given: Inputs, dim: int) -> tuple[Placements, int | None]:
    """Return the placements of the result, and the mesh dimension that ranks exchange states along, if any."""
    whole = [each for each in (given.x, given.gate) if each is not None and each.shape == given.x.shape]
    # The values of a recurrence may be broadcast, and its gates sharded.
    along: Any = next((each for each in whole if any(p.is_shard(dim) for p in each.placements)), given.x)  # type: ignore[attr-defined]
    placements = tuple(each if type(each) is Shard else Replicate() for each in along.placements)
    axes = [k for k, each in enumerate(placements) if each.is_shard(dim)]
    if len(axes) == 1 and not (call.complete or call.per_segment) and _has_states(call.op):
        return placements, axes[0]
    return tuple(Replicate() if each.is_shard(dim) else each for each in placements), None


@at_tracing
def _has_states(op: str) -> bool:
    return is_exchanged(find_operator(op))


def _wrap(local: Tensor, shape: torch.Size, mesh: Any, placements: Placements, own: Any) -> Tensor:
    """The DTensor of a local result, whose size along ``own`` is the whole one, unless that is None or False."""
    size = [local.shape[d] if own is not None and own is not False and d == own else n for d, n in enumerate(shape)]
    strides = tuple(math.prod(size[d + 1 :]) for d in range(len(size)))
    whole = torch.Size(size)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole, stride=strides)


def _group(who: str, mesh: Any, axis: int) -> Group:
    members, rank = _along(mesh, axis)
    if members != tuple(range(len(members))):
        raise UnsupportedRequest(
            f"{who}: the mesh orders its ranks otherwise than its process group",
            allowed="a mesh whose ranks rise: PyTorch places shards by coordinate, and moves them by rank in the group",
            value=f"a mesh dimension of group ranks {members}",
            hint="make the mesh of rising ranks",
        )
    return Group(mesh.get_group(axis), len(members), rank)


@at_tracing
def _along(mesh: Any, axis: int) -> tuple[tuple[int, ...], int]:
    """The group rank at each coordinate along a mesh dimension, and this rank's coordinate."""
    found, here = mesh.get_group(axis), list(mesh.get_coordinate())
    ranks = mesh.mesh[(*here[:axis], slice(None), *here[axis + 1 :])].tolist()
    return tuple(dist.get_group_rank(found, rank) for rank in ranks), here[axis]


def _local(who: str, operand: Any, shape: Any, wanted: Placements, placements: Placements) -> Any:
    """The local part of an operand that broadcasts to ``shape``, placed as ``wanted`` as far as it has the items.

    Where x is sharded, as ``placements`` say, what is replicated has a part of its gradient on each rank. Without a
    shape the operand has one of its own.
    """
    if operand is None:
        return None
    shape = operand.shape if shape is None else shape
    own = list(wanted)
    for k, each in enumerate(wanted):
        if each.is_shard():
            d = each.dim - len(shape) + operand.ndim
            own[k] = Shard(d) if d >= 0 and operand.shape[d] == shape[each.dim] else Replicate()
            if d >= 0 and operand.shape[d] not in (1, shape[each.dim]):
                raise UnsupportedRequest(
                    f"{who}: an operand of shape {tuple(operand.shape)} does not broadcast",
                    allowed=f"a shape that broadcasts to {tuple(shape)}",
                    value=f"shape={tuple(operand.shape)}",
                    hint="pass one item for each item of x, or a dimension of size 1",
                )
    parts = [
        Partial() if each.is_replicate() and along.is_shard() else each
        for each, along in zip(own, placements, strict=True)
    ]
    if tuple(own) != operand.placements:  # whose derivative would sum gradients over the ranks
        operand = operand.redistribute(placements=own)
    found: Tensor = operand.to_local(grad_placements=parts)
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
