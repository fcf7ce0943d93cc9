"""Calls that somebody follows: a compiler, a transform, a mode or a subclass, who see operations and not memory.

``outputs`` decides it: a call is one of ``torch.ops.scanops`` to whoever follows it, and is served at once otherwise.
"""

from __future__ import annotations

import torch

from scanops.autograd.linearised import scan_by
from scanops.codegen.operators import listed
from scanops.ops import dispatch
from scanops.ops.schema import SCANS, TENSORS, Options
from scanops.ops.transforms import applied, has_derivatives, is_differentiated
from scanops.requests.request import Inputs, is_memory
from scanops.requests.surroundings import AUTOCAST, autocast, is_traced, is_transformed
from scanops.runtime.results import delivered

__all__ = ["outputs"]


def outputs(
    options: dispatch.Options, given: Inputs, out: torch.Tensor | None = None, indices: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from the lines if that is asked for.

    Nothing is checked yet: what lines go on from, for one, may be a number.
    """
    eager = dispatch.runs_kernels(given)
    followed = not eager and _is_followed(given)
    if not (eager or followed):
        return dispatch.served(options, given, out, indices, eager=False)
    plain = out is None and indices is None
    if plain and options[0] in AUTOCAST and options[5] is None and (dtype := autocast(given.x)):
        options = (*options[:5], dtype, options[6])
    if eager:
        return dispatch.served(options, given, out, indices, eager=True)
    if plain:  # all is checked where the operation is computed
        return _operation(options, given)
    request = dispatch.checked(options, given, out, indices)
    dtype = None if request.operator.indices else request.dtype
    return delivered(_operation((*options[:5], dtype, options[6]), given), request)


def _is_followed(inputs: Inputs) -> bool:
    """Whether a call that no kernel may serve at once is one operation to whoever asked for it.

    Else it is plain code on CPU tensors, or a call with something wrong.
    """
    if torch.compiler.is_compiling():
        return isinstance(inputs.x, torch.Tensor)  # whose layout it does not tell in the backward of a function
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if not isinstance(inputs.x, torch.Tensor) or any(each.layout != torch.strided for each in tensors):
        return False
    if is_transformed() or torch._C._len_torch_dispatch_stack() or is_traced():
        return True
    if not all(map(is_memory, tensors)):
        return True
    return inputs.x.device.type != "cpu"


def _operation(options: dispatch.Options, given: Inputs) -> tuple[torch.Tensor, ...]:
    """A call as one of ``torch.ops.scanops``."""
    op, dim, reverse, exclusive, final, dtype, accumulate = options
    x, initial = given.x, given.initial
    if type(x).__name__ == "DTensor":
        from scanops.ops.sharding import know_shardings

        know_shardings()
    # Else where the operation is computed: to trace all this takes seconds.
    if not (torch.compiler.is_compiling() or is_traced()):
        dispatch.checked(options, given)
    carry, start = (initial, None) if isinstance(initial, torch.Tensor) else (None, initial)
    form, inputs = SCANS[bool(listed(op).indices), final], given._replace(initial=carry)
    told = Options(
        dim=dim,
        op=op,
        start=start,
        reverse=reverse,
        exclusive=exclusive,
        dtype=dtype,
        accumulate=None if accumulate is None else str(accumulate),
        any_length=_changes(x, dim),
    )
    if is_differentiated() and has_derivatives(form, inputs, told):
        found = applied(form, inputs, told)
    else:
        found = form.overload(*inputs[:TENSORS], *told)
    return found if isinstance(found, tuple) else (found,)


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    if not (isinstance(dim, int) and -x.ndim <= dim < x.ndim):
        return False  # a number, or what is said to be wrong where it is computed
    length = x.shape[dim]
    if is_traced() or (not torch.compiler.is_compiling() and type(length) is int):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # costs an import that eager code can spare

    return not has_static_value(length)


scan_by(outputs)
