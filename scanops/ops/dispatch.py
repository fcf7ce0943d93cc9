"""Serve a call: by a kernel, by the fallback, or by one operator of ``torch.library`` where torch follows the code.

A compiler, a transform, a mode and a subclass see the operator and no memory. Where a gradient is wanted, the call is
made by the node of autograd.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from scanops import workload
from scanops.codegen.operators import listed
from scanops.ops.node import First, ScanFunction, adjoints, by_torch, operated_on
from scanops.ops.schema import TENSORS, Outputs
from scanops.requests.call import AUTOCAST, Call, autocast, is_traced, is_transformed
from scanops.requests.checks import scalar_of
from scanops.requests.request import Inputs, Kind, Tensors, checked, is_memory, runs_kernels
from scanops.requests.segments import check_offsets
from scanops.runtime import calls, native
from scanops.runtime.results import delivered


def outputs(call: Call, given: Inputs, outs: Tensors = ()) -> Outputs:
    """Return the result, its indices where the operator has them, and carry-outs if the call asks for them.

    Nothing is checked yet; the carry-in may be a number. ``outs`` are the caller's tensors for result and indices.
    """
    eager = runs_kernels(given)
    if not (eager or _is_followed(given)):
        return served(call, given, outs, eager=False)
    plain = all([out is None for out in outs])
    if plain and call.op in AUTOCAST and call.dtype is None and (dtype := autocast(given.x)):
        call = replace(call, dtype=dtype)
    if eager:
        return served(call, given, outs, eager=True)
    if plain:  # checked where the operator is computed
        return _operator(call, given)
    request = checked(call, given, outs)
    dtype = None if request.operator.indices else request.dtype
    return delivered(_operator(replace(call, dtype=dtype), given), request)


def _is_followed(inputs: Inputs) -> bool:
    """Whether a call is traced, transformed or watched by a mode, and must be one operator of the graph.

    Otherwise it is plain code on CPU tensors, or a call with an invalid argument.
    """
    if torch.compiler.is_compiling():
        return isinstance(inputs.x, torch.Tensor)  # whose layout cannot be asked in the backward of a function
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if not isinstance(inputs.x, torch.Tensor) or any(each.layout != torch.strided for each in tensors):
        return False
    if is_transformed() or torch._C._len_torch_dispatch_stack() or is_traced():
        return True
    return not all(map(is_memory, tensors)) or inputs.x.device.type != "cpu"


def _operator(call: Call, given: Inputs) -> Outputs:
    """The call by one of ``torch.ops.scanops``."""
    listed(call.op)
    x, initial = given.x, given.initial
    if type(x).__name__ == "DTensor":
        from scanops.ops.sharding import know_shardings

        know_shardings()
    # When traced, the checks run where the operator is computed: to trace them takes seconds.
    if not (torch.compiler.is_compiling() or is_traced()):
        checked(call, given)
    start = None
    if not isinstance(initial, torch.Tensor):
        start, given = initial, given._replace(initial=None)
        start = start if start is None else scalar_of(call.name, start)
    return operated_on(replace(call, start=start, any_length=_changes(x, call.dim)), given)


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    if not (isinstance(dim, int) and -x.ndim <= dim < x.ndim):
        return False  # a 0-d tensor, or refused where it is computed
    length = x.shape[dim]
    if is_traced() or (not torch.compiler.is_compiling() and type(length) is int):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # costs an import that eager code can spare

    return not has_static_value(length)


def served(call: Call, given: Inputs, outs: Tensors = (), *, eager: bool) -> Outputs:
    """Return what ``outputs`` returns, by a kernel or by the fallback.

    ``eager``: whether kernels may read the tensors, as ``runs_kernels`` says.
    """
    key = None
    if eager and all([out is None for out in outs]):
        key, known = calls.recalled(call, given)
        if known is not None:
            _repeated(call, given, known)
            if given.offsets is not None:  # the key has their shape, not their values
                check_offsets(call.name, given.offsets, given.x, known.kind.request.call.dim)
            if given.differentiates:
                return ScanFunction.record(known, given[:TENSORS])
            return known.launcher.outputs(given)
    request = checked(call, given, outs)
    if not eager:
        if request.x.is_cpu:
            workload.note_cpu()
        return by_torch(request)
    work, tensors = First(Kind(request), request, calls.key_of(key, request, given)), request.inputs[:TENSORS]
    return ScanFunction.record(work, tensors) if request.inputs.differentiates else work.compute(tensors)


def _repeated(call: Call, given: Inputs, known: calls.Known) -> None:
    """Let C++ serve the next such call, if the kernel is the call's own and not a stand-in."""
    if not known.launcher.own:
        return
    if not native.loaded():
        native.repeated(known.launcher.kernel.target)
    elif known.kind.generation != native.generation():
        native.learn(call, given, known.launcher, known.kind, adjoints(known.kind, given))
