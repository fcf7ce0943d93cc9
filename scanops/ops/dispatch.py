"""Who serves a call: a kernel, a kernel with torch's gradient, or torch's own operations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from scanops import emulation, workload
from scanops.autograd.gradients import Serving, differentiated
from scanops.autograd.nodes import Adjoints
from scanops.requests.kinds import Kind
from scanops.requests.request import Inputs, Request, is_memory, make_request
from scanops.requests.segments import check_offsets
from scanops.requests.surroundings import is_recorded
from scanops.runtime import calls, native
from scanops.runtime.launcher import Launcher
from scanops.runtime.native import later
from scanops.runtime.recipes import Tensors
from scanops.runtime.results import delivered
from scanops.runtime.serve import run

__all__ = [
    "SERVING",
    "WITHIN",
    "Options",
    "checked",
    "composed",
    "reads_memory",
    "runs_kernels",
    "served",
]

Options = calls.Options

# Looked up once: this is asked at every call.
_transforms = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_traced = torch._C._is_tracing  # by torch.jit.trace


def served(
    options: Options,
    given: Inputs,
    out: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    *,
    eager: bool,
) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from the lines if that is asked for.

    ``eager``: whether kernels may read the tensors, as ``runs_kernels`` says.
    """
    key = None
    if eager and out is None and indices is None:
        key, known = calls.recalled(options, given)
        if known is not None:
            launcher, kind, own = known
            if own:
                _repeated(options, given, launcher, kind)
            if given.offsets is not None:  # whose values no key holds
                check_offsets(given.offsets, given.x, kind.request.dim)
            if not _wants_gradient(given):
                return launcher.outputs(given)
            return differentiated(kind, SERVING, launcher.outputs, given)
    request = checked(options, given, out, indices)
    if not eager:
        if request.x.is_cpu:
            workload.note_cpu()
        return _by_torch(request)
    kind = Kind(request)
    keep = calls.keeper(key, kind, request, given)
    if not request.differentiable:
        return _served(request, keep)
    return differentiated(kind, SERVING, lambda inputs: _served(replace(request, inputs=inputs), keep), request.inputs)


def checked(
    options: Options, given: Inputs, out: torch.Tensor | None = None, indices: torch.Tensor | None = None
) -> Request:
    """The request that a call is. Raises what is wrong with it."""
    op, dim, reverse, exclusive, final, dtype, accumulate = options
    x, mask, gate, starts, offsets, initial, _ = given
    return make_request(
        x,
        op,
        dim,
        mask=mask,
        gate=gate,
        starts=starts,
        offsets=offsets,
        initial=initial,
        reverse=reverse,
        exclusive=exclusive,
        final=final,
        dtype=dtype,
        accumulate=accumulate,
        out=out,
        indices=indices,
    )


def _repeated(options: Options, given: Inputs, launcher: Launcher, kind: Kind) -> None:
    if native.loaded():
        native.learn(options, given, launcher, kind, _ADJOINTS)
    else:
        later.repeated(launcher.kernel.target)


def _served(request: Request, keep: calls.Keep | None = None) -> tuple[torch.Tensor, ...]:
    results = run(request, keep)
    return _by_torch(request) if results is None else results


def _by_torch(request: Request) -> tuple[torch.Tensor, ...]:
    return delivered(composed(request, request.inputs), request)


def runs_kernels(given: Tensors) -> bool:
    """Whether this is eager code on tensors a kernel can read."""
    if is_compiling() or _transforms() or forward_ad._current_level >= 0 or _modes() or _traced():
        return False
    return reads_memory(given)


def reads_memory(given: Tensors) -> bool:
    """Whether a kernel can read these tensors, whoever follows them."""
    x = given[0]
    if x is None or not is_memory(x):
        return False
    for each in given[1:]:
        if isinstance(each, torch.Tensor) and not is_memory(each):
            return False
    return emulation.has_kernels(x)


def _wants_gradient(inputs: Inputs) -> bool:
    return is_recorded() and any([each is not None and each.requires_grad for each in inputs.differentiable])


def composed(request: Request, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The outputs of a request on ``inputs``, by torch's own operations."""
    if inputs.x.ndim == 0:
        mask, gate, starts = (None if each is None else each.reshape(1) for each in inputs[1:4])
        one = inputs._replace(x=inputs.x.reshape(1), mask=mask, gate=gate, starts=starts)
        found = composed(request, one)
        return tuple(result.reshape(()) for result in found)
    from scanops.fallback import scans  # kernels do without it

    walk = scans.Walk(
        op=request.op,
        dim=request.dim,
        reverse=request.reverse,
        exclusive=request.exclusive,
        final=request.final,
        dtype=request.dtype,
        accumulate=request.accumulate,
    )
    return scans.outputs(inputs, walk)


SERVING = Serving(served=_served, composed=composed, reads=runs_kernels)
_ADJOINTS = Adjoints(SERVING)
# By an operation that is computed, which whoever follows operations has seen.
WITHIN = Serving(served=_served, composed=composed, reads=reads_memory)
