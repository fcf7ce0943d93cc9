"""Fused scans with gradients: what the autograd node saves of one, and its backward pass, which is again such a scan.

``scanops.codegen.fusion.adjoint`` derives the backward pass; here are its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from scanops.codegen.fusion.adjoint import (
    RECURRENCES,
    SavedStates,
    choose_states,
    derive_adjoint,
    read_states,
)
from scanops.codegen.fusion.fusion import MOST_OPERANDS, Fusion, fusion_of
from scanops.codegen.fusion.graph import is_float
from scanops.fallback.fused import evaluate
from scanops.ops import schema
from scanops.ops.line_sums import add_line_sums, sums_lines
from scanops.ops.linearised import Scan
from scanops.ops.saved import sum_to
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape, carry_dtype_of
from scanops.requests.geometry import line_shape
from scanops.requests.request import FURTHER_AT, NAMES, Inputs, Needs, RequestKind, Tensors, check_request
from scanops.requests.torch_state import runs_kernels
from scanops.runtime import call_cache
from scanops.runtime.recipes import Recipe, Tape


class FusedForward:
    """What fused scans with gradients have in common that differ in nothing but their data."""

    __slots__ = ("differentiable", "hidden", "is_composed", "kind", "needs", "recipe", "states", "writing_call")

    def __init__(self, kind: RequestKind, given: Inputs, needs: Needs, *, saves_states: bool) -> None:
        """``saves_states``: whether the forward kernel may write what the backward kernel reads."""
        call = kind.request.call
        fusion = fusion_of_call(call)
        self.kind, self.needs = kind, needs
        self.recipe: Recipe | None = None  # of a scan with sums: the steps of the forward pass
        # Whether PyTorch's operators around a plain scan compute the call, and have its gradients.
        self.is_composed = not (call.summed or _has_fused_gradient(call, given))
        self.states = None if self.is_composed or call.summed or not saves_states else _states_of(call, given)
        # The call whose kernel writes the states as well, and how many results it has beside those of the user.
        self.writing_call = call if self.states is None else replace(call, fusion=fusion_of(self.states.text))
        self.hidden = len(fusion_of_call(self.writing_call).outputs) - len(fusion.outputs)
        # Which results have a gradient, the carry-out among them.
        self.differentiable = (*(is_float(each.dtype) for each in fusion.outputs), *(True,) * call.final)

    def list_saved(self) -> tuple[int, ...]:
        """Return the places, among ``Inputs.flat`` and then results, of what the node saves."""
        first = FURTHER_AT + len(self.kind.shapes) - len(NAMES)
        if self.recipe is not None:  # whose results are outputs, then what is saved
            return (*range(first), first + len(fusion_of_call(self.kind.request.call).outputs))
        return (*range(first), *(first + at for at in (() if self.states is None else self.states.at)))

    def list_given(self, gradients: Tensors, saved: Tensors) -> Tensors:
        """Return what a backward pass is given: gradients of results that have any, two at least, and what was saved.

        ``gradients``: those of all results.
        """
        there = [each for each, has_any in zip(gradients, self.differentiable, strict=True) if has_any]
        return (*there, *(None,) * (2 - len(there)), *saved)

    def split_given(self, given: Tensors) -> tuple[list[torch.Tensor | None], Inputs, Outputs]:
        """Return the gradients of all results, the inputs and the states of what a backward pass is given."""
        count = sum(self.differentiable)
        gradients, saved = iter(given[:count]), given[max(2, count) :]
        first = FURTHER_AT + len(self.kind.shapes) - len(NAMES)
        every = [next(gradients) if has_any else None for has_any in self.differentiable]
        return every, Inputs.of_flat(saved[:first]), saved[first:]  # type: ignore[return-value]  # all are there


def recall_fused(call: Call, given: Inputs) -> tuple[FusedForward, Inputs]:
    """Return what equal calls have in common, checked the first time, and the tensors as its kernels read them."""
    records = given.differentiates
    needs = tuple([records and each for each in given.needs])
    key = call_cache.key_of(call, given)
    known: FusedForward | None
    key, known = call_cache.recall_prepared(None if key is None else (*key, needs))
    if known is not None:
        return known, given
    request = check_request(call, given)
    found = FusedForward(RequestKind(request), request.inputs, needs, saves_states=True)
    if key is not None and all(mine is its for mine, its in zip(request.inputs.flat, given.flat, strict=True)):
        found.kind.is_cached = call_cache.remember(call_cache.PREPARED, key, found)
    return found, request.inputs


class FusedPass:
    """The forward pass of a fused scan's node, of one call."""

    def __init__(self, forward: FusedForward, compute: Scan, scan: Scan) -> None:
        """``compute`` computes the pass, ``scan`` the scans of its backward pass."""
        self.kind = forward.kind
        self._forward, self._compute, self._scan = forward, compute, scan
        self._saved: Outputs = ()

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and keep the states that the backward pass reads until ``save`` takes them."""
        forward = self._forward
        found = self._compute(forward.writing_call, Inputs.of_flat(tensors))
        if forward.states is None:
            return found
        self._saved = tuple(found[at] for at in forward.states.at)
        visible = forward.states.outputs - forward.hidden
        return (*found[:visible], *found[forward.states.outputs :])

    def save(self, ctx: Any, tensors: Tensors) -> None:
        """Save the tensors of the call, and the states."""
        ctx.save_for_backward(*tensors, *self._saved)
        ctx.forward, ctx.scan, self._saved = self._forward, self._scan, ()
        ctx.fused = schema.list_fused_arguments(self.kind.request.call)


def fusion_of_call(call: Call) -> Fusion:
    assert call.fusion is not None
    return call.fusion


def _has_fused_gradient(call: Call, given: Inputs) -> bool:
    """Whether the gradients of a fused scan are computed by fused scans; otherwise by those of torch's operators."""
    fusion = fusion_of_call(call)
    wanted = tuple(each.requires_grad for each in given.operands)
    if call.op in RECURRENCES:
        count = len(wanted) + (given.initial is not None)
        return any(wanted) and count + len(fusion.outputs) < MOST_OPERANDS
    count = len(wanted)
    every = (True,) * len(fusion.outputs), wanted, (True,) * count, (False,) * count
    return bool(fusion.fields) and derive_adjoint(fusion, call.op, call.exclusive, *every) is not None


