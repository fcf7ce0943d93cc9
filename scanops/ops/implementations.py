"""The implementations of ``torch.ops.scanops``: on real tensors, on fake ones, under autocast and for autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from scanops import torch_private as private
from scanops.fallback.fused import compose
from scanops.fallback.summed import compose_summed
from scanops.ops import schema
from scanops.ops.dispatch import run
from scanops.ops.gradients import BackwardPass, FusedBackwardPass, compute_fused_gradients, compute_gradients
from scanops.ops.node import OperatorForward, ScanFunction, apply_operator, by_torch, kind_of
from scanops.ops.saved import SavedForward, saved_mask, sum_to
from scanops.ops.schema import TENSORS, Outputs
from scanops.ops.serving import record_fused_call, serve
from scanops.requests.call import Call
from scanops.requests.geometry import separate
from scanops.requests.request import Inputs, RequestKind, SavedTensors, Tensors, check_request
from scanops.requests.torch_state import autocast, has_own_operations, reads_memory, runs_kernels
from scanops.runtime.recipes import Tape

OperatorResults = list[torch.Tensor]  # as operators of torch.library return them


def _classless(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors without a class that torch's operations ignore: results are given the class again."""
    return tuple(
        each
        if each is None or type(each) in (torch.Tensor, torch.nn.Parameter) or has_own_operations(each)
        else each.as_subclass(torch.Tensor)
        for each in tensors
    )


def _compute(*arguments: Any) -> OperatorResults:
    """By a kernel where there is memory to read: modes have seen the operator already."""
    inputs, call = schema.parse(arguments)
    given = Inputs.of_flat(_classless(inputs.flat))
    given = given if given.initial is not None else given._replace(initial=call.start)  # type: ignore[arg-type]
    with schema.lengths(call.any_length):
        return separate(serve(call, given, run, eager=reads_memory(given.flat)), given.operands)


def _pretend(*arguments: Any) -> OperatorResults:
    """Shapes and dtypes of the results, for fake tensors."""
    inputs, call = schema.parse(arguments)
    request = schema.request_of(call, inputs)
    return [torch.empty(shape, dtype=dtype, device=request.x.device) for _, shape, dtype in request.places]


def _cast(*arguments: Any) -> OperatorResults:
    """Under autocast on a GPU, operators with ``autocast`` in float32."""
    inputs, call = schema.parse(arguments)
    if call.dtype is None:
        call = replace(call, dtype=autocast(call.op, inputs.x))
    with private.without_autocast():
        return list(schema.run_operator(call, inputs.flat))


def _differentiate(keys: Any, *arguments: Any) -> OperatorResults:
    inputs, call = schema.parse(arguments)
    tensors, keys = inputs.flat, keys & private.after_autograd
    if is_transformed(tensors):
        if call.fusion is None:
            return list(by_torch(schema.request_of(call, inputs)))
        return list((compose_summed if call.summed else compose)(call, inputs, run))

    def compute(call: Call, given: Inputs) -> Outputs:
        with private.below_autograd():
            return schema.run_operator(call, given.flat, keys)

    if not (torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)):
        return list(compute(call, inputs))
    if call.fusion is None:
        return list(ScanFunction.record(OperatorForward(kind_of(call, tensors), call, keys), tensors))
    kind = RequestKind(check_request(call, inputs))
    return list(record_fused_call(kind, inputs, compute, run, saves_states=False))


def is_transformed(tensors: Tensors) -> bool:
    """Whether a derivative is taken in a way that follows torch's operations only, and would lose it silently here."""
    if private.are_transforms_active():
        return True
    if private.dual_level() < 0:
        return False
    duals = (forward_ad.unpack_dual(each) for each in tensors if each is not None)  # type: ignore[no-untyped-call]
    return any(each.tangent is not None for each in duals)


# ---- torch.ops.scanops.scan_backward


