"""The operators ``torch.ops.scanops.*``: their names, their signatures and their rules for ``torch.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from scanops import environment
from scanops.requests.call import SCHEMA, Call
from scanops.requests.promotion import promote_scalars
from scanops.requests.request import Inputs, Needs, Request, Tensors, check_request
from scanops.requests.segments import flags_along, make_line_offsets
from scanops.runtime.policies import policy

Outputs = tuple[torch.Tensor, ...]
LIBRARY = torch.library.Library("scanops", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag,)
_TENSORS = "Tensor x, Tensor? mask, Tensor? gate, Tensor? segment_starts, Tensor? offsets, Tensor? initial"
TENSORS = 6
RESULTS = 4  # gradients and results, which come first among the arguments of scan_backward


def _define(name: str, *arguments: str, returns: str = "Tensor[]") -> Any:
    LIBRARY.define(f"{name}({', '.join(arguments)}) -> {returns}", tags=_TAGS)  # type: ignore[no-untyped-call]
    return getattr(torch.ops.scanops, name).default


_DIM, _OP, *_OPTIONS = SCHEMA.values()
# The result, its indices where the operator has them, and the carry-out if it is asked for.
SCAN = _define("scan", _TENSORS, _DIM, _OP, *_OPTIONS)
# The gradients of x, mask, gate and initial; those that are not needed have no items. Inputs that the gradient does not
# read may be expanded from one element: only their shape and dtype count. y and indices are the forward's results.
_RESULTS = "Tensor grad, Tensor? grad_final, Tensor? y, Tensor? indices"
_GRADIENTS = "(Tensor, Tensor, Tensor, Tensor)"  # is_grads_batched=True takes no list
BACKWARD = _define("scan_backward", _RESULTS, _TENSORS, _DIM, _OP, "bool[] needs", *_OPTIONS, returns=_GRADIENTS)
# A scan with `map` or `then`, whose text `map` is: the outputs; and the gradients of the tensors that `needs` names.
# Implemented by scanops.ops.fused_implementations.
# The last of the gradients is that of the carry-out, where there is one, and the last of `needs` that of `initial`.
_FUSED = "str map, str op, int dim, bool reverse, bool exclusive, bool any_length"
_FUSED += ", bool final=False, int[] summed=[], Tensor? initial=None, Tensor? segment_starts=None, Tensor? offsets=None"
FUSED = _define("fused", "Tensor[] tensors", _FUSED)
FUSED_BACKWARD = _define("fused_backward", "Tensor?[] gradients, Tensor[] tensors, bool[] needs", _FUSED)


def parse(arguments: tuple[Any, ...]) -> tuple[Inputs, Call]:
    """Return the tensors and the call of the arguments of ``scan``."""
    return _with_offsets(Inputs(*arguments[:TENSORS]), Call.of_arguments(arguments[TENSORS:]))


def _with_offsets(inputs: Inputs, call: Call) -> tuple[Inputs, Call]:
    """Return the inputs with offsets wherever there are chunks: of lines, those of one segment."""
    if call.chunk is not None and inputs.offsets is None and inputs.x.ndim:
        inputs = inputs._replace(offsets=make_line_offsets(inputs.x, call.dim))
    return inputs, call


def backward_arguments(call: Call, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Return the arguments of ``scan_backward`` after its tensors."""
    dim, op, *others = call.arguments()
    return (dim, op, needs, *others)


def list_fused_arguments(call: Call) -> tuple[Any, ...]:
    """Return the arguments of ``fused`` between its operands and its carry-in."""
    assert call.fusion is not None
    options = (call.op, call.dim, call.reverse, call.exclusive, call.any_length, call.final, list(call.summed))
    return (call.fusion.text, *options)


def run_fused_operator(call: Call, given: Inputs, keys: Any = None) -> Outputs:
    """Return the results of ``fused`` on a call's tensors; ``keys`` are what is left to dispatch to."""
    arguments = (list(given.operands), *list_fused_arguments(call), given.initial, given.starts, given.offsets)
    return tuple(FUSED(*arguments) if keys is None else FUSED.redispatch(keys, *arguments))


def differentiate_fused_by_operator(
    options: tuple[Any, ...], given: Inputs, gradients: Sequence[torch.Tensor | None], needs: Needs
) -> Tensors:
    """Return the gradients of ``given.differentiable`` by ``fused_backward``, which a compiler can follow.

    ``options``: as ``list_fused_arguments`` returns them.
    """
    x, _, _, initial, *further = needs
    wanted = [x, *further, initial] if given.initial is not None else [x, *further]
    segments = (given.starts, given.offsets)
    every = FUSED_BACKWARD(list(gradients), list(given.operands), wanted, *options, given.initial, *segments)
    kept: list[Any] = [each if need else None for each, need in zip(every, wanted, strict=True)]
    of_x, *others = kept
    of_initial = others.pop() if given.initial is not None else None
    return (of_x, None, None, of_initial, *others)


