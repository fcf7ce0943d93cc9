"""``with scanops.patch_torch():`` torch's own five scans computed by scanops, in code that cannot be edited."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from scanops import emulator, relatives
from scanops.codegen.operators import BUILT_IN, Operator
from scanops.errors import UnsupportedRequest
from scanops.requests.call import SHARDED
from scanops.torch_private import at_tracing, saved_tensors_hooks

__all__ = ["patch_torch"]


@contextlib.contextmanager
def patch_torch() -> Iterator[None]:
    """Run torch's own five scans by scanops inside the block, for code that cannot be edited.

    ``torch.cumsum``, ``cumprod``, ``cummax``, ``cummin`` and ``logcumsumexp``, the tensor methods of these names,
    ``cumsum_`` and ``cumprod_`` are computed by scanops where the tensor is on a GPU, or on the CPU inside
    ``scanops.emulate()`` or ``scanops.distributed.sharded()``, with ``dtype=``, ``out=`` and every keyword torch takes.
    Results, gradients and ``torch.return_types`` are torch's. What scanops refuses torch computes itself, or raises its
    own error for: an ``out`` of another shape, dimensions by name, an invalid call.

    The block applies to the current thread and to functions called from Python in it: not to scans inside torch's C++
    functions, nor to threads started in it, which may open blocks of their own. Backward passes need no block. Scans
    under ``torch.utils.checkpoint`` are left to torch, because a checkpoint recomputes outside the block and tells
    saved tensors apart by their order; a model that can be edited calls scanops' functions, which a checkpoint may
    hold. Blocks nest. Under ``torch.compile`` the block counts while a function is traced; code compiled inside is
    compiled again outside. In the block each torch function, and each access of an attribute such as ``x.shape``,
    takes 0.8 to 1.0 us longer than outside, and a scan 1.8 us longer than ``scanops.cumsum`` (CPU time, emulated
    kernels that do nothing).

    Example:
        >>> import torch, scanops
        >>> with scanops.patch_torch(), scanops.emulate():
        ...     torch.tensor([1.0, 2.0, 3.0]).cumsum(0)
        tensor([1., 3., 6.])
    """
    with _Patch():
        yield


class _Patch(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ours = _OURS.get(function)
        if ours is not None:
            found = ours(*args, **(kwargs or {}))
            if found is not None:
                return found
        return function(*args, **kwargs) if kwargs else function(*args)


def _replacement(row: Operator, *, in_place: bool = False) -> Callable[..., Any]:
    """Return a scan with torch's parameters and names for them; it returns None where torch is to compute."""
    name, scan, paired = row.function, getattr(relatives, row.function), bool(row.indices)

    def call(
        input: Any = None, dim: Any = None, dtype: Any = None, *, axis: Any = None, self: Any = None, out: Any = None
    ) -> Any:
        x, dim = input if self is None else self, axis if dim is None else dim
        if not _is_ours(x, dim, *((out or ()) if paired else (out,))):
            return None
        with contextlib.suppress(UnsupportedRequest):
            if paired:
                returned = getattr(torch.return_types, f"{name}_out" if out else name)
                return returned(tuple(scan(x, dim, out=out))) if dtype is None else None
            if not in_place:
                return scan(x, dim, dtype=dtype, out=out)
            if dtype in (None, x.dtype) and out is None and not x.requires_grad:
                return scan(x, dim, out=x)
        return None

    return call


def _is_ours(x: Any, dim: Any, *outs: Any) -> bool:
    if not isinstance(x, Tensor) or type(dim) is not int:
        return False
    if not (x.is_cuda or SHARDED or _is_emulated()) or _is_computed_again():
        return False
    return all(out is None or isinstance(out, Tensor) for out in outs)


def _is_computed_again() -> bool:
    """Whether a checkpoint is recording saved tensors: it recomputes them outside the block, and expects the same."""
    if is_compiling():  # a checkpoint is a part of the graph then
        return False
    hooks = saved_tensors_hooks(True)  # also while tracing
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


@at_tracing
def _is_emulated() -> bool:
    return emulator.ACTIVE.get() is not None


_OURS: dict[Any, Callable[..., Any]] = {}
for _row in BUILT_IN.values():
    if _row.function and _row.function == _row.torch_name:
        _OURS |= dict.fromkeys((getattr(each, _row.function) for each in (torch, Tensor)), _replacement(_row))
        if in_place := getattr(Tensor, f"{_row.function}_", None):
            _OURS[in_place] = _replacement(_row, in_place=True)
