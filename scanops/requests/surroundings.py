"""The state of torch around a call: autocast, grad mode, a compiler, a transform."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

__all__ = ["AUTOCAST", "at_tracing", "autocast", "is_recorded", "is_traced", "is_transformed", "stretches"]

AUTOCAST = ("sum", "prod")  # torch's scans that autocast computes in float32, on GPUs only
_HALVES = (torch.float16, torch.bfloat16)

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded  # looked up once: this is asked at every call

F = TypeVar("F")


def at_tracing(function: F) -> F:
    """Mark ``function`` to be called while a compiler traces; its result is a constant of the graph.

    As ``torch.compiler.assume_constant_result``, which would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def autocast(x: torch.Tensor) -> torch.dtype | None:
    """Return the dtype in which autocast computes a sum or a product of ``x``; None for x's own."""
    return torch.float32 if x.dtype in _HALVES and x.is_cuda and torch.is_autocast_enabled("cuda") else None


def is_recorded() -> bool:
    """Whether autograd records: not in inference mode or below autograd, whatever the grad mode."""
    return torch.is_grad_enabled() and not _is_excluded(_AUTOGRAD)


def is_transformed() -> bool:
    """Whether code runs under a ``torch.func`` transform or in forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether torch.jit.trace is active: to it everything but an operator is a constant, and sizes are tensors."""
    return not torch.compiler.is_compiling() and torch._C._is_tracing()  # which a compiler cannot look into


def stretches(size: Any, to: Any) -> bool:
    """Whether a dimension broadcasts. Unknown symbolic sizes do, as in torch: that is checked at run time."""
    if not (torch.compiler.is_compiling() or isinstance(size, torch.SymInt) or isinstance(to, torch.SymInt)):
        return size in (1, to)
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true  # which eager code can spare

    if guard_or_false(size == 1) or guard_or_false(size == to):
        return True
    if guard_or_true(size == to):
        torch._check(size == to)  # type: ignore[no-untyped-call]
        return True
    return False
