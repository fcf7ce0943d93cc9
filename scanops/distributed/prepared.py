"""Prepared calls: what equal calls of a rank have in common once their arguments have been checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops import environment
from scanops.codegen.lazy import lazy
from scanops.distributed import shards
from scanops.distributed.exchange import Message
from scanops.distributed.groups import Group
from scanops.distributed.method_costs import choose_method
from scanops.distributed.shards import Shard
from scanops.distributed.spans import Layout, layout_of, split_spans
from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.call import Call
from scanops.requests.request import NAMES, Inputs, Needs
from scanops.requests.segments import check_offsets, flags_along
from scanops.requests.torch_state import is_transformed

__all__ = ["METHODS", "Prepared", "prepare"]

METHODS = ("auto", "onepass", "twopass")


@dataclass(kw_only=True, eq=False)
class Prepared:
    """A call whose arguments have been checked, without its tensors."""

    group: Group
    message: Message
    shard: Shard  # of tensors without memory, with head flags in place of offsets; as it is while a compiler traces
    device: torch.device
    layout: Layout  # positions in scan order
    number: complex | None  # the initial value where it is no tensor
    like_initial: tuple[torch.Size, torch.dtype] | None  # shape and dtype of the one that is a tensor
    recorded: bool  # whether autograd records the call
    needs: Needs  # which gradients are wanted of such a call
    method: str = "twopass"  # or "onepass"
    is_asked: bool = False  # whether the call names the method
    is_cached: bool = False  # whether the call cache holds it
    policy: str | None = None  # of the block that the call is in, which its backward passes go by

    @lazy
    def backward_message(self) -> Message:
        """What ranks compare of the exchange of a backward pass."""
        return self.message.derive("backward")

    @lazy
    def is_first(self) -> bool:
        """Whether this rank has the first span in scan order, which the initial value enters."""
        return 0 in self.layout.positions

    @lazy
    def is_last(self) -> bool:
        """Whether this rank has the last span in scan order, whose carry-out is that of the line."""
        return len(self.layout.rows) - 1 in self.layout.positions

    def convert(self, given: Inputs) -> Inputs:
        """Return the tensors as kernels read them."""
        x, mask, gate = (
            each if each is None or each.dtype == like.dtype else each.to(like.dtype)  # type: ignore[union-attr]
            for each, like in zip(given[:3], self.shard.tensors[:3], strict=True)
        )
        shape = self.shard.tensors.x.shape
        x = x if x.shape == shape else x.expand(shape)  # type: ignore[union-attr]
        found = (x, mask, gate, *given[3:6])
        plain = [
            each.resolve_conj().resolve_neg()
            if isinstance(each, Tensor) and (each.is_conj() or each.is_neg())
            else each
            for each in found
        ]
        return Inputs(*plain)  # type: ignore[arg-type]

    def shard_of(self, *tensors: Tensor | None) -> Shard:
        """Return the shard of these tensors."""
        return replace(self.shard, tensors=Inputs(*tensors))  # type: ignore[arg-type]

    def parts(self, shard: Shard) -> list[Shard]:
        """Return the spans of this rank's shard, each a shard of its own."""
        if self.layout.width == 1:
            return [shard]
        pieces = split_spans(shard.tensors, shard.call.dim, self.layout.lengths_of(shard.length))
        return [replace(shard, tensors=each) for each in pieces]

    def check_offsets(self, offsets: Tensor, lengths: Tensor) -> None:
        """Raise for positions that are not those of a line: all ranks have the same, and know the lengths."""
        check_offsets(self.message.who, offsets, offsets.new_empty(1).expand(int(lengths.sum())), 0)

    def place_flags(self, x: Tensor, offsets: Tensor, begins: Tensor) -> Tensor:
        """Return the head flags of offsets in a shard like ``x``, whose spans begin at ``begins``."""
        dim, length, chunk = self.shard.call.dim, self.shard.length, self.shard.call.chunk
        line = x.new_empty(1).expand([length if d == dim else 1 for d in range(x.ndim)])
        spans = split_spans(Inputs(line), dim, self.layout.lengths_of(length))
        pieces = zip(spans, self.layout.positions, strict=True)
        of_spans = [flags_along(None, offsets, piece.x, dim, chunk, begins[at]) for piece, at in pieces]
        flags: Tensor = of_spans[0] if len(of_spans) == 1 else torch.cat(of_spans, dim)  # type: ignore[arg-type,assignment]
        return flags


