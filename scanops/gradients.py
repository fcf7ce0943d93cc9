"""Gradients of scans: which tensors are kept for them, and who computes them.

A gradient is computed by kernels of its own (``scanops.backward``) wherever there are any. Nothing is kept for them
that torch would not keep: of a sum only its mask, of ``cummax`` only the indices. What is differentiated again, or
transformed, is composed of operations that torch can follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from scanops import policies
from scanops.backward import NAMES, Kept, Tensors, by_rows, reads_inputs, weighted
from scanops.codegen.adjoints import ADJOINTS
from scanops.request import Inputs, Request, is_memory

__all__ = ["Serving", "differentiated", "gradients_of", "kept_names"]

_NOTHING = Inputs(x=torch.empty(0))
_OPTIONS = 3  # arguments of the function before its tensors


class Serving(NamedTuple):
    """The ways in which a request is served, given by who calls."""

    served: Callable[[Request], tuple[torch.Tensor, ...]]  # by a kernel where there is one
    composed: Callable[[Request, Inputs], tuple[torch.Tensor, ...]]  # by torch's operations
    reads: Callable[[tuple[torch.Tensor, ...]], bool]  # whether kernels may read these now


def differentiated(
    request: Request, serving: Serving, launched: Callable[[Inputs], tuple[torch.Tensor, ...]] | None = None
) -> tuple[torch.Tensor, ...]:
    """The outputs of a request, with gradients; ``launched`` computes them where an equal call has found out how."""
    found: tuple[torch.Tensor, ...] = _Differentiable.apply(  # type: ignore[no-untyped-call]
        request, serving, launched, *request.inputs.differentiable
    )
    return found


class _Differentiable(torch.autograd.Function):
    """A scan forwards; backwards another one."""

    @staticmethod
    def forward(
        ctx: Any,
        request: Request,
        serving: Serving,
        launched: Callable[[Inputs], tuple[torch.Tensor, ...]] | None,
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        inputs, needs = request.inputs.with_differentiable(tensors), ctx.needs_input_grad[_OPTIONS:]
        results = serving.served(replace(request, inputs=inputs)) if launched is None else launched(inputs)
        names = kept_names(request, needs)
        outs = {"y": results[0], "indices": results[1] if request.operator.indices else None}
        named = dict(zip(NAMES, tensors, strict=True)) | outs
        ctx.save_for_backward(
            *(each if name in names else None for name, each in named.items()),
            *(request.inputs.starts, request.inputs.offsets),
        )
        ctx.request, ctx.serving = replace(request, inputs=_NOTHING, out=None, indices=None), serving
        ctx.shapes = tuple(None if each is None else (each.shape, each.dtype) for each in tensors)
        ctx.device, ctx.policy = request.x.device, policies.scoped()
        ctx.mark_non_differentiable(*(result for result in results if result.dtype == torch.int64))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        gy, gfinal = gradients[0], gradients[-1] if ctx.request.final else None
        if gy is None and gfinal is None:
            return (None,) * (_OPTIONS + len(NAMES))
        if gy is None:
            gy = torch.zeros((), dtype=ctx.request.dtype, device=ctx.device).expand(ctx.shapes[0][0])
        *inputs, y, indices, starts, offsets = ctx.saved_tensors
        if is_compiling():  # compiled autograd follows operations
            return (*(None,) * _OPTIONS, *_by_operations(ctx, gy, gfinal))
        gy = gy.resolve_conj().resolve_neg()
        kept = Kept(
            request=ctx.request,
            shapes=ctx.shapes,
            needs=ctx.needs_input_grad[_OPTIONS:],
            inputs=tuple(inputs),
            y=y,
            indices=indices,
            starts=starts,
            offsets=offsets,
        )
        with policies.resumed(ctx.policy):  # autograd walks back in a thread of its own
            return (*(None,) * _OPTIONS, *gradients_of(kept, ctx.serving, gy, gfinal))


def gradients_of(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """The gradients of the inputs, as ``NAMES``, from that of the result and of what went on from the lines."""
    found: Tensors | None = None
    given = [t for t in (gy, gfinal, *kept.inputs, kept.y, kept.indices, kept.starts, kept.offsets) if t is not None]
    here = torch._C._has_storage(gy) and all(map(is_memory, given))  # batched gradients have none
    if here and not torch.is_grad_enabled() and serving.reads(tuple(given)):
        found = by_rows(kept, gy, gfinal)
    return _by_torch(kept, serving, gy, gfinal) if found is None else found


def kept_names(request: Request, needs: tuple[bool, ...]) -> frozenset[str]:
    """What the gradient of a request reads again, by name; ``needs``: of which inputs it is wanted, as ``NAMES``."""
    adjoint, mask = ADJOINTS.get(request.op), request.inputs.mask
    wanted = {name for name, need in zip(NAMES, needs, strict=True) if need}
    if reads_inputs(request, "initial" in wanted):
        saved = "" if adjoint is None else adjoint.saved
        of_y = saved == "y" or (saved == "before" and (request.exclusive or "gate" in wanted))
        return frozenset((*NAMES, "indices", *(["y"] if of_y else [])))
    kept = {"indices"}
    if mask is not None and mask.dtype != torch.bool:  # each is multiplied by the other
        kept |= ({"mask"} if "x" in wanted else set()) | ({"x"} if "mask" in wanted else set())
    elif not request.operator.indices:  # an index is never that of an item masked out
        kept.add("mask")
    return frozenset(kept)


# ---- by operations that torch can follow


def _by_operations(ctx: Any, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """Operations of ``torch.ops.scanops``, for a compiler that follows a backward pass of plain code."""
    from scanops.ops.gradient import by_operations
    from scanops.ops.schema import Options

    request: Request = ctx.request
    *inputs, y, indices, starts, offsets = ctx.saved_tensors
    told = (
        gy.new_empty((), dtype=shape[1]).expand(shape[0]) if each is None and shape is not None else each
        for each, shape in zip(inputs, ctx.shapes, strict=True)
    )
    options = Options(
        dim=request.dim,
        op=request.op,
        reverse=request.reverse,
        exclusive=request.exclusive,
        dtype=None if request.operator.indices else request.dtype,
        accumulate=request.accumulate,
    )
    x, mask, gate, initial = told
    assert x is not None
    read = Inputs(x, mask, gate, starts, offsets, initial)
    return by_operations(read, options, ctx.needs_input_grad[_OPTIONS:], gy, gfinal, y, indices)


def _by_torch(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    if reads_inputs(kept.request, kept.needs[3]):
        return _differentiated_forward(kept, serving, gy, gfinal)
    return _scattered(kept, gy) if kept.request.operator.indices else _summed(kept, serving, gy, gfinal)


def _summed(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """A sum's gradient is a sum, which has a gradient itself."""
    request = kept.request
    inputs = Inputs(gy, None, None, kept.starts, kept.offsets, gfinal)
    back = replace(request, inputs=inputs, reverse=not request.reverse, final=kept.needs[3])
    read = tuple(each for each in inputs if each is not None)
    if not (torch._C._has_storage(gy) and all(map(is_memory, read)) and serving.reads(read)):
        results = serving.composed(back, inputs)
    else:
        results = differentiated(back, serving) if back.differentiable else serving.served(back)
    of_term, mask = results[0], kept.inputs[1]
    if mask is not None and mask.dtype == torch.bool:
        of_term = torch.where(mask, of_term, torch.zeros_like(of_term))
    return (*weighted(kept, of_term), None, kept.like(results[-1], 3) if kept.needs[3] else None)


