"""Who serves a call: a kernel, a kernel with torch's gradient, or torch's own operations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from scanops import emulation
from scanops.request import Inputs, Request, is_memory, make_request
from scanops.runtime import remembered, run

__all__ = ["outputs"]


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
) -> tuple[torch.Tensor, ...]:
    """The result, its indices where the operator gives them, and what goes on from the lines if ``final``.

    ``initial`` is not among the inputs until it is checked: it may be a number.
    """
    eager = _runs_kernels(inputs, initial)
    key = None
    plain = out is None and indices is None and initial is None
    if eager and plain and _repeats(inputs, op, dim, reverse, exclusive, final, dtype, accumulate):
        key, launcher = remembered((op, dim, reverse, exclusive, final, dtype, accumulate), inputs)
        if launcher is not None:
            x = inputs.x
            results = tuple(torch.empty(shape, dtype=kind, device=x.device) for _, shape, kind in launcher.places)
            launcher(inputs, results)
            return results
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
    if not eager:
        return _by_torch(request)
    if request.differentiable:
        return _Differentiable.apply(request, *request.inputs.differentiable)  # type: ignore[no-untyped-call, no-any-return]
    return _served(request, key)


def _served(request: Request, key: tuple[object, ...] | None = None) -> tuple[torch.Tensor, ...]:
    results = run(request, key)
    return _by_torch(request) if results is None else results


def _by_torch(request: Request) -> tuple[torch.Tensor, ...]:
    pairs = itertools.zip_longest(_composed(request, request.inputs), request.outs)
    return tuple(result if place is None else place.copy_(result) for result, place in pairs)


def _runs_kernels(inputs: Inputs, initial: torch.Tensor | complex | None) -> bool:
    """Whether this call is eager code on tensors a kernel can read."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    x, *others = inputs
    if not is_memory(x) or not all(is_memory(each) for each in (*others, initial) if isinstance(each, torch.Tensor)):
        return False
    return x.is_cuda or emulation.active() is not None or x.device.type not in ("cpu", "meta")


def _repeats(
    inputs: Inputs,
    op: object,
    dim: object,
    reverse: object,
    exclusive: object,
    final: object,
    dtype: object,
    accumulate: object,
) -> bool:
    """Whether a call may be served by what an equal call before it found: plain CUDA tensors, no gradient wanted.

    Options of other types than they should have are left to the checks: True is equal to 1, and a list has no hash.
    Offsets, whose values have to be looked at, are left to them as well.
    """
    x, mask, gate, starts, offsets, _ = inputs
    if not x.is_cuda or x.layout != torch.strided or type(dim) is not int:
        return False
    if type(op) is not str or type(reverse) is not bool or type(exclusive) is not bool or type(final) is not bool:
        return False
    if not (dtype is None or isinstance(dtype, torch.dtype)) or offsets is not None:
        return False
    if not (accumulate is None or isinstance(accumulate, torch.dtype) or type(accumulate) is str):
        return False
    wanted = x.requires_grad
    for each in (mask, gate, starts):
        if each is None:
            continue
        if type(each) is not torch.Tensor or each.ndim == 0 or each.layout != torch.strided:
            return False
        wanted = wanted or each.requires_grad
    return not (wanted and torch.is_grad_enabled())


def _composed(request: Request, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    if inputs.x.ndim == 0:
        mask, gate, starts = (None if each is None else each.reshape(1) for each in inputs[1:4])
        one = inputs._replace(x=inputs.x.reshape(1), mask=mask, gate=gate, starts=starts)
        found = _composed(request, one)
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


class _Differentiable(torch.autograd.Function):
    """The kernel forwards; backwards the gradient of torch's own operations, which is right to any order."""

    @staticmethod
    def forward(ctx: Any, request: Request, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.request = request
        results = _served(replace(request, inputs=request.inputs.with_differentiable(tensors)))
        ctx.mark_non_differentiable(*(result for result in results if result.dtype == torch.int64))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        again = torch.is_grad_enabled()  # whether a second derivative was asked for
        with torch.enable_grad():
            # A view each, because two inputs may be one tensor whose gradients autograd adds up later.
            views = tuple(t.view_as(t) if need else t for t, need in zip(tensors, needs, strict=True))
            results = _composed(ctx.request, ctx.request.inputs.with_differentiable(views))
            pairs = [(y, g) for y, g in zip(results, gradients, strict=True) if y.requires_grad]
            wanted = [view for view, need in zip(views, needs, strict=True) if need]
            ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
            found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
        return (None, *(next(found) if need else None for need in needs))
