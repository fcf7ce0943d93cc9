"""The autograd node of every scan.

A node is made by eager calls, by the operators of ``torch.library`` and under ``torch.func``. Its backward pass takes
one of the routes in ``gradients.py``: compilers, modes, subclasses and transforms follow operators, to any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.compiler import is_compiling, is_dynamo_compiling

from scanops import environment
from scanops import torch_private as private
from scanops.codegen.operators import find_operator
from scanops.fallback.scans import compute
from scanops.ops import schema
from scanops.ops.gradients import differentiate, differentiate_fused
from scanops.ops.linearised import knows, push_forward
from scanops.ops.saved import saved_mask
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import (
    FURTHER_AT,
    NAMES,
    Inputs,
    Needs,
    Request,
    RequestKind,
    SavedTensors,
    Tensors,
)
from scanops.requests.torch_state import has_kernels, is_derived, is_transformed, torch_kernels
from scanops.runtime.launcher import deliver
from scanops.runtime.recipes import Recipe

_GRAD, _JVP, _VMAP = (getattr(private.TransformType, name) for name in ("Grad", "Jvp", "Vmap"))
_FUNCTIONS_KNOW = {_GRAD, _JVP, _VMAP}  # transforms that autograd.Function has rules for; functionalize is none


class ForwardPass(Protocol):
    """The forward pass of a node: of a call that the cache holds, of another call, or of an operator."""

    @property
    def kind(self) -> RequestKind: ...
    def compute(self, tensors: Tensors) -> Outputs: ...


class OperatorForward(NamedTuple):
    """The forward pass of an operator's node: the operator, below autograd."""

    kind: RequestKind
    call: Call
    keys: Any = None  # what is left to dispatch to, inside an operator; None under a transform and in forward mode

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results of the operator, below autograd."""
        with private.below_autograd():
            return schema.run_operator(self.call, tensors, self.keys)


class ShardedMethod(Protocol):
    """How a rank computes its part of a call and of its gradients: what ``scanops.distributed`` exchanges for them."""

    def compute(self, tensors: Tensors) -> tuple[Outputs, Tensors, Any]:
        """Return the outputs, what is saved, and what else the backward pass is to know."""

    def differentiate(self, saved: Tensors, grads: Tensors, noted: Any) -> Tensors:
        """Return the gradients as ``NAMES``; ``saved`` is empty where nothing was saved."""


class ShardedForward:
    """The forward pass of the node of a sharded scan, of one call."""

    __slots__ = ("_method", "_noted", "_saved")

    def __init__(self, method: ShardedMethod) -> None:
        self._method = method
        self._saved: Tensors = ()
        self._noted: Any = None

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and keep what the backward pass reads until ``save`` takes it."""
        found, self._saved, self._noted = self._method.compute(tensors)
        return found

    def save(self, ctx: Any) -> None:
        """Save what the backward pass reads, plain sums nothing, and inputs for derivatives of higher order."""
        ctx.sharded, ctx.noted, ctx.nothing = self._method, self._noted, ()
        if any([each is not None for each in self._saved]):
            ctx.nothing = None
            ctx.save_for_backward(*self._saved)
        self._saved = ()


def by_torch(request: Request) -> Outputs:
    """Return the results of a request by PyTorch's own operators."""
    with torch_kernels():
        return deliver(compute(request), request)


def kind_of(call: Call, tensors: Tensors) -> RequestKind:
    """Return the kind of an operator's call."""
    return RequestKind(schema.request_of(call, Inputs(*tensors)))  # type: ignore[arg-type]


