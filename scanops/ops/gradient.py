"""Gradients of the operations: of a sum another scan, of all others ``scan_backward``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from scanops.autograd.backward import Kept, summed_to
from scanops.autograd.gradients import Serving, follow_by, gradients_of, keep_for_backward, keeps, kept_by, told
from scanops.codegen.operators import operator_named
from scanops.ops import dispatch
from scanops.ops.computing import Results, apart, classless, lengths, request_of, returned
from scanops.ops.schema import BACKWARD, LIBRARY, RESULTS, SCANS, TENSORS, Form, Options, of_backward
from scanops.requests.kinds import NAMES, Kind, Needs
from scanops.requests.request import Inputs
from scanops.runtime import policies

Found = tuple[torch.Tensor | None, ...]


class _Scan(torch.autograd.Function):
    """An operation with its gradient, which is an operation."""

    @staticmethod
    def forward(ctx: Any, form: Form, keys: Any, options: Options, *tensors: torch.Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            found = form.overload.redispatch(keys, *tensors, *options)
        results = found if isinstance(found, tuple) else (found,)
        y, indices, *given = saved(form, options, tensors, results, ctx.needs_input_grad[3:])
        pairs = tuple(zip(given, tensors, strict=True))
        x, mask, gate, starts, offsets, initial = (each if each is tensor else None for each, tensor in pairs)
        # In the order of calls that nobody follows, and nothing else: a checkpoint takes what one has kept for what the
        # other keeps, if a mode was on while it computed for the first time, or again, and not both times.
        keep_for_backward(ctx, (x, mask, gate, initial, y, indices, starts, offsets))
        ctx.telling = tuple(None if each is tensor else each for each, tensor in pairs)
        ctx.form, ctx.options, ctx.shape, ctx.dtype = form, options, results[0].shape, results[0].dtype
        ctx.policy = policies.scoped()
        if form.indices:
            ctx.mark_non_differentiable(results[1])
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Found:
        grad, grad_final = gradients[0], gradients[-1] if ctx.form.final else None
        if grad is None:
            if grad_final is None:
                return (None,) * (3 + TENSORS)
            grad = grad_final.new_zeros((), dtype=ctx.dtype).expand(ctx.shape)
        x, mask, gate, initial, y, indices, starts, offsets = kept_by(ctx)
        pairs = zip((x, mask, gate, starts, offsets, initial), ctx.telling, strict=True)
        tensors = (telling if each is None else each for each, telling in pairs)
        with policies.resumed(ctx.policy) if not is_compiling() else nullcontext():
            x, mask, gate, initial = _by_operations(
                Inputs(*tensors), ctx.options, needs_of(ctx.needs_input_grad[3:]), grad, grad_final, y, indices
            )
        return (None, None, None, x, mask, gate, None, None, initial)


def _by_operations(
    inputs: Inputs,
    options: Options,
    needs: Needs,
    grad: torch.Tensor,
    grad_final: torch.Tensor | None,
    y: torch.Tensor | None,
    indices: torch.Tensor | None,
) -> Found:
    """The gradients of x, mask, gate and initial, from that of the result and of what went on from it.

    Inputs and results that no gradient reads may be left out, or be tensors that tell shape and dtype alone.
    """
    if options.op == "sum":
        return _of_sums(inputs, options, needs, grad, grad_final)
    every = BACKWARD(grad, grad_final, y, indices, *inputs[:TENSORS], *options.around(needs))
    return tuple(each if need else None for each, need in zip(every, needs, strict=True))


def _followed(kind: Kind, needs: Needs, given: Found) -> Found:
    """Operations of ``torch.ops.scanops``, for a compiler that follows a backward pass of plain code."""
    request = kind.request
    gy, gfinal, *kept, y, indices, starts, offsets = given
    assert gy is not None
    options = Options(
        dim=request.dim,
        op=request.op,
        reverse=request.reverse,
        exclusive=request.exclusive,
        dtype=None if request.operator.indices else request.dtype,
        accumulate=request.accumulate,
    )
    inputs = told(tuple(kept), kind.shapes, starts, offsets, gy)
    return _by_operations(inputs, options, needs, gy, gfinal, y, indices)


follow_by(_followed)

_TOLD = ("starts", "offsets")  # which every gradient reads


def saved(form: Form, options: Options, tensors: Found, results: Results, wanted: tuple[bool, ...]) -> Found:
    """The result, its indices and the inputs, as far as a gradient reads them; else what tells an input's shape.

    ``wanted``: of which inputs there is to be a gradient.
    """
    kept = keeps(Kind(request_of(form, Inputs(*tensors), options)), needs_of(wanted))  # type: ignore[arg-type]
    names = {name for name, keep in zip((*NAMES, "y", "indices"), kept, strict=True) if keep}
    given = zip(Inputs._fields, tensors, strict=False)
    return (
        results[0] if "y" in names else None,
        results[1] if form.indices and "indices" in names else None,
        *(each if name in names or name in _TOLD or each is None else _shape_of(each) for name, each in given),
    )


def needs_of(wanted: tuple[bool, ...]) -> Needs:
    """Which gradients are wanted, of an operation's tensors those that have one."""
    x, mask, gate, _, _, initial = wanted
    return (x, mask, gate, initial)


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """What tells shape and dtype, and keeps no memory."""
    return tensor.new_empty(()).expand(tensor.shape)


