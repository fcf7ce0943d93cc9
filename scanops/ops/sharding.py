"""DTensor shardings of the operators: along any dimension but the scanned one, which is gathered first.

A dimension that an operand lacks, or has of size 1, is replicated; the operand's gradient is a sum over the shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from scanops.ops.schema import BACKWARD, RESULTS, SCANS, TENSORS, Form, of_backward
from scanops.torch_private import at_tracing

_REGISTERED: list[bool] = []


@at_tracing
def know_shardings() -> bool:
    """Register the shardings with DTensor, once, at its first call. To import this module takes longer than scanops."""
    if _REGISTERED:
        return True
    for form in SCANS.values():
        register_sharding(form.overload)(_shardings(form))
    register_sharding(BACKWARD)(_shardings_of_backward)
    _REGISTERED.append(True)
    return True


def _shardings(form: Form) -> Callable[..., list[tuple[list[Any], list[Any]]]]:
    def shardings(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        inputs, call = form.parsed(arguments)
        others = [None] * (len(arguments) - TENSORS)
        return [
            ([along] * (1 + form.indices) + [line] * form.final, [*(each for each, _ in operands), *others])
            for along, line, operands in _ways(inputs, call.dim)
        ]

    return shardings


def _shardings_of_backward(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    _, grad_final, y, indices, *_ = arguments
    inputs, needs, call = of_backward(arguments[RESULTS:])
    others = [None] * (len(arguments) - RESULTS - TENSORS)
    found = []
    for along, line, operands in _ways(inputs, call.dim):
        given = [
            along,
            None if grad_final is None else line,
            *(None if each is None else along for each in (y, indices)),
        ]
        x, mask, gate, _, _, initial = (gradient for _, gradient in operands)
        results = [each if need else Replicate() for each, need in zip((x, mask, gate, initial), needs, strict=True)]
        found.append((results, [*given, *(each for each, _ in operands), *others]))
    return found


def _ways(inputs: Any, dim: int) -> list[tuple[Any, Any, list[tuple[Any, Any]]]]:
    """Return placements of the result, of one-per-line tensors, and of each operand and its gradient."""
    shape = inputs.x.shape
    dim = dim % max(len(shape), 1)
    lines = [size for d, size in enumerate(shape) if d != dim]
    whole = Replicate()
    ways: list[tuple[Any, Any, list[tuple[Any, Any]]]] = [
        (whole, whole, [(None, None) if each is None else (whole, whole) for each in inputs[:TENSORS]])
    ]
    for d in range(len(shape)):
        if d == dim:
            continue
        line = d - (d > dim)
        of_operands = [None if each is None else _placed(each, shape, d) for each in inputs[:4]]
        of_offsets = None if inputs.offsets is None else (whole, whole)
        of_initial = None if inputs.initial is None else _placed(inputs.initial, lines, line)
        operands = [each or (None, None) for each in (*of_operands, of_offsets, of_initial)]
        ways.append((Shard(d), Shard(line), operands))
    return ways


def _placed(operand: Any, shape: Any, dim: int) -> tuple[Any, Any]:
    """Return placements of an operand that broadcasts to a shape sharded along ``dim``, and of its gradient."""
    own = dim - len(shape) + len(operand.shape)
    if own >= 0 and operand.shape[own] == shape[dim]:
        return Shard(own), Shard(own)
    return Replicate(), Partial("sum")
