"""Sharded scans composed of differentiable scans and exchanges: derivatives of higher order, and compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from scanops.distributed import shards
from scanops.distributed.exchange import Exchange
from scanops.distributed.prepared import Prepared
from scanops.distributed.shards import Carry, Shard, record_with
from scanops.distributed.spans import in_order_of, join_spans
from scanops.distributed.trade import trade
from scanops.requests.request import Tensors

__all__ = ["compose_gradients", "scan_traced"]

Outputs = tuple[Tensor, ...]
Initial = Tensor | complex | None
Like = tuple[torch.Size, torch.dtype] | None


def compose(scan: Prepared, shard: Shard, initial: Initial, of: Exchange | str) -> tuple[Outputs, Tensor]:
    """Return the outputs by differentiable scans and exchanges; and a state that this rank has sent."""
    valued, ranks = shard.valued, scan.group.size
    parts = scan.parts(valued)
    each_of = [shards.totals(part, recorded=True) for part in parts]
    total = tuple(torch.stack(each) for each in zip(*each_of, strict=True))
    read = (*shard.tensors.differentiable[:3], initial)
    leaf = next((each for each in read if isinstance(each, Tensor) and each.requires_grad), shard.tensors.x)
    # Those of an empty shard may be constants, but ranks exchange the same gradients.
    total = tuple(each if each.dtype == torch.bool else record_with(leaf, each) for each in total)
    # The initial value travels from the first rank, so that its whole gradient is there.
    first = [initial.expand(shard.lines)] if isinstance(initial, Tensor) else []
    traded = trade(scan.group, of, [each.expand(ranks, *each.shape) for each in (*total, *first)])
    states = tuple(in_order_of(scan.layout.rows, each.flatten(0, 1)) for each in traded[: len(total)])
    initial = traded[-1][scan.layout.rows[0] // scan.layout.width] if first else initial
    carries = shards.fold_recorded(valued, states, initial, scan.layout.positions)
    found = join_spans([shards.finish(*each, 0) for each in zip(parts, carries, strict=True)], shard.call.dim)
    return (*found, *[carries[0].final.to(shard.carry)] * shard.final), total[0]


def compose_gradients(
    scan: Prepared, grads: Tensors, leaves: Tensors, starts: Tensor | None, likes: Sequence[Like], sent: int
) -> Tensors:  # fmt: skip
    """Return the gradients as functions of scans and exchanges, which can be differentiated.

    ``grads`` are those of the outputs, ``leaves`` x, mask, gate and the initial value. ``likes``: shape and dtype of
    each, of which nodes save nothing where their values do not count; ``sent`` is the number of the forward pass.
    """
    x, mask, gate, initial = (
        torch.zeros((), dtype=like[1], device=scan.device).expand(like[0]).requires_grad_()
        if each is None and like
        else each
        for each, like in zip(leaves, likes, strict=True)
    )
    assert x is not None
    shard = scan.shard_of(x, mask, gate, starts)
    again = Exchange(scan.group, scan.message.derive("again"), scan.device, number=sent)
    outputs, state = compose(scan, shard, initial if scan.number is None else scan.number, again)
    known = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    used = [(y, g) for y, g in known if g is not None]  # zeros would make second derivatives of 0 * inf
    used = used or [(y, torch.zeros_like(y)) for y, _ in known]
    inputs = (x, mask, gate, initial)
    wanted = [each for each, need in zip(inputs, scan.needs, strict=True) if need and each is not None]
    of_state, *found = torch.autograd.grad(
        [y for y, _ in used], [state, *wanted], [g for _, g in used], create_graph=True, allow_unused=True
    )
    # A rank without items has gradients that depend on no exchange, but the others wait for it.
    each_of = iter(
        record_with(of_state, torch.zeros_like(leaf) if each is None else each)
        for each, leaf in zip(found, wanted, strict=True)
    )
    return tuple([next(each_of) if need else None for need in scan.needs])


def scan_traced(who: str, scan: Prepared, shard: Shard, initial: Initial) -> Outputs:
    """Return the outputs of a call that a compiler traces: differentiable scans, and exchanges by an operator."""
    group, layout, indices = scan.group, scan.layout, bool(shard.row.indices)
    call = shard.call
    name = f"{who} {call.op} {call.dim} {shard.tensors.x.dtype} {shard.result} {call.reverse} {call.exclusive}"
    offsets, begins = shard.tensors.offsets, shard.tensors.x.new_empty(0)
    if offsets is not None or indices:
        length = torch.full((group.size, 1), shard.length, device=shard.tensors.x.device)
        begins = layout.starts_of(trade(group, f"lengths of {name}", [length])[0][:, 0], call.reverse)
    if offsets is not None:
        flags = scan.place_flags(shard.tensors.x, offsets, begins)
        shard = replace(shard, tensors=shard.tensors._replace(starts=flags, offsets=None))
    found: Outputs = ()
    if scan.recorded or not indices:
        found, _ = compose(scan, shard, initial, name)
    if not indices:
        return found
    with torch.no_grad():
        parts = scan.parts(shard)
        total = [torch.stack(each) for each in zip(*[shards.totals(part) for part in parts], strict=True)]
        traded = trade(group, f"indices of {name}", [each.expand(group.size, *each.shape) for each in total])
        states = tuple(in_order_of(layout.rows, each.flatten(0, 1)) for each in traded)
        value, at_items, begin_flags = shards.split_states(shard, states)
        assert at_items is not None
        after, places = shards.fold_indices(shard, value, at_items, begin_flags, initial, begins)
        values = []
        for part, at in zip(parts, layout.positions, strict=True):
            before, place = (after[at - 1], places[at - 1]) if at else (first_of(initial, shard, shard.carry), None)
            values.append(shards.finish(part, Carry(before, after[-1], place), begins[at]))
        both = join_spans(values, call.dim)
    if found:
        return (found[0], both[1], *found[1:])
    return (*both, *[after[-1].to(shard.carry)] * shard.final)


def first_of(initial: Initial, shard: Shard, dtype: torch.dtype) -> Tensor | None:
    """Return the carry into the first span, with an item for each line."""
    if initial is None:
        return None
    if isinstance(initial, Tensor):
        return initial.expand(shard.lines)
    return torch.full(shard.lines, initial, dtype=dtype, device=shard.tensors.x.device)
