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

__all__ = ["TradeKey", "trade"]


class TradeKey:
    """Which exchange of which call this is: equal on all ranks."""

    __slots__ = ("message", "name", "number")

    def __init__(self, name: str, message: Message | None = None, number: int = 0) -> None:
        self.name = name  # in words, for compilers, which hash nothing
        self.message = message  # None while a compiler traces
        self.number = number  # of the forward pass that this exchange belongs to


def trade(group: Group, key: TradeKey, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return slice [this rank] of each tensor of every rank, stacked by rank; the first dimension is ranks.

    Differentiable to any order.
    """
    if is_compiling() and not any(each.requires_grad for each in tensors):  # Dynamo traces no node without a gradient
        return _trade_now(group, key, tensors)
    return tuple(_Trade.apply(group, key, *tensors))  # type: ignore[no-untyped-call]


class _Trade(torch.autograd.Function):
    """Row r of each tensor goes to rank r.

    What is recorded of a backward pass depends on this exchange on every rank, whatever reaches it there: derivatives
    of higher order make the same exchanges on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, key: TradeKey, *tensors: Tensor) -> Any:
        ctx.group, ctx.key, ctx.count = group, key, len(tensors)
        ctx.traded = [k for k, each in enumerate(tensors) if each.is_floating_point() or each.is_complex()]
        ctx.save_for_backward(tensors[0])
        found = _trade_now(group, key, tensors)
        ctx.mark_non_differentiable(*[each for k, each in enumerate(found) if k not in ctx.traded])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (state,) = ctx.saved_tensors
        given = [record_with(state, grads[k]) for k in ctx.traded]
        key = _derivative(ctx.key)
        # A compiler traces one derivative, and no node within the derivative of a node.
        found = _trade_now(ctx.group, key, given) if is_compiling() else trade(ctx.group, key, given)
        of_input = dict(zip(ctx.traded, found, strict=True))
        return (None, None, *[of_input.get(k) for k in range(ctx.count)])


def _derivative(key: TradeKey) -> TradeKey:
    message = key.message
    return TradeKey(key.name + ", backward", None if message is None else message.derive("backward"), key.number)


def _trade_now(group: Group, key: TradeKey, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rows = torch.stack([pack([each[rank] for each in tensors]) for rank in range(group.size)])
    model = [(each.shape[1:], each.dtype) for each in tensors]
    if is_compiling():
        return unpack(_operator(rows, group.process_group.group_name, key.name), model)
    assert key.message is not None
    exchange = Exchange(group, key.message, rows.device)
    exchange.number = key.number
    return unpack(exchange.trade(rows), model)


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