def _of_sums(
    inputs: Inputs,
    options: Options,
    needs: Needs,
    grad: torch.Tensor,
    grad_final: torch.Tensor | None,
) -> Found:
    """Each item counts for the results after it: a sum in the other direction, which goes on from that of the line."""
    back = options._replace(start=None, reverse=not options.reverse, dtype=None)
    form = SCANS[False, needs[3]]
    found = form.overload(grad, None, None, inputs.starts, inputs.offsets, grad_final, *back)
    term, final = found if needs[3] else (found, None)
    mask = inputs.mask
    if mask is not None and mask.dtype == torch.bool:
        term, mask = torch.where(mask, term, torch.zeros_like(term)), None
    of_x = shaped(term if mask is None else term * mask.conj(), inputs.x) if needs[0] else None
    of_mask = shaped(term * inputs.x.conj(), inputs.mask) if needs[1] else None
    return of_x, of_mask, None, None if final is None else shaped(final, inputs.initial)


def shaped(gradient: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """Summed to where it was broadcast from, in the dtype it was converted from."""
    assert like is not None
    return summed_to(gradient, shape=like.shape, dtype=like.dtype)


# ---- keys


def _autograd(form: Form) -> Callable[..., torch.Tensor | Results]:
    def differentiate(keys: Any, *arguments: Any) -> Any:
        tensors, options = arguments[:TENSORS], Options(*arguments[TENSORS:])
        if _is_transformed(tensors):
            request = request_of(form, Inputs(*tensors), options)
            return returned(dispatch.composed(request, request.inputs))
        keys = keys & torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors):
            return _Scan.apply(form, keys, options, *tensors)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():
            return form.overload.redispatch(keys, *tensors, *options)

    return differentiate


def _is_transformed(tensors: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether a derivative is taken in a way that follows torch's own operations only: it would be lost in silence."""
    if torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level < 0:
        return False
    duals = (forward_ad.unpack_dual(each) for each in tensors if each is not None)  # type: ignore[no-untyped-call]
    return any(each.tangent is not None for each in duals)


# ---- the gradient as an operation


def _backward(serving: Serving, grad: torch.Tensor, grad_final: torch.Tensor | None, *arguments: Any) -> Results:
    y, indices, *others = arguments
    inputs, needs, options = of_backward(tuple(others))
    form = SCANS[bool(operator_named(options.op).indices), grad_final is not None]
    request = request_of(form, inputs, options)
    tensors = request.inputs.differentiable
    if serving is dispatch.WITHIN:  # whoever called may have tensors of no history: there is a gradient all the same
        pairs = zip(tensors, needs, strict=True)
        tensors = tuple(each if each is None else each.detach().requires_grad_(need) for each, need in pairs)
    kept = Kept(
        request=request,
        shapes=tuple(None if each is None else (each.shape, each.dtype) for each in tensors),
        needs=needs,
        inputs=tensors,
        y=y,
        indices=indices,
        starts=request.inputs.starts,
        offsets=request.inputs.offsets,
    )
    found = gradients_of(kept, serving, grad, grad_final)
    return tuple(
        _given(each, given) if need and given is not None else inputs.x.new_empty(0)
        for each, given, need in zip(found, inputs.differentiable, needs, strict=True)
    )


def _given(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Of the shape and dtype of what it is of, which may have been converted; zeros where nothing depends on it."""
    return torch.zeros_like(like) if gradient is None else shaped(gradient, like)


def _computed(*arguments: Any) -> Results:
    _, _, options = of_backward(arguments[RESULTS:])
    count = RESULTS + TENSORS
    arguments = (*classless(arguments[:count]), *arguments[count:])
    with torch.no_grad(), _recording(), lengths(options):
        return apart(_backward(dispatch.WITHIN, *arguments))


def _recording() -> AbstractContextManager[object]:
    """Where operations are recorded, although an operation's own code runs below autograd."""
    keys = torch._C.DispatchKey
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradFunctionality, keys.AutogradOther, keys.ADInplaceOrView):
        left_out = left_out.remove(key)
    found: AbstractContextManager[object] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set().add(keys.ADInplaceOrView), left_out
    )
    return found


def _pretended(*arguments: Any) -> Results:
    inputs, needs, _ = of_backward(arguments[RESULTS:])
    return tuple(
        torch.empty(each.shape, dtype=each.dtype, device=each.device) if need and each is not None else empty
        for each, need, empty in zip(inputs.differentiable, needs, (inputs.x.new_empty(0) for _ in needs), strict=True)
    )


def _differentiated_again(keys: Any, *arguments: Any) -> Any:
    tensors = tuple(each for each in arguments if isinstance(each, torch.Tensor))
    if _is_transformed(tensors) or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)):
        with torch.enable_grad():
            return _backward(dispatch.SERVING, *arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return BACKWARD.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


for _form in SCANS.values():
    LIBRARY.impl(_form.name, _autograd(_form), "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
LIBRARY.impl("scan_backward", _computed, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
LIBRARY.impl("scan_backward", _differentiated_again, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
torch.library.register_fake("scanops::scan_backward", _pretended, lib=LIBRARY)
