"""``with scanops.patch_torch():`` torch's own five scans computed by scanops, in code that cannot be edited."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from scanops import api, emulator
from scanops.errors import UnsupportedRequest
from scanops.requests.call import at_tracing

__all__ = ["patch_torch"]


@contextlib.contextmanager
def patch_torch() -> Iterator[None]:
    """Run torch's own five scans by scanops inside the block, for code that cannot be edited.

    ``torch.cumsum``, ``cumprod``, ``cummax``, ``cummin`` and ``logcumsumexp``, the tensor methods of these names,
    ``cumsum_`` and ``cumprod_`` are computed by scanops where the tensor is on a GPU, or on the CPU inside
    ``scanops.emulate()``, with ``dtype=``, ``out=`` and every keyword torch takes. Results, gradients and
    ``torch.return_types`` are torch's. What scanops refuses torch computes itself, or raises its own error for: an
    ``out`` of another shape, dimensions by name, an invalid call.

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


def _plain(scan: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    """Return a scan with torch's parameters and names for them; it returns None where torch is to compute."""

    def call(
        input: Any = None, dim: Any = None, dtype: Any = None, *, axis: Any = None, self: Any = None, out: Any = None
    ) -> Tensor | None:
        x, dim = input if self is None else self, axis if dim is None else dim
        if not _is_ours(x, dim, out):
            return None
        with contextlib.suppress(UnsupportedRequest):
            return scan(x, dim, dtype=dtype, out=out)
        return None

    return call


def _extreme(name: str) -> Callable[..., Any]:
    scan, result, into = (
        getattr(api, name),
        getattr(torch.return_types, name),
        getattr(torch.return_types, f"{name}_out"),
    )

    def call(input: Any = None, dim: Any = None, *, axis: Any = None, self: Any = None, out: Any = None) -> Any:
        x, dim = input if self is None else self, axis if dim is None else dim
        if not _is_ours(x, dim, *(out or ())):
            return None
        with contextlib.suppress(UnsupportedRequest):
            return (into if out else result)(tuple(scan(x, dim, out=out)))
        return None

    return call


def _in_place(scan: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def call(self: Any, dim: Any = None, dtype: Any = None, *, axis: Any = None) -> Tensor | None:
        dim = axis if dim is None else dim
        if not _is_ours(self, dim) or dtype not in (None, self.dtype) or self.requires_grad:
            return None
        with contextlib.suppress(UnsupportedRequest):
            return scan(self, dim, out=self)
        return None

    return call


def _is_ours(x: Any, dim: Any, *outs: Any) -> bool:
    if not isinstance(x, Tensor) or type(dim) is not int:
        return False
    if not (x.is_cuda or _is_emulated()) or _is_computed_again():
        return False
    return all(out is None or isinstance(out, Tensor) for out in outs)


def _is_computed_again() -> bool:
    """Whether a checkpoint is recording saved tensors: it recomputes them outside the block, and expects the same."""
    if is_compiling():  # a checkpoint is a part of the graph then
        return False
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # also while tracing
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


@at_tracing
def _is_emulated() -> bool:
    return emulator.active() is not None


def _ours() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        call = _plain(getattr(api, name))
        found |= {getattr(torch, name): call, getattr(Tensor, name): call}
    for name in ("cumsum", "cumprod"):
        found[getattr(Tensor, f"{name}_")] = _in_place(getattr(api, name))
    for name in ("cummax", "cummin"):
        call = _extreme(name)
        found |= {getattr(torch, name): call, getattr(Tensor, name): call}
    return found


_OURS = _ours()
