"""``torch.vmap`` of the operators: a batch of scans is one scan of one more dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scanops.ops.schema import BACKWARD, LIBRARY, RESULTS, SCANS, TENSORS, Form, run_operator
from scanops.requests.call import Call
from scanops.requests.checks import lent_kind
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along

Dims = tuple[int | None, ...]
Outputs = tuple[torch.Tensor, ...]


def batched(
    compute: Callable[[Call, tuple[Any, ...]], Outputs], info: Any, dims: Dims, inputs: Inputs, call: Call
) -> tuple[Outputs, tuple[int, ...]]:
    """Return what ``compute`` gives for a batch, and the batch's dimension in each result: a rule for vmap.

    The batch comes in front of each tensor that has items for it, so the scan is along the next dimension.
    """
    shape = inputs.x.shape if dims[0] is None else inputs.x.movedim(dims[0], 0).shape[1:]
    rank = max(len(shape), 1)  # a 0-d tensor is a line of one item
    dim = call.dim % rank
    x = _aligned(inputs.x, dims[0], rank).expand(info.batch_size, *(shape or (1,)))
    mask, gate, starts = (
        None if each is None else _operand(each, each_dim, inputs.x.dtype if shape else each.dtype, rank)
        for each, each_dim in zip(inputs[1:4], dims[1:4], strict=True)
    )
    offsets = inputs.offsets
    if offsets is not None and dims[4] is not None:  # different segments in each line of the batch
        flags = [flags_along(None, row, x[0], dim) for row in offsets.unbind(dims[4])]
        starts, offsets = torch.stack([each for each in flags if each is not None]), None
    initial = inputs.initial
    if initial is not None and not (dims[5] is None and initial.ndim == 0):
        initial = _aligned(initial, dims[5], rank - 1)
    results = compute(replace(call, dim=dim + 1), (x, mask, gate, starts, offsets, initial))
    if not shape:
        results = tuple(each.reshape(info.batch_size) for each in results)
    return results, (0,) * len(results)


def _operand(tensor: torch.Tensor, dim: int | None, beside: torch.dtype, rank: int) -> torch.Tensor:
    """An operand with the batch in front. One item per element of the batch promotes as the 0-d tensor it is there."""
    if tensor.ndim == (dim is not None) and tensor.dtype != torch.bool:
        one, number = torch.empty(1, dtype=beside, device="meta"), torch.empty((), dtype=tensor.dtype, device="meta")
        tensor = tensor.to(lent_kind(number, one).dtype)
    return _aligned(tensor, dim, rank)


def _aligned(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """A tensor with the batch in front of ``rank`` dimensions, those it lacks of size 1."""
    tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    batch, *others = tensor.shape
    return tensor.reshape([batch, *[1] * (rank - len(others)), *others])


def _rule(form: Form) -> Callable[..., Any]:
    def rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        inputs, call = form.parsed(arguments)
        found, places = batched(run_operator, info, dims[:TENSORS], inputs, call)
        return (found, places) if len(found) > 1 else (found[0], places[0])

    return rule


def _backward_rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """One backward pass after the other: what is broadcast over the batch has a gradient for each element."""
    count = RESULTS + TENSORS
    given = [
        [each] * info.batch_size if dim is None else list(each.unbind(dim))
        for each, dim in zip(arguments[:count], dims[:count], strict=True)
    ]
    found = [BACKWARD(*tensors, *arguments[count:]) for tensors in zip(*given, strict=True)]
    return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * 4


for _form in SCANS.values():
    torch.library.register_vmap(f"scanops::{_form.name}", _rule(_form), lib=LIBRARY)
torch.library.register_vmap("scanops::scan_backward", _backward_rule, lib=LIBRARY)
