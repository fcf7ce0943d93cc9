"""Calls that a compiler, a transform, a mode or a subclass follows: they see one operator, and not memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from scanops.codegen.operators import listed
from scanops.ops import dispatch
from scanops.ops.node import operated_on
from scanops.ops.schema import TENSORS, Operation
from scanops.requests.call import AUTOCAST, Call, autocast, is_traced, is_transformed
from scanops.requests.checks import scalar_of
from scanops.requests.request import Inputs, checked, is_memory, runs_kernels
from scanops.runtime.results import delivered


def outputs(
    call: Call, given: Inputs, out: torch.Tensor | None = None, indices: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the result, its indices where the operator has them, and carry-outs if the call asks for them.

    Nothing is checked yet; the carry-in may be a number.
    """
    eager = runs_kernels(given)
    if not (eager or _is_followed(given)):
        return dispatch.served(call, given, out, indices, eager=False)
    plain = out is None and indices is None
    if plain and call.op in AUTOCAST and call.dtype is None and (dtype := autocast(given.x)):
        call = replace(call, dtype=dtype)
    if eager:
        return dispatch.served(call, given, out, indices, eager=True)
    if plain:  # checked where the operator is computed
        return _operator(call, given)
    request = checked(call, given, out, indices)
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
    if not all(map(is_memory, tensors)):
        return True
    return inputs.x.device.type != "cpu"


def _operator(call: Call, given: Inputs) -> tuple[torch.Tensor, ...]:
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
    return operated_on(Operation(call, start, _changes(x, call.dim)), tuple(given[:TENSORS]))


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    if not (isinstance(dim, int) and -x.ndim <= dim < x.ndim):
        return False  # a 0-d tensor, or refused where it is computed
    length = x.shape[dim]
    if is_traced() or (not torch.compiler.is_compiling() and type(length) is int):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # costs an import that eager code can spare

    return not has_static_value(length)
