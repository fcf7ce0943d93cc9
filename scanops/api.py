"""The functions people call."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from scanops import emulation
from scanops.request import Request, is_memory, make_request
from scanops.runtime import remembered, run

__all__ = ["cumprod", "cumsum", "scan"]


def cumsum(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] + x[1] + ... + x[i]`` along ``dim``: ``torch.cumsum``, with a direction, a mask and an end.

    Exactly ``scan(x, "sum", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumsum(torch.tensor([1., 2., 3.]), 0, reverse=True, exclusive=True)
        tensor([5., 3., 0.])
    """
    return scan(x, "sum", dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, out=out)


def cumprod(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``: ``torch.cumprod``, with a direction, a mask and an end.

    Exactly ``scan(x, "prod", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, mask=torch.tensor([True, False, True]))
        tensor([2., 2., 8.])
    """
    return scan(x, "prod", dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, out=out)


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, for every line of ``x``, in one pass over memory.

    ``exclusive`` leaves x[i] out of y[i], so that the first result is the identity; ``reverse`` counts i from the last
    item. CUDA tensors go through a kernel generated for exactly this request, built at its first use and kept; CPU
    tensors, and code under ``torch.compile`` or ``torch.func``, through torch's own operations with the same results.

    Args:
        x: a tensor of any shape and strides. bool and integers of up to 64 bits, float16, bfloat16, float32, float64.
        op: ``"sum"`` or ``"prod"``.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: broadcasts to ``x.shape``; it is never copied. A bool mask selects: an element where it is False counts as
            the identity whatever its value, NaN included. A numeric mask multiplies, as ``x * mask`` does.
        reverse: scan from the last item to the first.
        exclusive: leave the item itself out.
        dtype: of the result; the elements are converted to it before they are scanned. By default x's dtype, or
            torch's promotion of ``x * mask``; bool and integers give int64. Half types accumulate in float32.
        out: where to put the result: of x's shape, on x's device; its dtype is the result's. It may be x itself.

    Returns:
        A contiguous tensor of x's shape.

    Raises:
        UnsupportedRequest: anything above that is not as described; DimensionOutOfRange, its subclass, for ``dim``.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.scan(torch.tensor([1, 2, 3]), "sum", 0, exclusive=True)
        tensor([0, 1, 3])

    Source: one-pass scans follow Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
    (2016); rows split over blocks fold published tile totals in a fixed order instead, so that the bits of a result
    never depend on timing.
    """
    eager = _runs_kernels(x, mask)
    key = None
    if eager and out is None and _repeats(x, op, dim, mask, reverse, exclusive, dtype):
        key, launcher = remembered(x, op, dim, mask, reverse, exclusive, dtype)
        if launcher is not None:
            result = torch.empty(x.shape, dtype=launcher.dtype, device=x.device)
            launcher(x, mask, result)
            return result
    request = make_request(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, out=out)
    if not eager:
        result = _composed(request, request.x, request.mask)
        return result if out is None else out.copy_(result)
    if request.differentiable:
        return _Differentiable.apply(x, mask, request)  # type: ignore[no-any-return, no-untyped-call]
    return run(request, key)


def _runs_kernels(x: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether this call is eager code on tensors a kernel can read."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if not is_memory(x) or not (mask is None or is_memory(mask)):
        return False
    return x.is_cuda or emulation.active() is not None or x.device.type not in ("cpu", "meta")


def _repeats(
    x: torch.Tensor, op: object, dim: object, mask: object, reverse: object, exclusive: object, dtype: object
) -> bool:
    """Whether a call may be served by what an equal call before it found: plain CUDA tensors, no gradient wanted.

    Options of other types than they should have are left to the checks: True is equal to 1, and a list has no hash.
    """
    if not x.is_cuda or x.layout != torch.strided or type(dim) is not int:
        return False
    if type(op) is not str or type(reverse) is not bool or type(exclusive) is not bool:
        return False
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        return False
    if mask is None:
        return not (x.requires_grad and torch.is_grad_enabled())
    if type(mask) is not torch.Tensor or mask.ndim == 0 or mask.layout != torch.strided:
        return False
    return not ((x.requires_grad or mask.requires_grad) and torch.is_grad_enabled())


def _composed(request: Request, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if x.ndim == 0:
        flat_mask = None if mask is None else mask.reshape(1)
        return _composed(request, x.reshape(1), flat_mask).reshape(())
    from scanops import fallback  # kernels do without it

    return fallback.scan(
        x,
        request.op,
        request.dim,
        mask=mask,
        reverse=request.reverse,
        exclusive=request.exclusive,
        dtype=request.dtype,
    )


class _Differentiable(torch.autograd.Function):
    """The kernel forwards; backwards the gradient of torch's own operations, which is right to any order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor | None, request: Request) -> torch.Tensor:
        ctx.save_for_backward(x, mask)
        ctx.request = request
        return run(request)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        again = torch.is_grad_enabled()  # whether a second derivative was asked for
        with torch.enable_grad():
            # A view each, because x and mask may be one tensor whose two gradients autograd adds up later.
            views = [t.view_as(t) if need else t for t, need in zip((x, mask), needs, strict=True)]
            y = _composed(ctx.request, *views)
            wanted = [view for view, need in zip(views, needs, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again))
        return (*(next(found) if need else None for need in needs), None)  # type: ignore[return-value]