def prepare(who: str, call: Call, given: Inputs) -> tuple[Prepared, Shard]:
    """Return what calls like this one have in common, its arguments checked but for the values of offsets; its shard.

    Raises UnsupportedRequest: before anything is said to other ranks.
    """
    sharding = call.sharding
    assert sharding is not None and isinstance(sharding.group, Group)
    group = sharding.group
    if sharding.method not in METHODS:
        *others, last = map(repr, METHODS)
        raise UnsupportedRequest(
            f"{call.name}: method must be {', '.join(others)} or {last}",
            allowed=", ".join(map(repr, METHODS)),
            value=f"method={format_value(sharding.method)}",
            hint="leave method out",
        )
    if not is_compiling() and is_transformed():
        raise UnsupportedRequest(
            f"{call.name}: a sharded scan does not run under torch.func transforms or forward mode",
            allowed="eager code, backward passes and torch.compile",
            value="an active transform",
            hint="transform a function that holds the whole dimension",
        )
    shard = shards.shard_of(replace(call, sharding=None), given._replace(offsets=None), given.offsets)
    layout = layout_of(who, sharding.spans, group.size, group.rank, shard.length, reverse=shard.call.reverse)
    tensors, carry_in = shard.tensors, given.initial if isinstance(given.initial, Tensor) else None
    read = tensors._replace(initial=carry_in)
    wanted = torch.is_grad_enabled() if is_compiling() else read.differentiates
    recorded = wanted and (shard.result.is_floating_point or shard.result.is_complex)
    number: Any = given.initial if carry_in is None else None
    prepared = Prepared(
        group=group,
        message=Message(who, {}, 0),
        shard=shard,
        device=tensors.x.device,
        layout=layout,
        number=number,
        like_initial=None if carry_in is None else (carry_in.shape, carry_in.dtype),
        recorded=recorded,
        needs=tuple([recorded and each is not None and each.requires_grad for each in read.differentiable]),
        is_asked=sharding.method != "auto",
    )
    if is_compiling():
        return prepared, shard
    of_initial = carry_in is not None and carry_in.requires_grad
    served = (shard, group.size, layout.width)
    prepared.method = choose_method(sharding.method, *served, recorded=wanted, of_initial=of_initial)
    parts = {"function": who, **_parts(given, shard), "spans": layout.words, "method": prepared.method}
    prepared.message = Message.describe(who, parts)
    prepared.shard, prepared.policy = shard.without_memory(), environment.SCOPED.get()
    return prepared, shard


def _parts(given: Inputs, shard: Shard) -> dict[str, str]:
    """Describe a call: what has to be equal on all ranks, in words for a message."""
    row, call, tensors, initial, offsets = shard.row, shard.call, shard.tensors, given.initial, given.offsets
    differentiable = tensors._replace(initial=initial if isinstance(initial, Tensor) else None)
    pairs = zip(NAMES, differentiable.differentiable, strict=True) if differentiable.differentiates else ()
    wanted = [name for name, each in pairs if each is not None and each.requires_grad]
    return {
        "operator": f"op={row.name!r} of {row.lift} {row.combine} {row.identity}",
        "dimension": f"dim={call.dim} of {tensors.x.ndim}",
        "lines": f"lines of shape {tuple(shard.lines)}",
        "dtypes": f"{tensors.x.dtype} to {shard.result}, carried in {shard.carry}",
        "options": f"reverse={call.reverse}, exclusive={call.exclusive}, return_final={shard.final}, "
        f"compensated={call.compensated}",
        "operands": ", ".join(name for name in ("mask", "gate", "starts") if getattr(tensors, name) is not None),
        "initial": f"initial={f'{tuple(initial.shape)} {initial.dtype}' if isinstance(initial, Tensor) else initial}",
        "offsets": "" if offsets is None else f"offsets of shape {tuple(offsets.shape)}",
        "gradients": f"gradients of {', '.join(wanted) or 'nothing'}",
    }
