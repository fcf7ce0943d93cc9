"""The state of torch around a call, which decides how it is served.

Autocast, grad mode, a compiler, a transform, and tensors without memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.compiler import is_compiling

from scanops import emulator
from scanops import torch_private as private
from scanops.codegen.operators import OPERATORS


class _Thread(threading.local):
    calls_torch = False


_THREAD = _Thread()


@contextlib.contextmanager
def torch_kernels() -> Iterator[None]:
    """Inside the block, scans that this thread asks torch for run torch's own kernels: no patch takes them."""
    outer, _THREAD.calls_torch = _THREAD.calls_torch, True
    try:
        yield
    finally:
        _THREAD.calls_torch = outer


def calls_torch() -> bool:
    """Whether this thread is in a block of ``torch_kernels``."""
    return _THREAD.calls_torch


HALVES = (torch.float16, torch.bfloat16)


def autocast(op: str, x: torch.Tensor) -> torch.dtype | None:
    """Return the dtype in which an enabled autocast computes a scan of ``x``; None for x's own, as on every CPU."""
    return torch.float32 if x.dtype in HALVES and x.is_cuda and _autocasts(op) else None


@private.at_tracing
def _autocasts(op: str) -> bool:
    return isinstance(op, str) and op in OPERATORS and OPERATORS[op].autocast


def is_recorded() -> bool:
    """Whether autograd records: not in inference mode or below autograd, whatever the grad mode."""
    return torch.is_grad_enabled() and not private.is_autograd_excluded()


def is_transformed() -> bool:
    """Whether code runs under a ``torch.func`` transform or in forward mode."""
    return private.are_transforms_active() or private.dual_level() >= 0


def is_derived() -> bool:
    """Whether eager code runs under a transform that takes derivatives, or in forward mode."""
    kinds = [level.key() for level in private.interpreters() or ()]
    return private.dual_level() >= 0 or any(kind != private.TransformType.Vmap for kind in kinds)


def has_function_modes() -> bool:
    """Whether a mode sees the functions of torch that this thread calls, other than that of a default device."""
    if not private.count_function_modes():
        return False
    return not all(private.is_device_mode(mode) for mode in private.function_modes())


def is_traced() -> bool:
    """Whether torch.jit.trace is active: to it everything but an operator is a constant, and sizes are tensors."""
    return not torch.compiler.is_compiling() and private.is_jit_traced()  # which a compiler cannot look into


def _symbolic_shapes() -> Any:
    """The module of torch that compares symbols: where there are any, torch has imported it."""
    return torch.fx.experimental.symbolic_shapes


def is_symbol(length: Any) -> bool:
    """Whether a length may differ at each call of what is traced."""
    if is_traced() or (not torch.compiler.is_compiling() and type(length) is int):
        return False
    return not _symbolic_shapes().has_static_value(length)


def stretches(size: Any, to: Any) -> bool:
    """Whether a dimension broadcasts. Unknown symbolic sizes do, as in torch: that is checked at run time."""
    if not (torch.compiler.is_compiling() or isinstance(size, torch.SymInt) or isinstance(to, torch.SymInt)):
        return size in (1, to)
    shapes = _symbolic_shapes()
    if shapes.guard_or_false(size == 1) or shapes.guard_or_false(size == to):
        return True
    if shapes.guard_or_true(size == to):
        private.check_symbol(size == to)
        return True
    return False


def has_own_operations(tensor: torch.Tensor) -> bool:
    """Whether a tensor subclass defines torch's operations on itself, as a parameter of such a class does."""
    return bool(private.dispatch_keys(tensor).has(private.DispatchKey.Python))


def is_memory(tensor: torch.Tensor) -> bool:
    """Whether a kernel that reads a tensor's memory reads its values."""
    kind = type(tensor)
    if kind is not torch.Tensor and not (issubclass(kind, torch.nn.Parameter) and not has_own_operations(tensor)):
        return False  # a subclass (fake, distributed, quantised) has values for torch's operations only
    # A negated view, as z.conj().imag; a conjugated one, as z.conj(); without memory, as batched gradients.
    return not (tensor.is_neg() or tensor.is_conj() or private.is_zero(tensor)) and private.has_storage(tensor)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a batch of gradients, of ``is_grads_batched``: operators of lists of tensors have no rule."""
    return bool(private.dispatch_keys(tensor).has(private.batched))


def has_kernels(x: torch.Tensor) -> bool:
    """Whether there are kernels where a tensor is: on a CPU emulated ones alone."""
    return x.is_cuda or (emulator.ACTIVE.get() is not None if x.is_cpu else not x.is_meta)


def runs_kernels(given: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether this is eager code without tracing, transforms or modes, on tensors that kernels can read."""
    if torch.compiler.is_compiling() or is_transformed() or private.count_modes() or private.is_jit_traced():
        return False
    return reads_memory(given)


def is_plain_memory(given: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether this is eager code without tracing and transforms on tensors with memory, whatever modes are active."""
    if torch.compiler.is_compiling() or is_transformed() or private.is_jit_traced():
        return False
    return all([is_memory(each) for each in given if isinstance(each, torch.Tensor)])


def reads_memory(given: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether kernels can read these tensors, of which the first is required."""
    x = given[0]
    if x is None or not is_memory(x):
        return False
    for each in given[1:]:
        if isinstance(each, torch.Tensor) and not is_memory(each):
            return False
    return has_kernels(x)


def is_followed(inputs: tuple[Any, ...]) -> bool:
    """Whether a call is traced, transformed or watched by a mode, and must be one operator of the graph.

    Otherwise it is plain code on CPU tensors or on batches of gradients, or a call with an invalid argument.
    """
    if is_compiling():
        return isinstance(inputs[0], torch.Tensor)  # whose layout cannot be asked in the backward of a function
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if not isinstance(inputs[0], torch.Tensor) or any(each.layout != torch.strided for each in tensors):
        return False
    if is_transformed() or private.count_modes() or is_traced():
        return True
    if any(map(is_batched, tensors)):
        return False
    return not all(map(is_memory, tensors)) or inputs[0].device.type != "cpu"
