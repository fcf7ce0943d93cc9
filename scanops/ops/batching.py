"""``torch.vmap`` of the operators: a batch of scans is one scan of one more dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scanops.ops.schema import BACKWARD, LIBRARY, RESULTS, SCANS, TENSORS, Form, Operation, as_tuple
from scanops.requests.checks import lent_kind
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along

Dims = tuple[int | None, ...]
Outputs = tuple[torch.Tensor, ...]


def _batched(inputs: Inputs, dims: Dims, operation: Operation, size: int) -> tuple[Inputs, Operation]:
    """The inputs with the batch in front of each that has items for it, and the operation along the moved dimension."""
    shape = inputs.x.shape if dims[0] is None else _in_front(inputs.x, dims[0]).shape[1:]
    rank = max(len(shape), 1)  # a 0-d tensor is a line of one item
    dim = operation.call.dim % rank
    whole = torch.Size(shape) if shape else torch.Size([1])
    x = _aligned(inputs.x, dims[0], rank).expand(size, *whole)
    mask, gate, starts = (
        None if each is None else _operand(each, each_dim, inputs.x.dtype if shape else each.dtype, rank)
        for each, each_dim in zip(inputs[1:4], dims[1:4], strict=True)
    )
    offsets = inputs.offsets
    if offsets is not None and dims[4] is not None:  # different segments in each line of the batch
        rows = _in_front(offsets, dims[4]).unbind()
        flags = [flags_along(None, row, x[0], dim) for row in rows]
        starts, offsets = torch.stack([each for each in flags if each is not None]), None
    initial = inputs.initial
    if initial is not None and not (dims[5] is None and initial.ndim == 0):
        initial = _aligned(initial, dims[5], rank - 1)
    found = Inputs(x, mask, gate, starts, offsets, initial)
    return found, operation._replace(call=replace(operation.call, dim=dim + 1))


def _operand(tensor: torch.Tensor, dim: int | None, beside: torch.dtype, rank: int) -> torch.Tensor:
    """An operand with the batch in front. One item per element of the batch promotes as the 0-d tensor it is there."""
    if tensor.ndim == (dim is not None) and tensor.dtype != torch.bool:
        one, number = torch.empty(1, dtype=beside, device="meta"), torch.empty((), dtype=tensor.dtype, device="meta")
        tensor = tensor.to(lent_kind(number, one).dtype)
    return _aligned(tensor, dim, rank)


def _aligned(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """A tensor with the batch in front of ``rank`` dimensions, those it lacks of size 1."""
    tensor = tensor.unsqueeze(0) if dim is None else _in_front(tensor, dim)
    batch, *others = tensor.shape
    return tensor.reshape([batch, *[1] * (rank - len(others)), *others])


def _in_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.movedim(dim, 0)


def batched(
    compute: Callable[[Operation, tuple[Any, ...]], Outputs],
    info: Any,
    dims: Dims,
    tensors: tuple[Any, ...],
    operation: Operation,
) -> tuple[Outputs, tuple[int, ...]]:
    """Return what ``compute`` gives for a batch, and the batch's dimension in each result: a rule for vmap."""
    inputs = Inputs(*tensors)
    scalar = inputs.x.ndim - (dims[0] is not None) == 0
    inputs, operation = _batched(inputs, dims, operation, info.batch_size)
    results = compute(operation, tuple(inputs[:TENSORS]))
    if scalar:
        results = tuple(each.reshape(info.batch_size) for each in results)
    return results, (0,) * len(results)


def _overloaded(operation: Operation, tensors: tuple[Any, ...]) -> Outputs:
    return as_tuple(operation.form.overload(*tensors, *operation.arguments()))


def _rule(form: Form) -> Callable[..., Any]:
    def rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        operation = Operation.parse(arguments[TENSORS:], final=form.final)
        found, places = batched(_overloaded, info, dims[:TENSORS], arguments[:TENSORS], operation)
        return (found, places) if len(found) > 1 else (found[0], places[0])

    return rule


def _backward_rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """One backward pass after the other: what is broadcast over the batch has a gradient for each element."""
    count = RESULTS + TENSORS
    given = [
        [each] * info.batch_size if dim is None else list(_in_front(each, dim).unbind())
        for each, dim in zip(arguments[:count], dims[:count], strict=True)
    ]
    found = [BACKWARD(*tensors, *arguments[count:]) for tensors in zip(*given, strict=True)]
    return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * 4


for _form in SCANS.values():
    torch.library.register_vmap(f"scanops::{_form.name}", _rule(_form), lib=LIBRARY)
torch.library.register_vmap("scanops::scan_backward", _backward_rule, lib=LIBRARY)
