"""Who serves a call: a kernel, a kernel with torch's gradient, or torch's own operations."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from scanops import calls, emulation, native
from scanops.following import AUTOCAST, autocast, is_followed, operation
from scanops.gradients import Serving, differentiated
from scanops.kinds import Kind
from scanops.nodes import Adjoints
from scanops.request import Inputs, Request, is_memory, make_request
from scanops.runtime import run
from scanops.segments import check_offsets

__all__ = ["SERVING", "WITHIN", "composed", "outputs"]

# Looked up once: this is asked at every call.
_transforms = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack


def outputs(
    op: str,
    dim: int,
    inputs: Inputs,
    initial: torch.Tensor | complex | None,
    *,
    reverse: bool,
    exclusive: bool,
    final: bool,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    within: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from the lines if ``final``.

    ``initial`` is not among the inputs until it is checked: it may be a number. ``within``: it is the operation itself
    that is computed, which whoever follows operations has seen.
    """
    eager = _reads_memory(inputs, initial) if within else _runs_kernels(inputs, initial)
    followed = not eager and not within and is_followed(inputs, initial)
    plain = out is None and indices is None
    if plain and dtype is None and op in AUTOCAST and (eager or followed):
        dtype = autocast(inputs.x)
    if followed and plain:  # all is checked where the operation is computed
        return operation(op, dim, inputs, initial, reverse, exclusive, final, dtype, accumulate)
    key, given = None, inputs._replace(initial=initial)
    if eager and plain:
        options = (op, dim, reverse, exclusive, final, dtype, accumulate)
        key, known = calls.recalled(options, given)
        if known is not None:
            if known.own:
                native.learn(options, given, known.launcher, known.kind, _ADJOINTS)
            if given.offsets is not None:  # whose values no key holds
                check_offsets(given.offsets, given.x, known.kind.request.dim)
            if not _wants_gradient(given):
                return known.launcher.outputs(given)
            return differentiated(known.kind, SERVING, known.launcher.outputs, given)
    request = make_request(
        inputs.x,
        op,
        dim,
        mask=inputs.mask,
        gate=inputs.gate,
        starts=inputs.starts,
        offsets=inputs.offsets,
        initial=initial,
        reverse=reverse,
        exclusive=exclusive,
        final=final,
        dtype=dtype,
        accumulate=accumulate,
        out=out,
        indices=indices,
    )
    if followed:
        dtype = None if request.operator.indices else request.dtype
        return _into(operation(op, dim, inputs, initial, reverse, exclusive, final, dtype, accumulate), request)
    if not eager:
        return _by_torch(request)
    kind = Kind(request)
    keep = calls.keeper(key, kind, request, given)
    if not request.differentiable:
        return _served(request, keep)
    return differentiated(
        kind, SERVING, lambda inputs: _served(replace(request, inputs=inputs), keep), request.inputs
    )


def _served(request: Request, keep: calls.Keep | None = None) -> tuple[torch.Tensor, ...]:
    results = run(request, keep)
    return _by_torch(request) if results is None else results


def _by_torch(request: Request) -> tuple[torch.Tensor, ...]:
    return _into(composed(request, request.inputs), request)


def _into(results: tuple[torch.Tensor, ...], request: Request) -> tuple[torch.Tensor, ...]:
    pairs = itertools.zip_longest(results, request.outs)
    return tuple(result if place is None else place.copy_(result) for result, place in pairs)


def _runs_kernels(inputs: tuple[torch.Tensor | None, ...], initial: torch.Tensor | complex | None) -> bool:
    """Whether this call is eager code on tensors a kernel can read."""
    if is_compiling() or _transforms() or forward_ad._current_level >= 0 or _modes():
        return False
    return _reads_memory(inputs, initial)


def _reads_memory(inputs: tuple[torch.Tensor | None, ...], initial: torch.Tensor | complex | None) -> bool:
    x = inputs[0]
    if x is None or not is_memory(x) or (isinstance(initial, torch.Tensor) and not is_memory(initial)):
        return False
    for each in inputs[1:]:
        if each is not None and isinstance(each, torch.Tensor) and not is_memory(each):
            return False
    return x.is_cuda or emulation.active() is not None or x.device.type not in ("cpu", "meta")


def _wants_gradient(inputs: Inputs) -> bool:
    return torch.is_grad_enabled() and any([each is not None and each.requires_grad for each in inputs.differentiable])


def composed(request: Request, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The outputs of a request on ``inputs``, by torch's own operations."""
    if inputs.x.ndim == 0:
        mask, gate, starts = (None if each is None else each.reshape(1) for each in inputs[1:4])
        one = inputs._replace(x=inputs.x.reshape(1), mask=mask, gate=gate, starts=starts)
        found = composed(request, one)
        return tuple(result.reshape(()) for result in found)
    from scanops import fallback  # kernels do without it

    walk = fallback.Walk(
        op=request.op,
        dim=request.dim,
        reverse=request.reverse,
        exclusive=request.exclusive,
        final=request.final,
        dtype=request.dtype,
        accumulate=request.accumulate,
    )
    return fallback.outputs(inputs, walk)


SERVING = Serving(served=_served, composed=composed, reads=lambda tensors: _runs_kernels(tensors, None))
_ADJOINTS = Adjoints(SERVING)
# By an operation that is computed, which whoever follows operations has seen.
WITHIN = Serving(served=_served, composed=composed, reads=lambda tensors: _reads_memory(tensors, None))
