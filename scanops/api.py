"""The functions people call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from scanops import emulation
from scanops.codegen.operators import OPERATORS
from scanops.errors import UnsupportedRequest
from scanops.request import Request, is_memory, make_request
from scanops.runtime import remembered, run

__all__ = ["ValuesAndIndices", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "scan"]


class ValuesAndIndices(NamedTuple):
    """What ``cummax`` and ``cummin`` return, as torch's own do."""

    values: torch.Tensor
    indices: torch.Tensor


def cumsum(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] + x[1] + ... + x[i]`` along ``dim``: ``torch.cumsum``, with a direction, a mask and an end.

    Exactly ``scan(x, "sum", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumsum(torch.tensor([1., 2., 3.]), 0, reverse=True, exclusive=True)
        tensor([5., 3., 0.])
    """
    return scan(
        x, "sum", dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, accumulate=accumulate, out=out
    )


def cumprod(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``: ``torch.cumprod``, with a direction, a mask and an end.

    Exactly ``scan(x, "prod", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, mask=torch.tensor([True, False, True]))
        tensor([2., 2., 8.])
    """
    return scan(
        x, "prod", dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype, accumulate=accumulate, out=out
    )


def logcumsumexp(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))`` along ``dim``: ``torch.logcumsumexp``.

    Exactly ``scan(x, "logcumsumexp", dim, ...)``; see there. It takes floating and complex dtypes. Nothing overflows
    on the way: a stretch is kept as its greatest term and the others as fractions of that. An item of -inf, or masked
    out, adds nothing; where there is nothing else the result is -inf. From the first inf on it is inf, from the first
    NaN on NaN.
    Complex items compare by their real parts. The angle of a result is that of the greatest item, the first of equals,
    plus at most half a turn; torch's may be whole turns further, as it depends on the order torch adds in. Where the
    real part is infinite there is no angle: the imaginary part means nothing.

    Example:
        >>> import torch, scanops
        >>> scanops.logcumsumexp(torch.tensor([1000., 1000., -1000.]), 0)
        tensor([1000.0000, 1000.6931, 1000.6931])

    Source: the (greatest, scaled sum) pair is the online normaliser of Milakov and Gimelshein, "Online normalizer
    calculation for softmax" (2018); here the greatest term's own 1 is left out of the sum, which keeps its small part.
    """
    return scan(
        x,
        "logcumsumexp",
        dim,
        mask=mask,
        reverse=reverse,
        exclusive=exclusive,
        dtype=dtype,
        accumulate=accumulate,
        out=out,
    )


def cummax(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> ValuesAndIndices:
    """``values[i] = max(x[0], x[1], ..., x[i])`` along ``dim``, and where it is: ``torch.cummax``.

    Of equal items the last one's index is given; a NaN is greater than anything, and of NaNs the last one counts.
    ``reverse`` scans from the last item to the first, so that "last" is the one that lies first; indices are those of x
    either way. Where no item has been met (all are masked out, or the scan is exclusive) the value is the dtype's
    lowest, -inf for a floating one, and the index -1. Values only, and a ``dtype``: ``scan(x, "max", dim)``.

    Args:
        x, dim, mask, reverse, exclusive: as for ``scan``; bool is allowed as well.
        out: two tensors of x's shape: of the result's dtype, which is that of x or of ``x * mask``, and of int64.

    Returns:
        A named tuple of contiguous tensors of x's shape: ``values``, and ``indices`` of int64.

    Raises:
        UnsupportedRequest, BuildFailure: as ``scan`` does.

    Example:
        >>> import torch, scanops
        >>> scanops.cummax(torch.tensor([1., 3., 3., 2.]), 0).indices
        tensor([0, 1, 2, 2])

    Source: pairs of a value and its index under the order of both are associative: Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """
    return _extreme(x, "cummax", dim, mask, reverse, exclusive, out)


def cummin(
    x: torch.Tensor,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> ValuesAndIndices:
    """``values[i] = min(x[0], x[1], ..., x[i])`` along ``dim``, and where it is: ``torch.cummin``.

    As ``cummax`` with the order turned round; a NaN is less than anything, and where no item has been met the value is
    the dtype's highest.

    Example:
        >>> import torch, scanops
        >>> scanops.cummin(torch.tensor([2., 3., 1.]), 0, reverse=True)
        ValuesAndIndices(values=tensor([1., 1., 1.]), indices=tensor([2, 2, 2]))
    """
    return _extreme(x, "cummin", dim, mask, reverse, exclusive, out)


def _extreme(
    x: torch.Tensor,
    op: str,
    dim: int,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    out: tuple[torch.Tensor, torch.Tensor] | None,
) -> ValuesAndIndices:
    if not (out is None or (isinstance(out, tuple | list) and len(out) == 2)):
        raise UnsupportedRequest(
            f"{op} into an out that is no pair",
            allowed="a pair of tensors: for values and for indices",
            value=f"out={out!r}",
            hint="pass out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))",
        )
    values, indices = out or (None, None)
    return ValuesAndIndices(*_outputs(x, op, dim, mask, reverse, exclusive, None, values, indices))


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, for every line of ``x``, in one pass over memory.

    ``exclusive`` leaves x[i] out of y[i], so that the first result is the identity; ``reverse`` counts i from the last
    item. CUDA tensors go through a kernel generated for exactly this request, built at its first use and kept; CPU
    tensors, and code under ``torch.compile`` or ``torch.func``, through torch's own operations with the same results.

    Args:
        x: a tensor of any shape and strides. bool, integers of up to 64 bits with a sign and without, float16,
            bfloat16, float32, float64, complex64, complex128, and the 8-bit floating types float8_e4m3fn, float8_e5m2,
            float8_e4m3fnuz and float8_e5m2fnuz, which are scanned in float32.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"logcumsumexp"``, ``"bitwise_and"``, ``"bitwise_or"``,
            ``"bitwise_xor"``, ``"logical_and"`` or ``"logical_or"``. For indices there are ``cummax`` and ``cummin``.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: broadcasts to ``x.shape``; it is never copied. A bool mask selects: an element where it is False counts as
            the identity whatever its value, NaN included. A numeric mask multiplies, as ``x * mask`` does.
        reverse: scan from the last item to the first.
        exclusive: leave the item itself out.
        dtype: of the result; the elements are converted to it before they are scanned. By default x's dtype, or
            torch's promotion of ``x * mask``, for 8-bit floating types float32; sums and products of bool and integers
            give int64, logical operators give bool. Half types accumulate in float32. No result is of an 8-bit
            floating type.
        accumulate: what to compute in. None for the default, which is the result's dtype and for half types float32; a
            wider one, such as torch.float64 for float32 results, to which elements are then converted; or
            ``"compensated"`` for sums of floating dtypes, which keeps beside each sum what its additions have lost: the
            error is then at most u |y[i]| + (d u)^2 (|x[0]| + ... + |x[i]|) before the last rounding, with the
            accumulator's unit roundoff u and d additions that an item passes through, some tens; a plain sum has d u in
            the second term.
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
    never depend on timing. Compensated sums join pairs of a sum and its error by Knuth's TwoSum (The Art of Computer
    Programming, 4.2.2); the bound is that of Ogita, Rump and Oishi, "Accurate Sum and Dot Product" (2005), for a tree.
    """
    if type(op) is str and op in OPERATORS and OPERATORS[op].indices:
        raise UnsupportedRequest(
            f"a scan with {op!r} that returns one tensor",
            allowed=", ".join(repr(name) for name, row in OPERATORS.items() if not row.indices),
            value=f"op={op!r}",
            hint=f"call scanops.{op}, which returns values and indices",
        )
    return _outputs(x, op, dim, mask, reverse, exclusive, dtype, out, accumulate=accumulate)[0]


