"""The autograd node of every scan, and the derivatives that it asks for.

A node is made by eager calls, by the operators of ``torch.library`` and under ``torch.func``. Its backward pass runs
kernels where they can read the tensors; otherwise it is made of operators, which compilers, modes, subclasses and
transforms follow, to any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch.compiler import is_compiling, is_dynamo_compiling

from scanops import environment
from scanops import torch_private as private
from scanops.codegen.operators import find_operator
from scanops.errors import UnsupportedRequest
from scanops.fallback.scans import compute
from scanops.ops import schema
from scanops.ops.backward import Kept, by_fallback, by_rows, keeps, sum_to
from scanops.ops.linearised import knows, pull_back, push_forward
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import (
    FURTHER_AT,
    NAMES,
    FusedInputs,
    Inputs,
    Needs,
    Request,
    RequestKind,
    Tensors,
)
from scanops.requests.torch_state import has_kernels, is_derived, is_memory, is_transformed, runs_kernels, torch_kernels
from scanops.runtime import call_cache
from scanops.runtime.launcher import deliver
from scanops.runtime.policies import resumed
from scanops.runtime.recipes import Recipe, Tape

_GRAD, _JVP, _VMAP = (getattr(private.TransformType, name) for name in ("Grad", "Jvp", "Vmap"))
_FUNCTIONS_KNOW = {_GRAD, _JVP, _VMAP}  # transforms that autograd.Function has rules for; functionalize is none


class ForwardPass(Protocol):
    """The forward pass of a node: of a call that the cache holds, of another call, or of an operator."""

    @property
    def kind(self) -> RequestKind: ...
    def compute(self, tensors: Tensors) -> Outputs: ...


class Below(NamedTuple):
    """The forward pass of an operator's node: the operator, below autograd."""

    kind: RequestKind
    call: Call
    keys: Any = None  # what is left to dispatch to, inside an operator; None under a transform and in forward mode

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results of the operator, below autograd."""
        with private.below_autograd():
            return schema.run_operator(self.call, tensors, self.keys)


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
    def record(cls, work: ForwardPass, tensors: Tensors) -> Outputs:
        """Return ``apply(work, *tensors)`` where no transform is active: torch binds no arguments by inspection."""
        found: Outputs = super(torch.autograd.Function, cls).apply(work, *tensors)  # type: ignore[misc]
        return found

    @staticmethod
    def forward(work: ForwardPass, *tensors: torch.Tensor | None) -> Outputs:
        return work.compute(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        work, *tensors = inputs
        ctx.kind, ctx.fused = work.kind, None
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
                inputs = FusedInputs.of_flat(ctx.saved_tensors[: FURTHER_AT + len(needs) - len(NAMES)])
                x, mask, gate, initial, *further = schema.differentiate_fused_by_operator(
                    ctx.fused, inputs, given, needs
                )
            else:
                with resumed(ctx.policy):  # autograd runs backward passes in threads of its own
                    x, mask, gate, initial, *further = ctx.differentiate(ctx, needs, given)
            return (None, x, mask, gate, None, None, initial, *further)
        gy, gfinal = given[0], given[-1] if ctx.kind.final else None
        if gy is None and gfinal is None:
            return (None,) * (1 + schema.TENSORS)
        kept = ctx.nothing or ctx.saved_tensors
        x, mask, gate, initial = backward_pass(ctx.kind, needs_of(ctx), (gy, gfinal, *kept), ctx.policy)[0]
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
    keep = keeps(kind.inclusive or kind, needs_of(ctx))
    # Equal calls save equal tensors in one order, with or without modes: a non-reentrant checkpoint relies on it.
    read = zip((x, mask, gate, initial, output[0], indices), keep, strict=True)
    kept = (*(each if wanted else None for each, wanted in read), starts, offsets)
    ctx.save_for_backward(*kept)
    # What saves nothing may be run backward twice, as torch's own scans.
    ctx.nothing = (None,) * len(kept) if all(each is None for each in kept) else None
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
        found: Outputs = ScanFunction.apply(Below(kind_of(call, tensors), call), *tensors)  # type: ignore[no-untyped-call]
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
    """Return the gradients as ``NAMES``, and the recipe that computed them where the call cache had one.

    ``given``: the gradients of result and carry-out, x, mask, gate, initial, result, indices, starts and offsets, each
    None where it is absent or not saved. ``policy`` is that of the block of the forward call.
    """
    if kind.inclusive is not None:
        return _of_complete(kind, kind.inclusive, needs, given, policy), None
    gy, gfinal, *saved = given
    if gy is None:  # only carry-outs were used
        assert gfinal is not None and kind.shapes[0] is not None
        gy = gfinal.new_zeros((), dtype=kind.request.dtype).expand(kind.shapes[0][0])
        given = (gy, *given[1:])
    kept = Kept(kind, needs, *saved)
    if is_compiling():
        return _by_operator(kept, gy, gfinal), None
    key = None
    # Kernels and their recipes are for what is differentiated once.
    if kind.lasts and not torch.is_grad_enabled() and runs_kernels(given):
        key, recipe = call_cache.recall_gradient(kind, needs, given, policy)
        if recipe is not None:
            return recipe.again(given), recipe
    gy = gy.resolve_conj().resolve_neg()
    with resumed(policy):  # autograd runs backward passes in threads of its own
        memory = all(each is None or is_memory(each) for each in (gy, gfinal, *saved))
        if (private.count_modes() or not memory) and not private.are_transforms_active():
            return _by_operator(kept, gy, gfinal), None
        if (start := kind.request.call.start) is not None:
            kept = kept._replace(initial=torch.full((), start, dtype=kind.request.carry_dtype, device=gy.device))
        with torch_kernels():
            return gradients_of(kept, gy, gfinal, kernels=runs_kernels((gy, gfinal, *kept.tensors)), key=key), None


def _of_complete(
    kind: RequestKind, inclusive: RequestKind, needs: Needs, given: Tensors, policy: str | None
) -> Tensors:
    """The gradients of a complete scan: those of its inclusive results, and that of the carry-in added."""
    gy, _, *saved = given
    kept, request, inclusive.lasts = Kept(kind, needs, *saved), kind.request, kind.lasts
    assert gy is not None
    if kept.y is not None:  # kernels read it as a contiguous tensor
        kept = kept._replace(y=request.within(kept.y).contiguous())
    *others, of_initial = backward_pass(inclusive, needs, (request.within(gy), None, *kept.tensors), policy)[0]
    if needs[3] and kind.shapes[3] is not None:
        shape, dtype = kind.shapes[3]
        of_start = sum_to(request.start_in(gy), shape=shape, dtype=dtype)
        of_initial = of_start if of_initial is None else of_initial + of_start
    return (*others, of_initial)


def gradients_of(
    kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None, *, kernels: bool, key: call_cache.Key | None = None
) -> Tensors:
    """Return the gradients as ``NAMES``: by kernels if ``kernels`` may read the tensors, else by operators.

    How kernels computed them is kept in the call cache under ``key``.
    """
    tape = Tape((gy, gfinal, *kept.tensors))
    rows = by_rows(kept, gy, gfinal, tape) if kernels and not torch.is_grad_enabled() else None
    if rows is not None:
        found = kept.fit(rows, tape)
        recipe = tape.recipe(found)
        if key is not None and recipe is not None:
            call_cache.remember(call_cache.GRADIENTS, key, recipe)
        return found
    request = kept.kind.request
    _check_unlinked(kept)
    unknown = kept.kind.indexed and (kept.kind.final or kept.needs[3])  # no item's index is saved for these
    if unknown or not knows(request.call.op, request.dtype, kernels=has_kernels(gy)):
        return kept.sum_gradients(by_fallback(kept, gy, gfinal), tape)
    request, results = replace(request, inputs=kept.forward_inputs(gy)), (kept.y, kept.indices)
    return kept.fit(pull_back(request, kept.needs, results, gy, gfinal, apply_operator), tape)


def _by_operator(kept: Kept, gy: torch.Tensor, gfinal: torch.Tensor | None) -> Tensors:
    """The gradients by ``scan_backward``, for a compiler, a mode or a subclass."""
    _check_unlinked(kept)
    kind, read = kept.kind, kept.forward_inputs(gy)
    call = replace(kind.request.call, dtype=None) if kind.indexed else kind.request.call
    if call.start is not None:
        read = read._replace(initial=None)
    every = schema.BACKWARD(
        gy, gfinal, kept.y, kept.indices, *read[: schema.TENSORS], *schema.backward_arguments(call, kept.needs)
    )
    return tuple(each if need else None for each, need in zip(every, kept.needs, strict=True))


def _check_unlinked(kept: Kept) -> None:
    """Raise for lines that continue on other ranks: nothing but kernels knows of those."""
    call = kept.kind.request.call
    if call.link is not None:
        raise UnsupportedRequest(
            f"{call.name}: the backward pass of a sharded scan in one pass needs kernels",
            allowed="gradients on the device of the forward pass, outside of torch's dispatch modes",
            value=f"gradients of op={call.op!r} that no kernel computes",
            hint="pass method='twopass' to the forward pass",
        )