def _scattered(kept: Kept, gy: torch.Tensor) -> Tensors:
    """What each item gets from the results that are its own."""
    assert kept.indices is not None
    indices, given = (each.reshape(each.shape or (1,)) for each in (kept.indices, gy))
    given = torch.where(indices < 0, torch.zeros_like(given), given)
    of_term = torch.zeros_like(given).scatter_add(kept.request.dim, indices.clamp(min=0), given)
    return (*weighted(kept, of_term.reshape(gy.shape)), None, None)


def _differentiated_forward(kept: Kept, serving: Serving, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """The gradient of torch's own operations, which is right to any order."""
    request, inputs, needs = kept.request, kept.forward_inputs(), kept.needs
    again = torch.is_grad_enabled()  # whether a second derivative was asked for
    with torch.enable_grad():
        # A view each, because two inputs may be one tensor whose gradients autograd adds up later.
        pairs = zip(inputs.differentiable, needs, strict=True)
        views = tuple(t.view_as(t) if need and t is not None else t for t, need in pairs)
        results = serving.composed(request, inputs.with_differentiable(views))
        given = [(results[0], gy), *([(results[-1], gfinal)] if gfinal is not None else [])]
        given = [(y, g) for y, g in given if y.requires_grad]
        if not given:
            return (None,) * len(needs)
        wanted = [view for view, need in zip(views, needs, strict=True) if need and view is not None]
        ys, gs = [y for y, _ in given], [g for _, g in given]
        found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=again, allow_unused=True))
    return tuple(next(found) if need else None for need in needs)
