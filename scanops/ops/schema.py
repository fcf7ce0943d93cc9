"""The operators ``torch.ops.scanops.*``: their names, their signatures and their rules for ``torch.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from scanops import environment
from scanops.codegen.operators import listed
from scanops.requests.call import SCHEMA, Call
from scanops.requests.checks import lent_kind
from scanops.requests.request import Inputs, Request, checked
from scanops.requests.segments import flags_along
from scanops.runtime.policies import policy

Outputs = tuple[torch.Tensor, ...]
LIBRARY = torch.library.Library("scanops", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag,)
_TENSORS = "Tensor x, Tensor? mask, Tensor? gate, Tensor? segment_starts, Tensor? offsets, Tensor? initial"
TENSORS = 6
RESULTS = 4  # gradients and results, which come first among the arguments of scan_backward


class Form(NamedTuple):
    """One of the operators, which differ in what they return."""

    name: str
    indices: bool  # whether indices come with the values
    final: bool  # whether carry-outs are returned
    overload: Any

    def parsed(self, arguments: tuple[Any, ...]) -> tuple[Inputs, Call]:
        """Return the tensors and the call of the operator's arguments."""
        return Inputs(*arguments[:TENSORS]), Call.of_arguments(arguments[TENSORS:], final=self.final)


def _define(name: str, arguments: str, results: int) -> Any:
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})" if results else "Tensor[]"
    LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=_TAGS)  # type: ignore[no-untyped-call]
    return getattr(torch.ops.scanops, name).default


_DIM, _OP, *_OPTIONS = SCHEMA.values()


def _forms() -> dict[tuple[bool, bool], Form]:
    found = {}
    for indices in (False, True):
        for final in (False, True):
            name = "scan" + "_indices" * indices + "_final" * final
            overload = _define(name, ", ".join((_TENSORS, _DIM, _OP, *_OPTIONS)), 1 + indices + final)
            found[indices, final] = Form(name=name, indices=indices, final=final, overload=overload)
    return found


SCANS: Mapping[tuple[bool, bool], Form] = MappingProxyType(_forms())
# The gradients of x, mask, gate and initial; those that are not needed have no items. Inputs that the gradient does not
# read may be expanded from one element: only their shape and dtype count. y and indices are the forward's results.
BACKWARD = _define(
    "scan_backward",
    ", ".join(
        ("Tensor grad, Tensor? grad_final, Tensor? y, Tensor? indices", _TENSORS, _DIM, _OP, "bool[] needs", *_OPTIONS)
    ),
    4,
)
# A scan with `map` or `then`, whose text `map` is: the outputs; and the gradients of the tensors that `needs` names.
# Implemented by scanops.fusion.operator.
_FUSED = "Tensor[] tensors, {}str map, str op, int dim, bool reverse, bool exclusive, bool any_length"
FUSED = _define("fused", _FUSED.format(""), 0)
FUSED_BACKWARD = _define("fused_backward", "Tensor?[] gradients, " + _FUSED.format("bool[] needs, "), 0)


def form_of(call: Call) -> Form:
    """Return the operator that returns what a call returns."""
    return SCANS[bool(listed(call.op).indices), call.final]


def backward_arguments(call: Call, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Return the arguments of ``scan_backward`` after its tensors."""
    dim, op, *others = call.arguments()
    return (dim, op, needs, *others)


def of_backward(arguments: tuple[Any, ...]) -> tuple[Inputs, tuple[bool, ...], Call]:
    """Return inputs, needs and call of the arguments of ``scan_backward`` after gradients and results."""
    dim, op, needs, *others = arguments[TENSORS:]
    return Inputs(*arguments[:TENSORS]), tuple(needs), Call.of_arguments((dim, op, *others), final=False)


def request_of(call: Call, inputs: Inputs) -> Request:
    """Return the request that an operator's call makes."""
    start: Any = call.start
    if isinstance(start, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number of its kind: only that is checked
        start = 1 if isinstance(start, torch.SymInt) else True
    return checked(call, inputs if inputs.initial is not None else inputs._replace(initial=start))


def run_operator(call: Call, tensors: tuple[Any, ...], keys: Any = None) -> tuple[torch.Tensor, ...]:
    """Return the results of a call's operator on its six tensors; ``keys`` are what is left to dispatch to."""
    overload, arguments = form_of(call).overload, (*tensors, *call.arguments())
    found = overload(*arguments) if keys is None else overload.redispatch(keys, *arguments)
    return found if isinstance(found, tuple) else (found,)


def lengths(any_length: bool) -> AbstractContextManager[object]:
    """Use the kernel that takes its length where lengths change, unless the user chose a policy."""
    return policy("generic") if any_length and environment.policy() == "build" else nullcontext()


# ---- vmap: a batch of scans is one scan of one more dimension

Dims = tuple[int | None, ...]


def batched(
    compute: Callable[[Call, tuple[Any, ...]], Outputs], info: Any, dims: Dims, inputs: Inputs, call: Call
) -> tuple[Outputs, tuple[int, ...]]:
    """Return what ``compute`` gives for a batch, and the batch's dimension in each result: a rule for vmap.

    The batch comes in front of each tensor that has items for it, so the scan is along the next dimension.
    """
    if call.per_segment and dims[4] is not None:  # segments of each element's own: one scan after the other
        alone = [
            [each] * info.batch_size if each is None or d is None else each.unbind(d)
            for each, d in zip(inputs, dims, strict=False)
        ]
        found = [compute(call, tensors) for tensors in zip(*alone, strict=True)]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])
    shape = inputs.x.shape if dims[0] is None else inputs.x.movedim(dims[0], 0).shape[1:]
    rank = max(len(shape), 1)  # a 0-d tensor is a line of one item
    dim = call.dim % rank
    x = aligned(inputs.x, dims[0], rank).expand(info.batch_size, *(shape or (1,)))
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
        initial = aligned(initial, dims[5], rank if call.per_segment else rank - 1)
    results = compute(replace(call, dim=dim + 1), (x, mask, gate, starts, offsets, initial))
    if not shape:
        results = tuple(each.reshape(info.batch_size) for each in results)
    return results, (0,) * len(results)


def _operand(tensor: torch.Tensor, dim: int | None, beside: torch.dtype, rank: int) -> torch.Tensor:
    """An operand with the batch in front. One item per element of the batch promotes as the 0-d tensor it is there."""
    if tensor.ndim == (dim is not None) and tensor.dtype != torch.bool:
        one, number = torch.empty(1, dtype=beside, device="meta"), torch.empty((), dtype=tensor.dtype, device="meta")
        tensor = tensor.to(lent_kind(number, one).dtype)
    return aligned(tensor, dim, rank)


def aligned(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
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
