"""The autograd node of sharded scans, by either method."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from scanops.requests.request import Inputs, Needs, Tensors

__all__ = ["ShardedFunction", "record"]

Outputs = tuple[Tensor, ...]


class ShardedPass(Protocol):
    """A forward pass and what its backward pass is."""

    def compute(self, given: Inputs, needs: Needs) -> tuple[Outputs, Tensors, Any]:
        """Return the outputs, what is saved, and what else the backward pass is to know."""

    def differentiate(self, needs: Needs, saved: Tensors | None, grads: Tensors, noted: Any) -> Tensors:
        """Return the gradients as ``NAMES``; nothing was saved where ``saved`` is None."""


class ShardedFunction(torch.autograd.Function):
    """A sharded scan with its gradients, which are exchanged against the scan's direction.

    The node saves what its backward pass reads, plain sums nothing, and inputs for derivatives of higher order: where a
    backward pass is itself recorded, the call is composed again of differentiable scans and exchanges.
    """

    @staticmethod
    def forward(ctx: Any, work: ShardedPass, given: Inputs, *tensors: Tensor | None) -> Outputs:
        x, mask, gate, initial = ctx.needs_input_grad[2:]
        ctx.work, ctx.needs = work, (x, mask, gate, initial)
        outputs, saved, ctx.noted = work.compute(given, ctx.needs)
        ctx.saves = any(each is not None for each in saved)
        if ctx.saves:
            ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*[y for y in outputs if not (y.is_floating_point() or y.is_complex())])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        # A checkpoint computes the call again, with its exchanges, where saved tensors are read: here, on all ranks.
        saved = ctx.saved_tensors if ctx.saves else None
        return (None, None, *ctx.work.differentiate(ctx.needs, saved, grads, ctx.noted))


def record(work: ShardedPass, given: Inputs) -> Outputs:
    """Return the results of a pass, recorded by autograd. Torch need not bind arguments: no transform is active."""
    leaves = [each if isinstance(each, Tensor) else None for each in given.differentiable]
    found: Outputs = super(torch.autograd.Function, ShardedFunction).apply(work, given, *leaves)  # type: ignore[no-untyped-call]
    return found