def _backward(*arguments: Any, within: bool) -> OperatorResults:
    """``within`` the operator modes have seen it, and kernels may run; its tensors may have lost their history."""
    grad, grad_final, y, indices, *others = arguments
    inputs, needs, call = schema.of_backward(tuple(others))
    request = schema.request_of(replace(call, final=grad_final is not None), inputs)
    tensors = request.inputs.differentiable
    if within:
        pairs = zip(tensors, needs, strict=True)
        tensors = tuple(each if each is None else each.detach().requires_grad_(need) for each, need in pairs)
    kind = RequestKind(request)
    *_, reads_y, _ = saved_mask(kind.inclusive or kind, needs)
    y = y if reads_y else None  # kept for rows that tell from it what is before an item
    saved = SavedTensors._make((*tensors, y, indices, request.inputs.starts, request.inputs.offsets))
    read = (grad, grad_final, *saved)
    by_kernels = reads_memory(read) if within else runs_kernels(read)
    forward = SavedForward(kind, needs, saved)
    work = BackwardPass(forward, grad, grad_final, apply_operator, is_followed=False, runs_kernels=by_kernels)
    found = compute_gradients(work)
    return [
        inputs.x.new_empty(0)
        if given is None or not need
        else torch.zeros_like(given)
        if each is None
        else sum_to(each, shape=given.shape, dtype=given.dtype)
        for each, given, need in zip(found, inputs.differentiable, needs, strict=True)
    ]


def _compute_backward(*arguments: Any) -> OperatorResults:
    _, _, call = schema.of_backward(arguments[schema.RESULTS :])
    count = schema.RESULTS + TENSORS
    with torch.no_grad(), private.recording(), schema.lengths(call.any_length):
        return separate(_backward(*_classless(arguments[:count]), *arguments[count:], within=True))


def _pretend_backward(*arguments: Any) -> OperatorResults:
    inputs, needs, _ = schema.of_backward(arguments[schema.RESULTS :])
    return _pretend_gradients(inputs, needs)


def _pretend_gradients(inputs: Inputs, needs: Sequence[bool]) -> OperatorResults:
    return [
        torch.empty(each.shape, dtype=each.dtype, device=each.device)
        if need and each is not None
        else inputs.x.new_empty(0)
        for each, need in zip(inputs.differentiable, needs, strict=True)
    ]


def differentiate_again(overload: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return what autograd does with an operator for gradients: where they have gradients, ``compute`` records them."""

    def differentiate(keys: Any, *arguments: Any) -> Any:
        every = [each for given in arguments for each in (given if isinstance(given, list) else [given])]
        tensors = tuple([each for each in every if isinstance(each, torch.Tensor)])
        if is_transformed(tensors) or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)):
            with torch.enable_grad():
                return compute(*arguments)
        with private.below_autograd():
            return overload.redispatch(keys & private.after_autograd, *arguments)

    return differentiate


def implement(
    name: str, compute: Callable[..., Any], differentiate: Callable[..., Any], pretend: Callable[..., Any]
) -> None:
    """Register what an operator does with real tensors, below autograd's keys, and with fake tensors."""
    schema.LIBRARY.impl(name, compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    schema.LIBRARY.impl(name, differentiate, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
    private.register_fake(f"scanops::{name}", pretend, schema.LIBRARY)


# ---- torch.ops.scanops.fused_backward


def _backward_fused(gradients: Sequence[Any], needs: Sequence[bool], *arguments: Any) -> OperatorResults:
    inputs, call = schema.parse(arguments)
    with schema.lengths(call.any_length):
        tape = Tape((), is_kept=False)
        found = compute_fused_gradients(FusedBackwardPass(call, inputs, gradients, tuple(needs), run, tape))
    return [
        inputs.x.new_empty(0) if each is None or not need else each for each, need in zip(found, needs, strict=True)
    ]


def _compute_backward_fused(*arguments: Any) -> OperatorResults:
    """What is computed below autograd may be made of derivatives, which autograd records then."""
    with torch.no_grad(), private.recording():
        return separate(_backward_fused(*arguments))


def _pretend_backward_fused(gradients: Sequence[Any], needs: Sequence[bool], *arguments: Any) -> OperatorResults:
    return _pretend_gradients(schema.parse(arguments)[0], needs)


for _name in ("scan", "fused"):
    implement(_name, _compute, _differentiate, _pretend)
_again = differentiate_again(schema.BACKWARD, partial(_backward, within=False))
implement("scan_backward", _compute_backward, _again, _pretend_backward)
_again = differentiate_again(schema.FUSED_BACKWARD, _backward_fused)
implement("fused_backward", _compute_backward_fused, _again, _pretend_backward_fused)
schema.LIBRARY.impl("scan", _cast, "AutocastCUDA")  # type: ignore[no-untyped-call]
