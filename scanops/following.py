"""Calls that somebody follows: a compiler, a transform, a mode or a subclass, who see operations and not memory."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.autograd import forward_ad

from scanops.codegen.operators import listed
from scanops.request import Inputs, is_memory, make_request

__all__ = ["AUTOCAST", "at_tracing", "autocast", "is_followed", "is_traced", "operation"]

AUTOCAST = ("sum", "prod")  # of torch's scans those that autocast computes in float32, on GPUs alone
_HALVES = (torch.float16, torch.bfloat16)


F = TypeVar("F")


def at_tracing(function: F) -> F:
    """Let a compiler call ``function`` while it traces, and keep what it gave.

    As ``torch.compiler.assume_constant_result``, which imports the compiler to say so.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def autocast(x: torch.Tensor) -> torch.dtype | None:
    """The dtype that autocast asks a sum or a product of ``x`` for, where none is given."""
    return torch.float32 if x.dtype in _HALVES and x.is_cuda and torch.is_autocast_enabled("cuda") else None


def is_transformed() -> bool:
    """Whether code runs under ``torch.func`` or in forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether torch.jit.trace follows: what is not an operation is a constant to it, and sizes are tensors."""
    return not torch.compiler.is_compiling() and torch._C._is_tracing()  # which a compiler cannot look into


def is_followed(inputs: Inputs, initial: torch.Tensor | complex | None) -> bool:
    """Whether a call that no kernel may serve at once is one operation to whoever asked for it.

    Else it is plain code on CPU tensors, or a call with something wrong.
    """
    given = [each for each in (*inputs, initial) if each is not None]
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    if not isinstance(inputs.x, torch.Tensor) or any(each.layout != torch.strided for each in tensors):
        return False
    if torch.compiler.is_compiling() or is_transformed() or torch._C._len_torch_dispatch_stack():
        return True
    if is_traced():
        return True
    if not all(map(is_memory, tensors)):
        return True
    return inputs.x.device.type != "cpu"


def operation(
    op: str,
    dim: int,
    inputs: Inputs,
    initial: torch.Tensor | complex | None,
    reverse: bool,
    exclusive: bool,
    final: bool,
    dtype: torch.dtype | None,
    accumulate: torch.dtype | str | None,
) -> tuple[torch.Tensor, ...]:
    """A call as one of ``torch.ops.scanops``."""
    from scanops.ops.schema import SCANS  # whose implementations are what imports this module

    x, mask, gate, starts, offsets, *_ = inputs
    if type(x).__name__ == "DTensor":
        from scanops.ops.sharding import know_shardings

        know_shardings()
    # Else where the operation is computed: to trace all this takes seconds.
    if not (torch.compiler.is_compiling() or is_traced()):
        make_request(
            x,
            op,
            dim,
            mask=mask,
            gate=gate,
            starts=starts,
            offsets=offsets,
            initial=initial,
            reverse=reverse,
            exclusive=exclusive,
            final=final,
            dtype=dtype,
            accumulate=accumulate,
        )
    carry, start = (initial, None) if isinstance(initial, torch.Tensor) else (None, initial)
    found = SCANS[bool(listed(op).indices), final].overload(
        *(x, mask, gate, starts, offsets, carry),
        *(dim, op, start, reverse, exclusive, dtype),
        *(None if accumulate is None else str(accumulate), _changes(x, dim)),
    )
    return found if isinstance(found, tuple) else (found,)


def _changes(x: torch.Tensor, dim: int) -> bool:
    """Whether the length is known as a symbol only."""
    if not (isinstance(dim, int) and -x.ndim <= dim < x.ndim):
        return False  # a number, or what is said to be wrong where it is computed
    length = x.shape[dim]
    if is_traced() or (not torch.compiler.is_compiling() and type(length) is int):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # costs an import that eager code can spare

    return not has_static_value(length)