def _outputs(
    x: torch.Tensor,
    op: str,
    dim: int,
    mask: torch.Tensor | None,
    reverse: bool,
    exclusive: bool,
    dtype: torch.dtype | None,
    out: torch.Tensor | None,
    indices: torch.Tensor | None = None,
    accumulate: torch.dtype | str | None = None,
) -> tuple[torch.Tensor, ...]:
    """The result, and its indices where the operator gives them."""
    eager = _runs_kernels(x, mask)
    key = None
    if eager and out is None and indices is None and _repeats(x, op, dim, mask, reverse, exclusive, dtype, accumulate):
        key, launcher = remembered(x, op, dim, mask, reverse, exclusive, dtype, accumulate)
        if launcher is not None:
            results = tuple(torch.empty(x.shape, dtype=each, device=x.device) for each in launcher.dtypes)
            launcher(x, mask, *results)
            return results
    request = make_request(
        x,
        op,
        dim,
        mask=mask,
        reverse=reverse,
        exclusive=exclusive,
        dtype=dtype,
        out=out,
        indices=indices,
        accumulate=accumulate,
    )
    if not eager:
        composed = _composed(request, request.x, request.mask)
        pairs = zip(composed, request.outs, strict=True)
        return tuple(result if place is None else place.copy_(result) for result, place in pairs)
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
    x: torch.Tensor,
    op: object,
    dim: object,
    mask: object,
    reverse: object,
    exclusive: object,
    dtype: object,
    accumulate: object,
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
    if not (accumulate is None or isinstance(accumulate, torch.dtype) or type(accumulate) is str):
        return False
    if mask is None:
        return not (x.requires_grad and torch.is_grad_enabled())
    if type(mask) is not torch.Tensor or mask.ndim == 0 or mask.layout != torch.strided:
        return False
    return not ((x.requires_grad or mask.requires_grad) and torch.is_grad_enabled())


def _composed(request: Request, x: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    if x.ndim == 0:
        flat_mask = None if mask is None else mask.reshape(1)
        return tuple(result.reshape(()) for result in _composed(request, x.reshape(1), flat_mask))
    from scanops import fallback  # kernels do without it

    return fallback.outputs(
        x,
        request.op,
        request.dim,
        mask=mask,
        reverse=request.reverse,
        exclusive=request.exclusive,
        dtype=request.dtype,
        accumulate=request.accumulate,
    )


class _Differentiable(torch.autograd.Function):
    """The kernel forwards; backwards the gradient of torch's own operations, which is right to any order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor | None, request: Request) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(x, mask)
        ctx.request = request
        results = run(request)
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        again = torch.is_grad_enabled()  # whether a second derivative was asked for
        with torch.enable_grad():
            # A view each, because x and mask may be one tensor whose two gradients autograd adds up later.
            views = [t.view_as(t) if need else t for t, need in zip((x, mask), needs, strict=True)]
            y = _composed(ctx.request, *views)[0]
            wanted = [view for view, need in zip(views, needs, strict=True) if need]
            found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again))
        return (*(next(found) if need else None for need in needs), None)  # type: ignore[return-value]
