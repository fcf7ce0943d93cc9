"""Operations under ``torch.func`` and in forward mode: their derivatives are operations too, at whatever level.

An operation of ``torch.library`` has no rule for tangents, and its rule for gradients cannot be transformed
(pytorch#179652). So where such derivatives are taken an operation is called through a function that has all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from scanops.autograd.linearised import knows, pulled_back, pushed_forward
from scanops.emulation import has_kernels
from scanops.ops.batching import batched
from scanops.ops.computing import request_of
from scanops.ops.gradient import needs_of, saved, shaped
from scanops.ops.schema import TENSORS, Form, Options
from scanops.requests.request import Inputs
from scanops.runtime import policies

__all__ = ["applied", "has_derivatives", "is_differentiated"]

_GRAD, _JVP, _VMAP = (getattr(torch._C._functorch.TransformType, name) for name in ("Grad", "Jvp", "Vmap"))
_KNOWN = {_GRAD, _JVP, _VMAP}  # to torch's functions: under functionalize there are none
Found = tuple[torch.Tensor | None, ...]


def has_derivatives(form: Form, inputs: Inputs, options: Options) -> bool:
    """Whether an operation on these has all its derivatives here, and kernels for them."""
    if not has_kernels(inputs.x):
        return False
    goes_on = form.final or inputs.initial is not None or options.start is not None
    return knows(options.op, options.dtype or inputs.x.dtype) and not (form.indices and goes_on)


def is_differentiated() -> bool:
    """Whether eager code runs where derivatives are taken by transforms or in forward mode, and functions know how.

    Of forward mode within forward mode torch's functions lose tangents in silence.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if kinds.count(_JVP) > 1 or not _KNOWN.issuperset(kinds):
        return False
    return forward_ad._current_level >= 0 or any(kind != _VMAP for kind in kinds)


def applied(form: Form, inputs: Inputs, options: Options) -> Any:
    """The operation, as an overload gives its results."""
    return _Transformed.apply(form, options, *inputs[:TENSORS])  # type: ignore[no-untyped-call]


class _Transformed(torch.autograd.Function):
    """An operation with its gradients, its tangents and its batches."""

    @staticmethod
    def forward(form: Form, options: Options, *tensors: torch.Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return form.overload(*tensors, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.form, ctx.options, *tensors = inputs
        results = output if isinstance(output, tuple) else (output,)
        indices = results[1] if ctx.form.indices else None
        ctx.save_for_backward(*saved(ctx.form, ctx.options, tuple(tensors), results, ctx.needs_input_grad[2:]))
        ctx.save_for_forward(results[0], indices, *tensors)
        ctx.policy = policies.scoped()
        if indices is not None:
            ctx.mark_non_differentiable(indices)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Found:
        y, indices, *tensors = ctx.saved_tensors
        request = request_of(ctx.form, Inputs(*tensors), ctx.options)
        needs = needs_of(ctx.needs_input_grad[2:])
        with policies.resumed(ctx.policy):
            found = pulled_back(request, needs, (y, indices), gradients[0], gradients[-1] if ctx.form.final else None)
        given = (tensors[0], tensors[1], tensors[2], tensors[5])
        x, mask, gate, initial = (
            shaped(each, like) if need and each is not None else None
            for each, like, need in zip(found, given, needs, strict=True)
        )
        return (None, None, x, mask, gate, None, None, initial)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        y, indices, *tensors = ctx.saved_tensors
        request = request_of(ctx.form, Inputs(*tensors), ctx.options)
        x, mask, gate, _, _, initial = tangents[2:]
        found = pushed_forward(request, (y, indices), (x, mask, gate, initial))
        if ctx.form.indices:
            return found[0], None
        return found if ctx.form.final else found[0]

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], form: Form, options: Options, *tensors: Any) -> Any:
        return batched(applied, form, info, dims[2:], Inputs(*tensors), options)
