"""Fused scans by PyTorch's operators: expressions around an ordinary scan, which have derivatives of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scanops.codegen.fusion.fusion import Fusion
from scanops.codegen.fusion.graph import Graph, Node, wide
from scanops.codegen.operator import Join
from scanops.fallback.doubling import scan_by_doubling
from scanops.fallback.scans import depend
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape
from scanops.requests.geometry import separate
from scanops.requests.request import Inputs
from scanops.requests.segments import shift
from scanops.requests.torch_state import is_derived, is_memory, is_recorded

Tensors = tuple[torch.Tensor, ...]
_TORCH: dict[str, Any] = {
    **{"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not},
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40),  # where log(1 + exp(x)) rounds to x
    "detach": torch.Tensor.detach,
    "floor_divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),  # which has a derivative, 0
}


def compose(call: Call, given: Inputs, scan: Callable[[Call, Inputs], Tensors]) -> Tensors:
    """Return the outputs of a checked fused scan, and its carry-out if asked for; ``scan`` computes plain scans."""
    fusion = call.fusion
    assert fusion is not None
    tensors = tuple(
        each if start is None else shift(each, call.dim, start, ahead=not call.reverse)
        for each, (*_, start) in zip(given.operands, fusion.operands, strict=True)
    )
    shape = broadcast_shape(tensors)
    finals: list[torch.Tensor] = []
    results: list[torch.Tensor] = []
    values: dict[int, torch.Tensor] = {}

    def compute(roots: Sequence[int]) -> Tensors:
        found = evaluate(fusion.nodes, roots, {"operand": tensors, "result": results}, values)
        return tuple(each.expand(shape) for each in found)

    element, *gates = elements = compute(fusion.elements)
    if fusion.fields:
        results += _scan_states(fusion, call, elements)
    else:
        gate = gates[0] if gates else None
        inputs = Inputs(element, gate=gate, starts=given.starts, offsets=given.offsets, initial=given.initial)
        scanned = getattr(torch, wide(fusion.scanned))  # of which outputs alone are rounded
        y, *finals = scan(Call(call.op, call.dim, call.reverse, call.exclusive, call.final, scanned), inputs)
        results.append(y)
    found = zip(compute([each.at for each in fusion.outputs]), fusion.outputs, strict=True)
    outputs = [each.to(getattr(torch, output.dtype)) for each, output in found]
    if call.line_sums > 0:
        outputs[-call.line_sums :] = [torch.stack([each.sum(call.dim) for each in outputs[-call.line_sums :]])[:, None]]
    if is_derived() or (is_recorded() and any(each.requires_grad for each in tensors)):
        operands = [each.expand(shape) for each in tensors]
        return (*(depend(each, operands, call.dim) for each in outputs), *finals)
    if not all(map(is_memory, (*outputs, *tensors))):  # as batches, whose storage cannot be asked
        return (*(each.clone(memory_format=torch.contiguous_format) for each in outputs), *finals)
    return (*separate(outputs, tensors), *finals)


def _scan_states(fusion: Fusion, call: Call, states: Tensors) -> Tensors:
    """Scan states of several fields in log2(n) passes."""
    dim, whole = call.dim, states[0]
    if not whole.ndim:
        return tuple(each[0] for each in _scan_states(fusion, call, tuple(each[None] for each in states)))

    def combine(older: Tensors, newer: Tensors) -> Tensors:
        found = evaluate(fusion.nodes, fusion.combine, {"older": older, "newer": newer}, {})
        return tuple(each.expand(newer[0].shape) for each in found)

    states = tuple(each.flip(dim) if call.reverse else each for each in states)
    shape = [min(1, size) if at == dim else size for at, size in enumerate(whole.shape)]
    nothing = tuple(each.new_full(shape, field.identity) for each, field in zip(states, fusion.fields, strict=True))
    if call.exclusive:
        pairs = zip(nothing, states, strict=True)
        states = tuple(torch.cat([none, each], dim).narrow(dim, 0, whole.shape[dim]) for none, each in pairs)
    states = scan_by_doubling(Join(combine=combine), states, nothing, None, dim)
    return tuple(each.flip(dim) if call.reverse else each for each in states)


def evaluate(
    nodes: Sequence[Node], roots: Sequence[int], leaves: dict[str, Any], values: dict[int, torch.Tensor]
) -> Tensors:
    """Return expressions by torch's operators. ``leaves``: tensors by operation and place; ``values``: known nodes."""
    device = next(each[0].device for each in leaves.values() if each)
    for at in Graph(nodes).find_ancestors(*roots):
        if at not in values:
            operation, dtype, *arguments = nodes[at]
            to = getattr(torch, dtype)
            if operation in leaves:
                values[at] = leaves[operation][arguments[0]].to(to)
            elif operation == "number":
                values[at] = torch.full((), arguments[0], dtype=to, device=device)
            elif operation == "cast":
                values[at] = values[arguments[0]].to(to)
            elif operation == "round":
                values[at] = values[arguments[0]].to(getattr(torch, arguments[1])).to(to)
            else:
                function = _TORCH.get(operation) or getattr(torch, operation)
                values[at] = function(*(values[each] for each in arguments))
    return tuple(values[at] for at in roots)
