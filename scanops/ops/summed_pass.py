"""Fused scans whose results are summed over lines, and their gradients: by kernels, by an operator, or by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from scanops import torch_private as private
from scanops.fallback.summed import Scan, compose_summed, differentiate_by_torch
from scanops.ops import schema
from scanops.ops.schema import Outputs
from scanops.requests.call import Call
from scanops.requests.request import FURTHER_AT, NAMES, FusedInputs, Needs, RequestKind, Tensors
from scanops.requests.torch_state import is_batched, is_memory, runs_kernels
from scanops.runtime.states import differentiate_states, run_states

Compute = Callable[[Call, FusedInputs], tuple[Outputs, Tensors]]


def compute_summed(
    call: Call, given: FusedInputs, scan: Scan, *, kernels: bool, saves: bool = False
) -> tuple[Outputs, Tensors]:
    """Return the results of a checked scan, and the carry-out if asked for; and what its backward pass reads.

    ``kernels``: whether kernels may read the tensors. ``scan`` computes plain scans where there is no kernel.
    """
    found = run_states(call, given, saves=saves) if kernels else None
    return (compose_summed(call, given, scan), ()) if found is None else found


class SummedPass:
    """The forward pass of the node of a scan whose results are summed."""

    def __init__(self, kind: RequestKind, compute: Compute, scan: Scan) -> None:
        """``compute`` computes the pass, ``scan`` the plain scans of a backward pass by torch's operators."""
        self.kind = kind
        self._compute, self._scan = compute, scan
        self._saved: Tensors = ()

    def compute(self, tensors: Tensors) -> Outputs:
        """Return the results, and keep what the backward pass reads until ``save`` takes it."""
        found, self._saved = self._compute(self.kind.request.call, FusedInputs.of_flat(tensors))
        return found

    def save(self, ctx: Any, tensors: Tensors) -> None:
        """Save the tensors of the call, and what kernels have written for the backward pass."""
        ctx.save_for_backward(*tensors, *self._saved)
        ctx.scan, ctx.differentiate, self._saved = self._scan, self.differentiate, ()
        ctx.fused = schema.list_fused_arguments(self.kind.request.call)

    @staticmethod
    def differentiate(ctx: Any, needs: Needs, gradients: Sequence[torch.Tensor | None]) -> Tensors:
        """Return the gradients of the tensors of ``FusedInputs.differentiable`` that ``needs`` name."""
        call, tensors = ctx.kind.request.call, ctx.saved_tensors
        count = FURTHER_AT + len(needs) - len(NAMES)
        given = FusedInputs.of_flat(tensors[:count])
        every = [each for each in (*tensors, *gradients) if each is not None]
        is_followed = is_compiling() or private.count_modes() or not all(map(is_memory, every))
        if is_followed and not (private.are_transforms_active() or any(map(is_batched, every))):
            return schema.differentiate_fused_by_operator(ctx.fused, given, gradients, needs)
        return differentiate_summed(call, given, gradients, needs, ctx.scan, tensors[count:])


def differentiate_summed(
    call: Call,
    given: FusedInputs,
    gradients: Sequence[torch.Tensor | None],
    needs: Needs,
    scan: Scan,
    saved: Tensors = (),
) -> Tensors:
    """Return the gradients of ``given.differentiable`` that ``needs`` are wanted of, from those of the outputs.

    ``saved``: what the kernel of the forward pass has written; it runs again where there is none.
    """
    if all(each is None for each in gradients):
        return (None,) * len(needs)
    # Kernels and what they have saved are for what is differentiated once.
    if not torch.is_grad_enabled() and runs_kernels((*given.flat, *gradients)):
        again = None if saved else run_states(call, given, saves=True)
        saved = saved if again is None else again[1]
        found = differentiate_states(call, given, saved, gradients, needs) if saved else None
        if found is not None:
            return found
    return differentiate_by_torch(call, given, gradients, needs, scan)