def _states_of(call: Call, given: Inputs) -> SavedStates | None:
    """The states to save; None where none are read, or where saving them does not move fewer bytes."""
    if given.initial is not None:  # items of the carry-in are before the first results
        return None
    if given.starts is not None or given.offsets is not None:  # and the identity before those of each segment
        return None
    shape = broadcast_shape(given.operands)
    whole = tuple(each.shape == shape for each in given.operands)
    needs = tuple(each.requires_grad for each in given.operands)
    return choose_states(fusion_of_call(call), call.op, call.exclusive, needs, whole)


class _Scans(NamedTuple):
    """What the scans of a backward pass are made of: the call, and what computes them."""

    call: Call
    given: Inputs
    scan: Scan
    tape: Tape

    def run(
        self, fusion: Fusion, tensors: Sequence[torch.Tensor], initial: torch.Tensor | None, **others: Any
    ) -> Outputs:
        """Return the outputs of a fused scan of these tensors; ``others`` are fields of its call."""
        x, *further = tensors
        call = Call(self.call.op, self.call.dim, self.call.reverse, fusion=fusion)
        shape, carry = broadcast_shape(tensors), carry_dtype_of(fusion)
        if initial is not None:  # as kernels read it
            initial = _fit_carry(initial, line_shape(shape, call.dim), carry, self.tape)
        inputs = self.given._replace(x=x, further=tuple(further), initial=initial)  # of the same segments
        call = replace(call, **others)
        found = self.scan(call, inputs)
        known = call_cache.recall(call, inputs)[1] if self.tape.is_kept else None
        if known is not None:
            self.tape.record_launch(known.launcher, inputs.flat, found)
        return found


def _fit_carry(initial: torch.Tensor, shape: torch.Size, dtype: torch.dtype, tape: Tape) -> torch.Tensor:
    """The carry-in of a scan of a backward pass as its kernel reads it."""
    if initial.dtype != dtype:
        initial = tape.apply(partial(torch.Tensor.to, dtype=dtype), initial)
    if initial.numel() == 1 or (initial.shape == shape and initial.is_contiguous()):
        return initial
    return tape.apply(lambda initial: initial.expand(shape).contiguous(), initial)


