"""Operations on batches: ``torch.vmap`` of a scan is a scan of one dimension more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scanops.ops.computing import Results
from scanops.ops.schema import BACKWARD, LIBRARY, RESULTS, SCANS, TENSORS, Form, Options
from scanops.requests.checks import lent_kind
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along

__all__ = ["batched"]

Dims = tuple[int | None, ...]


def _batched(inputs: Inputs, dims: Dims, options: Options, size: int) -> tuple[Inputs, Options]:
    """The inputs with the batch in front of each that has items for it, and the dim they are scanned along."""
    shape = inputs.x.shape if dims[0] is None else _in_front(inputs.x, dims[0]).shape[1:]
    rank = max(len(shape), 1)  # a 0-d tensor is a line of one item
    dim = options.dim % rank
    whole = torch.Size(shape) if shape else torch.Size([1])
    x = _aligned(inputs.x, dims[0], rank).expand(size, *whole)
    mask, gate, starts = (
        None if each is None else _operand(each, each_dim, inputs.x.dtype if shape else each.dtype, rank)
        for each, each_dim in zip(inputs[1:4], dims[1:4], strict=True)
    )
    offsets = inputs.offsets
    if offsets is not None and dims[4] is not None:  # other segments in each line of the batch
        rows = _in_front(offsets, dims[4]).unbind()
        flags = [flags_along(None, row, x[0], dim) for row in rows]
        starts, offsets = torch.stack([each for each in flags if each is not None]), None
    initial = inputs.initial
    if initial is not None and not (dims[5] is None and initial.ndim == 0):
        initial = _aligned(initial, dims[5], rank - 1)
    found = Inputs(x, mask, gate, starts, offsets, initial)
    return found, options._replace(dim=dim + 1)


def _operand(tensor: torch.Tensor, dim: int | None, beside: torch.dtype, rank: int) -> torch.Tensor:
    """With the batch in front; one item for each of the batch is a number to it, which lends its kind alone."""
    if tensor.ndim == (dim is not None) and tensor.dtype != torch.bool:
        one, number = torch.empty(1, dtype=beside, device="meta"), torch.empty((), dtype=tensor.dtype, device="meta")
        tensor = tensor.to(lent_kind(number, one).dtype)
    return _aligned(tensor, dim, rank)


def _aligned(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """With the batch in front of ``rank`` dimensions, those it lacks of size 1."""
    tensor = tensor.unsqueeze(0) if dim is None else _in_front(tensor, dim)
    batch, *others = tensor.shape
    return tensor.reshape([batch, *[1] * (rank - len(others)), *others])


def _in_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.movedim(dim, 0)


def batched(
    call: Callable[[Form, Inputs, Options], Any], form: Form, info: Any, dims: Dims, inputs: Inputs, options: Options
) -> tuple[Any, Any]:
    """What ``call`` gives for a batch, and where in it the batch lies: as vmap's rules say it."""
    scalar = inputs.x.ndim - (dims[0] is not None) == 0
    inputs, options = _batched(inputs, dims[:TENSORS], options, info.batch_size)
    found = call(form, inputs, options)
    results: Results = found if isinstance(found, tuple) else (found,)
    if scalar:
        results = tuple(each.reshape(info.batch_size) for each in results)
    return (results, (0,) * len(results)) if isinstance(found, tuple) else (results[0], 0)


def _overloaded(form: Form, inputs: Inputs, options: Options) -> Any:
    return form.overload(*inputs[:TENSORS], *options)


def _rule(form: Form) -> Callable[..., Any]:
    def rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return batched(_overloaded, form, info, dims, Inputs(*arguments[:TENSORS]), Options(*arguments[TENSORS:]))

    return rule


def _backward_rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """One after the other: what is broadcast over the batch has a gradient for each."""
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