def of_backward(arguments: tuple[Any, ...]) -> tuple[Inputs, tuple[bool, ...], Call]:
    """Return inputs, needs and call of the arguments of ``scan_backward`` after gradients and results."""
    dim, op, needs, *others = arguments[TENSORS:]
    inputs, call = _with_offsets(Inputs(*arguments[:TENSORS]), Call.of_arguments((dim, op, *others)))
    return inputs, tuple(needs), call


def request_of(call: Call, inputs: Inputs) -> Request:
    """Return the request that an operator's call makes."""
    start: Any = call.start
    if isinstance(start, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number of its kind: only that is checked
        start = 1 if isinstance(start, torch.SymInt) else True
    return check_request(call, inputs if inputs.initial is not None else inputs._replace(initial=start))


def run_operator(call: Call, tensors: tuple[Any, ...], keys: Any = None) -> Outputs:
    """Return the results of the operator on a call's six tensors; ``keys`` are what is left to dispatch to."""
    arguments = (*tensors, *call.arguments())
    return tuple(SCAN(*arguments) if keys is None else SCAN.redispatch(keys, *arguments))


def lengths(any_length: bool) -> AbstractContextManager[object]:
    """Use the kernel that takes its length where lengths change, unless the user chose a policy."""
    return policy("generic") if any_length and environment.policy() == "build" else nullcontext()


# ---- vmap: a batch of scans is one scan of one more dimension

Dims = tuple[int | None, ...]


def batch(
    compute: Callable[[Call, tuple[Any, ...]], Outputs], info: Any, dims: Dims, inputs: Inputs, call: Call
) -> tuple[Outputs, tuple[int, ...]]:
    """Return what ``compute`` gives for a batch, and the batch's dimension in each result: a rule for vmap.

    The batch comes in front of each tensor that has items for it, so the scan is along the next dimension.
    """
    if call.per_segment and dims[4] is not None:  # segments of each element's own
        return _one_by_one(lambda *tensors: compute(call, tensors), info, dims, inputs[:TENSORS])
    shape = inputs.x.shape if dims[0] is None else inputs.x.movedim(dims[0], 0).shape[1:]
    rank = max(len(shape), 1)  # a 0-d tensor is a line of one item
    dim = call.dim % rank
    # One item for each element of the batch promotes as the tensor of no dimension that it is there.
    flat = [
        not shape,
        *(each is not None and each.ndim == (at is not None) for each, at in zip(inputs[1:3], dims[1:3], strict=True)),
    ]
    call, (x, mask, gate) = promote_scalars(call, inputs[:3], flat)
    assert x is not None
    x = align(x, dims[0], rank).expand(info.batch_size, *(shape or (1,)))
    mask, gate, starts = (
        None if each is None else align(each, each_dim, rank)
        for each, each_dim in zip((mask, gate, inputs.starts), dims[1:4], strict=True)
    )
    offsets = inputs.offsets
    if offsets is not None and dims[4] is not None:  # different segments in each line of the batch
        flags = [flags_along(None, row, x[0], dim, call.chunk) for row in offsets.unbind(dims[4])]
        starts, offsets = torch.stack([each for each in flags if each is not None]), None
        call = replace(call, chunk=None)
    initial = inputs.initial
    if initial is not None and not (dims[5] is None and initial.ndim == 0):
        initial = align(initial, dims[5], rank if call.per_segment else rank - 1)
    results = compute(replace(call, dim=dim + 1), (x, mask, gate, starts, offsets, initial))
    if not shape:
        results = tuple(each.reshape(info.batch_size) for each in results)
    return results, (0,) * len(results)


def align(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """A tensor with the batch in front of ``rank`` dimensions, those it lacks of size 1."""
    tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    batch, *others = tensor.shape
    return tensor.reshape([batch, *[1] * (rank - len(others)), *others])


def _one_by_one(
    compute: Callable[..., Sequence[torch.Tensor]], info: Any, dims: Dims, tensors: Sequence[Any]
) -> tuple[Outputs, tuple[int, ...]]:
    """Return what ``compute`` gives for each element of a batch, one after the other."""
    pairs = zip(tensors, dims, strict=True)
    alone = [[each] * info.batch_size if dim is None else each.unbind(dim) for each, dim in pairs]
    found = [compute(*given) for given in zip(*alone, strict=True)]
    return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
    inputs, call = Inputs(*arguments[:TENSORS]), Call.of_arguments(arguments[TENSORS:])
    found, places = batch(run_operator, info, dims[:TENSORS], inputs, call)
    return list(found), list(places)


def _backward_rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Outputs, tuple[int, ...]]:
    """What is broadcast over the batch has a gradient for each element."""
    count = RESULTS + TENSORS
    return _one_by_one(lambda *tensors: BACKWARD(*tensors, *arguments[count:]), info, dims[:count], arguments[:count])


torch.library.register_vmap("scanops::scan", _rule, lib=LIBRARY)
torch.library.register_vmap("scanops::scan_backward", _backward_rule, lib=LIBRARY)