def differentiate_by_adjoint(
    call: Call,
    given: Inputs,
    gradients: Sequence[torch.Tensor | None],
    needs: Needs,
    scan: Scan,
    tape: Tape,
    states: SavedStates | None = None,
    saved: Sequence[torch.Tensor] = (),
) -> Tensors:
    """Return the gradients of ``given.differentiable`` that ``needs`` are wanted of, from those of the outputs.

    ``saved``: the ``states`` that the forward pass has written. Carries change places: that of the scan from the other
    end goes in as the gradient of what came out here. ``tape``: of the steps of the pass.
    """
    call_fusion, scans = fusion_of_call(call), _Scans(call, given, scan, tape)
    of_x, *_, of_initial = needs[: len(NAMES)]
    wanted = (of_x, *needs[len(NAMES) :])
    tensors, carry = given.operands, given.initial
    count = len(call_fusion.outputs)
    of_final = next((each for each in gradients[count:] if each is not None), None)
    shape = broadcast_shape(tensors)
    whole = tuple(each.shape == shape for each in tensors)
    there = tuple(each is not None for each in gradients[:count])
    # What is differentiated again, or followed, is made of results of each item.
    by_kernels = not torch.is_grad_enabled() and runs_kernels((*given.flat, *gradients))
    summed = tuple(by_kernels and sums_lines(each.shape, shape, call.dim) for each in tensors)
    adjoint = derive_adjoint(call_fusion, call.op, call.exclusive, there, wanted, whole, summed)
    assert adjoint is not None
    known_fields = (
        {} if states is None else dict(zip(states.fields, zip(saved, states.starts, strict=True), strict=True))
    )
    reads = {n for n, is_read in enumerate(adjoint.there) if is_read}
    known = tuple(each.contiguous() if each.requires_grad else each for each in gradients[:count] if each is not None)
    read = [*tensors, *known]
    parts = adjoint.parts
    if reads and reads <= known_fields.keys() and adjoint.last is None:
        read += [known_fields[n][0] if n in reads else tensors[0] for n in range(len(adjoint.there))]
        before = len(tensors) + len(known)
        kinds = {before + n: (str(y.dtype)[6:], start) for n, (y, start) in known_fields.items() if n in reads}
        parts = tuple(read_states(each, tuple(sorted(kinds.items()))) for each in parts)
    else:
        again = (scans.run(each, tensors, carry, exclusive=True) for each in adjoint.before)
        states_before = [y for each in again for y in each]
        read += [
            states_before.pop(0) if is_read else tensors[0] for is_read in adjoint.there
        ]  # nothing reads the latter
    found: list[torch.Tensor] = []
    of_carry: torch.Tensor | None = None
    against = {"op": adjoint.op, "reverse": not call.reverse, "exclusive": adjoint.exclusive, "final": of_initial}
    for fusion, line_sums in zip(parts, adjoint.line_sums, strict=True):
        found += scans.run(fusion, read, of_final, line_sums=line_sums, **against)
        if of_initial:
            assert carry is not None
            of_carry = _fit_gradient(found.pop(), carry, tape)
        if line_sums:
            sums = found.pop()
            of_tensors = [tensors[adjoint.of.index(len(found) + n)] for n in range(line_sums)]
            likes = [(each.shape, each.dtype) for each in of_tensors]
            found += add_line_sums(sums, call.dim, likes, tape)  # type: ignore[arg-type]
    if adjoint.last is not None:
        found = list(tape.call(partial(_evaluate_outputs, adjoint.last, shape), *read, *found))  # type: ignore[arg-type]
    pairs = zip(tensors, adjoint.of, strict=True)
    x, *further = [None if at is None else _fit_gradient(found[at], each, tape) for each, at in pairs]
    return (x, None, None, of_carry, *further)


def _evaluate_outputs(fusion: Fusion, shape: torch.Size, *tensors: torch.Tensor) -> Outputs:
    """The outputs of expressions of tensors alone, by PyTorch's operators."""
    values = evaluate(fusion.nodes, [each.at for each in fusion.outputs], {"operand": tensors}, {})
    dtypes = [getattr(torch, each.dtype) for each in fusion.outputs]
    return tuple(each.expand(shape).to(dtype) for each, dtype in zip(values, dtypes, strict=True))


def _fit_gradient(gradient: torch.Tensor, like: torch.Tensor, tape: Tape) -> torch.Tensor:
    """The gradient of a tensor, summed over the dimensions that it is broadcast over."""
    if (gradient.shape, gradient.dtype) == (like.shape, like.dtype):
        return gradient
    return tape.apply(partial(sum_to, shape=like.shape, dtype=like.dtype), gradient)