class ScanFunction(torch.autograd.Function):
    """A scan with its gradients, its tangents and its batches.

    Called with a forward pass and tensors as ``Inputs.flat`` has them: x, mask, gate, segment_starts, offsets, initial,
    and of a fused scan its further operands. What a fused scan saves and computes backward is its pass's.
    """

    @classmethod
    def record(cls, work: ForwardPass | ShardedForward, tensors: Tensors) -> Outputs:
        """Return ``apply(work, *tensors)`` where no transform is active: torch binds no arguments by inspection."""
        found: Outputs = super(torch.autograd.Function, cls).apply(work, *tensors)  # type: ignore[misc]
        return found

    @staticmethod
    def forward(work: ForwardPass | ShardedForward, *tensors: torch.Tensor | None) -> Outputs:
        return work.compute(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        work, *tensors = inputs
        ctx.fused = ctx.sharded = None
        if isinstance(work, ShardedForward):
            work.save(ctx)
        else:
            ctx.kind = work.kind
            if ctx.kind.request.call.fusion is not None:
                work.save(ctx, tensors)
            else:
                _save_plain(ctx, work, tensors, output)
            with schema.lengths(ctx.kind.request.call.any_length):
                ctx.policy = environment.SCOPED.get()
        whole = [each for each in output if not (each.is_floating_point() or each.is_complex())]
        ctx.mark_non_differentiable(*whole)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Tensors:
        if ctx.fused is not None:
            needs = needs_of(ctx)
            if is_dynamo_compiling():
                inputs = Inputs.of_flat(ctx.saved_tensors[: FURTHER_AT + len(needs) - len(NAMES)])
                x, mask, gate, initial, *further = schema.differentiate_fused_by_operator(
                    ctx.fused, inputs, given, needs
                )
            else:
                read = ctx.forward.list_given(given, ctx.saved_tensors)
                found, _ = differentiate_fused(ctx.forward, needs, read, ctx.policy, ctx.scan)
                x, mask, gate, initial, *further = found
            return (None, x, mask, gate, None, None, initial, *further)
        if ctx.sharded is not None:
            # A checkpoint computes the call again, with its exchanges, where saved tensors are read: on all ranks.
            saved = ctx.saved_tensors if ctx.nothing is None else ()
            x, mask, gate, initial = ctx.sharded.differentiate(saved, given, ctx.noted)
            return (None, x, mask, gate, None, None, initial)
        gy, gfinal = given[0], given[-1] if ctx.kind.final else None
        if gy is None and gfinal is None:
            return (None,) * (1 + schema.TENSORS)
        saved = ctx.nothing or ctx.saved_tensors
        x, mask, gate, initial = backward_pass(ctx.kind, needs_of(ctx), (gy, gfinal, *saved), ctx.policy)[0]
        return (None, x, mask, gate, None, None, initial)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        y, indices, *tensors = ctx.saved_tensors
        request = schema.request_of(ctx.call, Inputs(*tensors))
        _, x, mask, gate, _, _, initial = tangents
        found = push_forward(request, (y, indices), (x, mask, gate, initial), apply_operator)
        return (found[0], None) if ctx.kind.indexed else found

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], work: Any, *tensors: Any) -> Any:
        return schema.batch(apply_operator, info, dims[1:], Inputs(*tensors), work.call)


def _save_plain(ctx: Any, work: ForwardPass, tensors: Sequence[torch.Tensor | None], output: Outputs) -> None:
    """Save what the backward pass of a plain scan reads, and under a transform what its tangents are made of."""
    x, mask, gate, starts, offsets, initial = tensors
    kind = work.kind
    indices = output[1] if kind.indexed else None
    mask_of_saved = saved_mask(kind.inclusive or kind, needs_of(ctx))
    # Equal calls save equal tensors in one order, with or without modes: a non-reentrant checkpoint relies on it.
    read = zip((x, mask, gate, initial, output[0], indices), mask_of_saved, strict=True)
    saved = SavedTensors._make((*(each if wanted else None for each, wanted in read), starts, offsets))
    ctx.save_for_backward(*saved)
    # What saves nothing may be run backward twice, as torch's own scans.
    ctx.nothing = SavedTensors() if all(each is None for each in saved) else None
    if is_transformed():
        ctx.save_for_forward(output[0], indices, *tensors)
        ctx.call = work.call  # type: ignore[attr-defined]  # of an operator


def needs_of(ctx: Any) -> Needs:
    """Return which gradients of ``Inputs.differentiable`` a node is asked for."""
    _, x, mask, gate, _, _, initial, *further = ctx.needs_input_grad
    return (x, mask, gate, initial, *further)


# ---- scans that derivatives are made of


def apply_operator(call: Call, inputs: Sequence[Any]) -> Outputs:
    """Return the results of an operator on ``Inputs`` of any kind; under a transform by ``ScanFunction``.

    That has all derivatives. An operator of ``torch.library`` has no rule for tangents, and its rule for gradients
    cannot be transformed (pytorch#179652).
    """
    tensors = tuple(inputs[: schema.TENSORS])
    if _is_differentiated() and _has_derivatives(call, Inputs(*tensors)):
        found: Outputs = ScanFunction.apply(OperatorForward(kind_of(call, tensors), call), *tensors)  # type: ignore[no-untyped-call]
        return found
    return schema.run_operator(call, tensors)


def _has_derivatives(call: Call, inputs: Inputs) -> bool:
    carried = call.final or inputs.initial is not None or call.start is not None
    known = has_kernels(inputs.x) and knows(call.op, call.dtype or inputs.x.dtype, kernels=True)
    return known and not (find_operator(call.op).indices and carried)


def _is_differentiated() -> bool:
    """Whether eager code runs under a transform that takes derivatives, or in forward mode.

    Not forward mode within forward mode: there ``torch.autograd.Function`` loses tangents silently.
    """
    if is_compiling() or private.is_jit_traced() or private.count_modes():
        return False
    kinds = [level.key() for level in private.interpreters() or ()]
    if kinds.count(_JVP) > 1 or not _FUNCTIONS_KNOW.issuperset(kinds):
        return False
    return is_derived()


# ---- backward passes


def backward_pass(kind: RequestKind, needs: Needs, given: Tensors, policy: str | None) -> tuple[Tensors, Recipe | None]:
    """Return the gradients as ``NAMES``, and the recipe that computed them, as ``gradients.differentiate`` does."""
    return differentiate(kind, needs, given, policy, apply_operator)
