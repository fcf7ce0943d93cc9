"""The operators ``torch.ops.scanops.*``: their names, their signatures and their rules for ``torch.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from scanops import environment
from scanops.codegen.fusion.fusion import fusion_of
from scanops.errors import UnsupportedRequest
from scanops.requests.call import SCHEMA, Call
from scanops.requests.fused import broadcast_shape
from scanops.requests.promotion import promote_scalars
from scanops.requests.request import Inputs, Needs, Request, Tensors, check_fused, check_request
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
# A scan with `map` or `then`, whose text `map` is: the outputs, and the carry-out if it is asked for.
_FUSED = (_TENSORS, "Tensor[] further", "str map", _DIM, _OP, *_OPTIONS, "int[] summed=[]")
FUSED = _define("fused", *_FUSED)
# The gradients of x, mask, gate and initial; those that are not needed have no items. Inputs that the gradient does not
# read may be expanded from one element: only their shape and dtype count. y and indices are the forward's results.
_RESULTS = "Tensor grad, Tensor? grad_final, Tensor? y, Tensor? indices"
_GRADIENTS = "(Tensor, Tensor, Tensor, Tensor)"  # is_grads_batched=True takes no list
BACKWARD = _define("scan_backward", _RESULTS, _TENSORS, _DIM, _OP, "bool[] needs", *_OPTIONS, returns=_GRADIENTS)
# Those of further tensors as well, from the gradients of the outputs and of the carry-out.
FUSED_BACKWARD = _define("fused_backward", "Tensor?[] gradients, bool[] needs", *_FUSED)


def _read(arguments: tuple[Any, ...]) -> tuple[Inputs, Call]:
    """Return the tensors and the call of the arguments of ``scan`` or ``fused``, the last of which may be missing."""
    inputs, options = Inputs(*arguments[:TENSORS]), arguments[TENSORS:]
    if not isinstance(options[0], tuple | list):
        return inputs, Call.of_arguments(options)
    further, text, *options = options  # type: ignore[assignment]
    call = Call.of_arguments(options[: len(SCHEMA)])
    summed = tuple(options[len(SCHEMA)]) if len(options) > len(SCHEMA) else ()
    return inputs._replace(further=tuple(further)), replace(call, summed=summed, fusion=fusion_of(text))


def parse(arguments: tuple[Any, ...]) -> tuple[Inputs, Call]:
    """Return the tensors and the call of the arguments of ``scan`` or ``fused``, a fused one checked."""
    inputs, call = _read(arguments)
    if call.fusion is None:
        return _with_offsets(inputs, call)
    wanted, given = [each.dtype for each in call.fusion.operands], [str(each.dtype)[6:] for each in inputs.operands]
    if wanted != given:
        raise UnsupportedRequest(
            "scanops::fused: the tensors must be of the dtypes that the expressions were traced for",
            allowed=", ".join(wanted),
            value=", ".join(given),
            hint="call scanops.scan with functions, which traces them again",
        )
    call, inputs = check_fused(call, inputs)
    return inputs, call


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
    """Return the arguments of ``fused`` behind its tensors."""
    assert call.fusion is not None
    return (call.fusion.text, *call.arguments(), list(call.summed))


def differentiate_fused_by_operator(
    options: tuple[Any, ...], given: Inputs, gradients: Sequence[torch.Tensor | None], needs: Needs
) -> Tensors:
    """Return the gradients of ``given.differentiable`` by ``fused_backward``, which a compiler can follow.

    ``options``: as ``list_fused_arguments`` returns them.
    """
    every = FUSED_BACKWARD(list(gradients), list(needs), *given.flat[:TENSORS], list(given.further), *options)
    return tuple([each if need else None for each, need in zip(every, needs, strict=True)])


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


def run_operator(call: Call, tensors: Sequence[Any], keys: Any = None) -> Outputs:
    """Return the results of the operator on a call's ``Inputs.flat``; ``keys`` are what is left to dispatch to."""
    operator, arguments = SCAN, (*tensors, *call.arguments())
    if call.fusion is not None:
        operator, arguments = FUSED, (*tensors[:TENSORS], list(tensors[TENSORS:]), *list_fused_arguments(call))
    return tuple(operator(*arguments) if keys is None else operator.redispatch(keys, *arguments))


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


def _batch_fused(
    info: Any, dims: Dims, further_dims: Dims, inputs: Inputs, call: Call
) -> tuple[Outputs, tuple[int, ...]]:
    """Return the results of a batch of fused scans, and the batch's dimension in each."""
    places, offsets = (dims[0], *further_dims), inputs.offsets
    ranks = [each.ndim - (at is not None) for each, at in zip(inputs.operands, places, strict=True)]
    rank = max(1, *ranks)  # 0-d tensors are lines of one item
    x, *further = [align(each, at, rank) for each, at in zip(inputs.operands, places, strict=True)]
    dim, (starts, initial) = (
        call.dim % rank,
        (
            None if each is None else align(each, at, size)
            for each, at, size in ((inputs.starts, dims[3], rank), (inputs.initial, dims[5], rank - 1))
        ),
    )
    if offsets is not None and dims[4] is not None:  # other segments in each element of the batch
        line = x.new_empty(()).expand(broadcast_shape([each[0] for each in (x, *further)]))
        rows = [flags_along(None, row, line, dim) for row in offsets.unbind(dims[4])]
        starts, offsets = torch.stack([each for each in rows if each is not None]), None
    if any(at is not None for at in dims[3:]):
        x = x.expand(info.batch_size, *x.shape[1:])
    call = replace(call, dim=dim + 1, summed=tuple(each % rank + 1 for each in call.summed))
    found = run_operator(call, (x, None, None, starts, offsets, initial, *further))
    return tuple(each if any(ranks) else each.squeeze(1) for each in found), (0,) * len(found)


def _rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
    inputs, call = _read(arguments)
    if call.fusion is not None:
        found, places = _batch_fused(info, dims[:TENSORS], tuple(dims[TENSORS]), inputs, call)
    else:
        found, places = batch(run_operator, info, dims[:TENSORS], inputs, call)
    return list(found), list(places)


def _backward_rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Outputs, tuple[int, ...]]:
    """What is broadcast over the batch has a gradient for each element."""
    count = RESULTS + TENSORS
    return _one_by_one(lambda *tensors: BACKWARD(*tensors, *arguments[count:]), info, dims[:count], arguments[:count])


torch.library.register_vmap("scanops::scan", _rule, lib=LIBRARY)
torch.library.register_vmap("scanops::fused", _rule, lib=LIBRARY)
torch.library.register_vmap("scanops::scan_backward", _backward_rule, lib=LIBRARY)
