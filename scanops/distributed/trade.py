"""An exchange of tensors between ranks that autograd and compilers know: an all-to-all, which is its own derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.distributed.exchange import Exchange, Message
from scanops.distributed.groups import Group, pack, unpack
from scanops.distributed.shards import record_with
from scanops.torch_private import group_named

__all__ = ["trade"]


def trade(group: Group, of: Exchange | str, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return slice [this rank] of each tensor of every rank, stacked by rank; the first dimension is ranks.

    Differentiable to any order. ``of``: the exchange that this is of which call; in words, which are equal on all
    ranks, while a compiler traces.
    """
    if is_compiling() and not any(each.requires_grad for each in tensors):  # Dynamo traces no node without a gradient
        return _trade_now(group, of, tensors)
    return tuple(_Trade.apply(group, of, *tensors))  # type: ignore[no-untyped-call]


class _Trade(torch.autograd.Function):
    """Row r of each tensor goes to rank r.

    What is recorded of a backward pass depends on this exchange on every rank, whatever reaches it there: derivatives
    of higher order make the same exchanges on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, of: Exchange | str, *tensors: Tensor) -> Any:
        ctx.group, ctx.of, ctx.count = group, of, len(tensors)
        ctx.traded = [k for k, each in enumerate(tensors) if each.is_floating_point() or each.is_complex()]
        ctx.save_for_backward(tensors[0])
        found = _trade_now(group, of, tensors)
        ctx.mark_non_differentiable(*[each for k, each in enumerate(found) if k not in ctx.traded])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (state,) = ctx.saved_tensors
        given = [record_with(state, grads[k]) for k in ctx.traded]
        of: Any = f"{ctx.of}, backward" if isinstance(ctx.of, str) else ctx.of.derive("backward")
        # A compiler traces one derivative, and no node within the derivative of a node.
        found = _trade_now(ctx.group, of, given) if is_compiling() else trade(ctx.group, of, given)
        of_input = dict(zip(ctx.traded, found, strict=True))
        return (None, None, *[of_input.get(k) for k in range(ctx.count)])


def _trade_now(group: Group, of: Exchange | str, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rows = torch.stack([pack([each[rank] for each in tensors]) for rank in range(group.size)])
    model = [(each.shape[1:], each.dtype) for each in tensors]
    if isinstance(of, str):
        return unpack(_operator(rows, group.process_group.group_name, of), model)
    return unpack(of.trade(rows), model)


# ---- the same as one operator, which compilers leave as it is


@torch.library.custom_op("scanops::trade_states", mutates_args=())
def _operator(rows: Tensor, group: str, exchange: str) -> Tensor:
    """Send row r to rank r of a process group; ``exchange`` says what it is of."""
    named = group_named(group)
    along = Group(named, named.size(), named.rank())
    parts = {"compiled call": f"the compiled {exchange}", "bytes": f"{rows.shape[1]} bytes"}
    return Exchange(along, Message.describe("a compiled scan", parts), rows.device).trade(rows).clone()


@_operator.register_fake
def _(rows: Tensor, group: str, exchange: str) -> Tensor:
    return torch.empty_like(rows)


# A rank whose results do not depend on an exchange makes it all the same: other ranks wait for it.
torch.fx.node.has_side_effect(torch.ops.scanops.trade_states.default)
