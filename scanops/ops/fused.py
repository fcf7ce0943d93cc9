"""Fused scans with gradients: what the autograd node saves of one, and its backward pass, which is again such a scan.

``scanops.codegen.fusion.adjoint`` derives the backward pass; here are its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from scanops.codegen.fusion.adjoint import (
    SavedStates,
    choose_states,
    derive_adjoint,
    read_states,
)
from scanops.codegen.fusion.fusion import Fusion, fusion_of
from scanops.fallback.fused import evaluate
from scanops.ops import schema
from scanops.ops.linearised import Scan
from scanops.ops.saved import sum_to
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.fused import broadcast_shape
from scanops.requests.request import NAMES, Inputs, Needs, RequestKind, Tensors


class FusedPass:
    """The forward pass of a fused scan's node, of one call."""

    def __init__(self, kind: RequestKind, compute: Scan, scan: Scan, *, saves_states: bool) -> None:
        """``compute`` computes the pass, ``scan`` the scans of its backward pass.

        ``saves_states``: whether the forward kernel may write what the backward kernel reads.
        """
        self.kind = kind
        self._compute, self._scan, self._saves_states = compute, scan, saves_states
        self._states: SavedStates | None = None
        self._saved: Outputs = ()

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and keep the states that the backward pass reads until ``save`` takes them."""
        call, given = self.kind.request.call, Inputs.of_flat(tensors)
        fusion = fusion_of_call(call)
        needs = tuple(each.requires_grad for each in given.operands)
        self._states = states = _states_of(call, given, needs) if self._saves_states else None
        if states is None:
            return self._compute(call, given)
        found = self._compute(replace(call, fusion=fusion_of(states.text)), given)
        self._saved = tuple(found[at] for at in states.at)
        return (*found[: len(fusion.outputs)], *found[states.outputs :])

    def save(self, ctx: Any, tensors: Tensors) -> None:
        """Save the tensors of the call, and the states."""
        ctx.save_for_backward(*tensors, *self._saved)
        ctx.states, ctx.scan, self._saved = self._states, self._scan, ()
        ctx.fused = schema.list_fused_arguments(self.kind.request.call)


def fusion_of_call(call: Call) -> Fusion:
    assert call.fusion is not None
    return call.fusion


def _states_of(call: Call, given: Inputs, needs: tuple[bool, ...]) -> SavedStates | None:
    """The states to save; None where none are read, or where saving them does not move fewer bytes."""
    if given.initial is not None:  # items of the carry-in are before the first results
        return None
    if given.starts is not None or given.offsets is not None:  # and the identity before those of each segment
        return None
    shape = broadcast_shape(given.operands)
    whole = tuple(each.shape == shape for each in given.operands)
    return choose_states(fusion_of_call(call), call.op, call.exclusive, needs, whole)


class _Scans(NamedTuple):
    """What the scans of a backward pass are made of: the call, and what computes them."""

    call: Call
    given: Inputs
    scan: Scan

    def run(
        self, fusion: Fusion, tensors: Sequence[torch.Tensor], initial: torch.Tensor | None, **others: Any
    ) -> Outputs:
        """Return the outputs of a fused scan of these tensors; ``others`` are fields of its call."""
        x, *further = tensors
        call = Call(self.call.op, self.call.dim, self.call.reverse, fusion=fusion)
        inputs = self.given._replace(x=x, further=tuple(further), initial=initial)  # of the same segments
        return self.scan(replace(call, **others), inputs)


def differentiate_by_adjoint(
    call: Call,
    given: Inputs,
    gradients: Sequence[torch.Tensor | None],
    needs: Needs,
    scan: Scan,
    states: SavedStates | None = None,
    saved: Sequence[torch.Tensor] = (),
) -> Tensors:
    """Return the gradients of ``given.differentiable`` that ``needs`` are wanted of, from those of the outputs.

    ``saved``: the ``states`` that the forward pass has written. Carries change places: that of the scan from the other
    end goes in as the gradient of what came out here.
    """
    call_fusion, scans = fusion_of_call(call), _Scans(call, given, scan)
    of_x, *_, of_initial = needs[: len(NAMES)]
    wanted = (of_x, *needs[len(NAMES) :])
    tensors, carry = given.operands, given.initial
    count = len(call_fusion.outputs)
    of_final = next((each for each in gradients[count:] if each is not None), None)
    shape = broadcast_shape(tensors)
    whole = tuple(each.shape == shape for each in tensors)
    there = tuple(each is not None for each in gradients[:count])
    adjoint = derive_adjoint(call_fusion, call.op, call.exclusive, there, wanted, whole)
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
    for fusion in parts:
        found += scans.run(fusion, read, of_final, **against)
        if of_initial:
            assert carry is not None
            of_carry = sum_to(found.pop(), shape=carry.shape, dtype=carry.dtype)
    if adjoint.last is not None:
        outputs = adjoint.last.outputs
        values = evaluate(adjoint.last.nodes, [each.at for each in outputs], {"operand": [*read, *found]}, {})
        dtypes = [getattr(torch, each.dtype) for each in outputs]
        found = [each.expand(shape).to(dtype) for each, dtype in zip(values, dtypes, strict=True)]
    pairs = zip(tensors, adjoint.of, strict=True)
    x, *further = [None if at is None else sum_to(found[at], shape=each.shape, dtype=each.dtype) for each, at in pairs]
    return (x, None, None, of_carry, *further)
