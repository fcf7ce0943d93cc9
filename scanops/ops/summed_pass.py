"""Fused scans whose results are summed over lines: by kernels or by torch, and what their node saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scanops.fallback.summed import Scan, compose_summed
from scanops.ops import schema
from scanops.ops.fused import FusedForward
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import Inputs, RequestKind, Tensors
from scanops.runtime.recipes import Tape
from scanops.runtime.states import run_states

Compute = Callable[[Call, Inputs], tuple[Outputs, Tensors]]


def compute_summed(forward: FusedForward, given: Inputs, scan: Scan, *, kernels: bool) -> tuple[Outputs, Tensors]:
    """Return the results of a checked scan, and the carry-out if asked for; and what its backward pass reads.

    ``kernels``: whether kernels may read the tensors. ``scan`` computes plain scans where there is no kernel.
    """
    call, count = forward.kind.request.call, len(forward.differentiable)
    if not kernels:
        return compose_summed(call, given, scan), ()
    if forward.recipe is not None:
        every = forward.recipe.again(given.flat)[:-2]
        return every[:count], every[count:]  # type: ignore[return-value]
    tape = Tape(given.flat)
    found = run_states(call, given, tape, saves=any(forward.needs))
    if found is None:
        return compose_summed(call, given, scan), ()
    if forward.kind.is_cached:
        forward.recipe = tape.recipe((*found[0], *found[1], None, None))  # an itemgetter returns no tuple for one
    return found


class SummedPass:
    """The forward pass of the node of a scan whose results are summed."""

    def __init__(self, forward: FusedForward, compute: Compute, scan: Scan) -> None:
        """``compute`` computes the pass, ``scan`` the plain scans of a backward pass by torch's operators."""
        self.kind: RequestKind = forward.kind
        self._forward, self._compute, self._scan = forward, compute, scan
        self._saved: Tensors = ()

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and keep what the backward pass reads until ``save`` takes it."""
        found, self._saved = self._compute(self.kind.request.call, Inputs.of_flat(tensors))
        return found

    def save(self, ctx: Any, tensors: Tensors) -> None:
        """Save the tensors of the call, and what kernels have written for the backward pass."""
        ctx.save_for_backward(*tensors, *self._saved)
        ctx.forward, ctx.scan, self._saved = self._forward, self._scan, ()
        ctx.fused = schema.list_fused_arguments(self.kind.request.call)
