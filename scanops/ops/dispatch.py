"""Where a call is computed: in eager code, by one operator of ``torch.library``, or by PyTorch's operators.

A compiler, a transform, a mode and a subclass see the operator and no memory. Where a gradient is wanted, the call is
made by the node of autograd.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from scanops.codegen.operators import find_operator
from scanops.fallback.fused import compose
from scanops.fallback.summed import compose_summed
from scanops.ops import schema
from scanops.ops.fused import FusedForward
from scanops.ops.node import ScanFunction, apply_operator
from scanops.ops.schema import Outputs
from scanops.ops.serving import record_fused_call, serve
from scanops.ops.summed_pass import SummedPass
from scanops.requests.call import Call
from scanops.requests.checks import scalar_of
from scanops.requests.request import Inputs, RequestKind, Tensors, check_request
from scanops.requests.torch_state import (
    has_kernels,
    is_derived,
    is_followed,
    is_plain_memory,
    is_symbol,
    is_traced,
    runs_kernels,
)
from scanops.runtime.launcher import deliver
from scanops.runtime.recipes import Tape
from scanops.runtime.states import run_states


def run(
    call: Call,
    given: Inputs,
    outs: Tensors = (),
    *,
    eager: bool | None = None,
) -> Outputs:
    """Return result, indices and carry-out, as far as they are asked for, by what the state of torch asks for.

    A kernel, one operator where torch follows the code, or PyTorch's operators. ``eager``: whether kernels may read the
    tensors, as ``runs_kernels`` says.
    """
    eager = runs_kernels(given.flat) if eager is None else eager
    if eager:
        return serve(call, given, run, outs, eager=True)
    if is_plain_memory(given.flat) and given.differentiates:
        return _record(call, given, outs)
    if call.fusion is not None:
        if is_derived():
            return (compose_summed if call.summed else compose)(call, given, run)
        if is_followed(given.flat):
            return _operator(call, given)
        return serve(call, given, run, eager=False) if call.summed else compose(call, given, run)
    if not is_followed(given.flat):
        return serve(call, given, run, outs, eager=False)
    if all([out is None for out in outs]):  # checked where the operator is computed
        return _operator(call, given)
    request = check_request(call, given, outs)
    dtype = None if request.operator.indices else request.dtype
    return deliver(_operator(replace(call, dtype=dtype), given), request)


class ObservedForward(NamedTuple):
    """The forward pass of a call that a mode may watch, or that PyTorch's operators compute."""

    kind: RequestKind

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, without gradients."""
        return run(self.kind.request.call, Inputs(*tensors))  # type: ignore[arg-type]


def _record(call: Call, given: Inputs, outs: Tensors) -> Outputs:
    """Return the results of a call, recorded by the node of calls of kernels: with any mode it saves the same."""
    request = check_request(call, given, outs)
    kind = RequestKind(request)
    if call.summed:
        forward = FusedForward(kind, request.inputs, request.inputs.needs, saves_states=False)
        return ScanFunction.record(SummedPass(forward, _compute_watched, run), request.inputs.flat)
    if request.call.fusion is not None:
        return record_fused_call(kind, request.inputs, run, run, saves_states=has_kernels(request.x))
    return ScanFunction.record(ObservedForward(kind), request.inputs.flat)


def _compute_watched(call: Call, given: Inputs) -> tuple[Outputs, Tensors]:
    """Return the results of a scan with sums as a mode sees them, and what the kernel saves for the backward pass."""
    states = run_states(call, given, Tape(()), saves=True) if has_kernels(given.x) else None
    return run(call, given), () if states is None else states[1]


def _operator(call: Call, given: Inputs) -> Outputs:
    """The call by one of ``torch.ops.scanops``."""
    if call.fusion is not None:
        shape = torch.broadcast_tensors(*given.operands)[0].shape  # type: ignore[no-untyped-call]
        any_length = len(shape) > 0 and is_symbol(shape[call.dim])
        return schema.run_operator(replace(call, any_length=any_length), given.flat)
    find_operator(call.op)
    x, initial = given.x, given.initial
    # When traced, the checks run where the operator is computed: to trace them takes seconds.
    if not (is_compiling() or is_traced()):
        check_request(call, given)
    start = None
    if not isinstance(initial, torch.Tensor):
        start, given = initial, given._replace(initial=None)
        start = start if start is None else scalar_of(call.name, start)
    return apply_operator(replace(call, start=start, any_length=_changes(x, call.dim)), given)


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    return isinstance(dim, int) and -x.ndim <= dim < x.ndim and is_symbol(x.shape[dim])  # others: 0-d, or refused
