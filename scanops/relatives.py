"""The public scans that pass their keywords on, ``cumprod`` and its like, and reductions by key."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from scanops.api import called, cumsum, scan
from scanops.errors import UnsupportedRequest
from scanops.keywords import Ends, Final, Pair, ValuesAndIndices
from scanops.ops.dispatch import plain_name
from scanops.requests import checks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from scanops.codegen.operators import Operator
    from scanops.keywords import Keywords, Variant

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "reduce_by_key"]


Function = TypeVar("Function", bound=Callable[..., Any])


def shown_as(other: Callable[..., Any], without: tuple[str, ...]) -> Callable[[Function], Function]:
    """Return a decorator: help() and editors show the keywords of ``other``, to which a function passes its own on."""

    def decorated(function: Function) -> Function:
        kept = [each for name, each in signature(other).parameters.items() if name not in without]
        function.__signature__ = signature(other).replace(parameters=kept)  # type: ignore[attr-defined]
        return function

    return decorated


@overload
def cumprod(x: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Keywords]) -> Pair: ...
@overload
def cumprod(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Keywords]) -> Tensor: ...
@shown_as(cumsum, without=("chunk", "modulo"))
def cumprod(x: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``: ``torch.cumprod``, with a direction, a mask and an end.

    Exactly ``scan(x, "prod", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, mask=torch.tensor([True, False, True]))
        tensor([2., 2., 8.])
    """
    return scan(x, "prod", dim, **options)  # type: ignore[no-any-return]


@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Keywords]) -> Pair: ...
@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Keywords]) -> Tensor: ...
@shown_as(cumsum, without=("chunk", "modulo"))
def logcumsumexp(x: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))`` along ``dim``: ``torch.logcumsumexp``.

    Exactly ``scan(x, "logcumsumexp", dim, ...)``; see there. It takes floating and complex dtypes. Intermediate
    values do not overflow. Rules for infinities, NaN and complex items: docs/operators/logcumsumexp.md.

    Example:
        >>> import torch, scanops
        >>> scanops.logcumsumexp(torch.tensor([100., 100., -100.]), 0)
        tensor([100.0000, 100.6931, 100.6931])

    Source: the (greatest, scaled sum) pair is the online normaliser of Milakov and Gimelshein, "Online normalizer
    calculation for softmax" (2018); here the sum leaves out the maximum's own 1, which preserves small terms.
    """
    return scan(x, "logcumsumexp", dim, **options)  # type: ignore[no-any-return]


def _extreme(
    op: str,
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: Final = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    out: Pair | None = None,
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    if not (out is None or (isinstance(out, tuple | list) and len(out) == 2)):
        raise UnsupportedRequest(
            f"{op}: out must be a pair of tensors",
            allowed="a pair of tensors: for values and for indices",
            value=f"out is a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple | list) else ""),
            hint="pass out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))",
        )
    tensors = (x, mask, None, segment_starts, offsets, initial)
    options = (op, dim, reverse, exclusive, return_final, None, None)  # no dtype, the default accumulator
    found: Any = called(tensors, tuple(out or (None, None)), False, options)
    pair = ValuesAndIndices(*found[:2])
    return (pair, found[2]) if return_final else pair


@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Ends, out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
@shown_as(_extreme, without=("op",))
def cummax(x: Tensor, dim: int, **options: Any) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """``values[i] = max(x[0], x[1], ..., x[i])`` along ``dim``, and where it is: ``torch.cummax``.

    Of equal items the last one's index is given; a NaN is greater than anything, and of NaNs the last one counts.
    ``reverse`` scans from the last item to the first, so that "last" is the one that lies first; indices are those of x
    either way. Where no item has been met (all are masked out, or the scan is exclusive) the value is the dtype's
    lowest, -inf for a floating one, and the index -1. Values only, and a ``dtype``: ``scan(x, "max", dim)``.

    Args:
        x, dim, mask, reverse, exclusive, initial, return_final, segment_starts, offsets: as for ``scan``; bool is
            allowed as well. Indices count from the beginning of x; an ``initial`` value that none exceeds has -1.
        out: two tensors of x's shape: of the result's dtype, which is that of x or of ``x * mask``, and of int64.

    Returns:
        A named tuple of contiguous tensors of x's shape: ``values``, and ``indices`` of int64; with ``return_final`` a
        pair of that and of the last value of each line.

    Raises:
        UnsupportedRequest, BuildFailure: as ``scan`` does.

    Example:
        >>> import torch, scanops
        >>> scanops.cummax(torch.tensor([1., 3., 3., 2.]), 0).indices
        tensor([0, 1, 2, 2])

    Source: pairs of a value and its index under the order of both are associative: Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """
    return _extreme("cummax", x, dim, **options)


@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Ends, out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
@shown_as(_extreme, without=("op",))
def cummin(x: Tensor, dim: int, **options: Any) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """``values[i] = min(x[0], x[1], ..., x[i])`` along ``dim``, and where it is: ``torch.cummin``.

    As ``cummax`` with the order reversed: NaN is less than every number, and the value before the first item is the
    dtype's highest.

    Example:
        >>> import torch, scanops
        >>> scanops.cummin(torch.tensor([2., 3., 1.]), 0, reverse=True)
        ValuesAndIndices(values=tensor([1., 1., 1.]), indices=tensor([2, 2, 2]))
    """
    return _extreme("cummin", x, dim, **options)


def reduce_by_key(
    keys: Tensor,
    x: Tensor,
    op: str | Operator,
    dim: int = 0,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(unique, y)``: each run of equal keys once, and the reduction by ``op`` of the items of x of that run.

    ``y[k] = x[i] op x[i+1] op ... op x[j]`` along ``dim`` where keys[i] to keys[j] are the k-th run, as
    ``thrust::reduce_by_key``; of sorted keys each is unique. One pass reads the keys, one scan reads x and writes the
    carries-out of segments, and results that are dropped: some two copies of x. It waits for the GPU twice, for the
    number of runs and to check their offsets; ``torch.compile`` breaks the graph there.

    Args:
        keys: one dimension, a key for each item of x along ``dim``, on x's device.
        x, op, mask, dtype: as for ``scan``. Reductions have gradients as scans do.
        dim: the dimension of x that is reduced to one item for each run.

    Example:
        >>> import torch, scanops
        >>> scanops.reduce_by_key(torch.tensor([7, 7, 9]), torch.tensor([1, 2, 3]), "sum")
        (tensor([7, 9]), tensor([3, 3]))
    """
    checks.check_tensor("reduce_by_key", "keys", keys)
    checks.check_tensor("reduce_by_key", "x", x)
    dim = checks.check_dim("reduce_by_key", x.shape, dim)
    if keys.ndim != 1 or not x.ndim or len(keys) != x.shape[dim]:
        raise UnsupportedRequest(
            "reduce_by_key: keys must be one for each item along dim",
            allowed=f"keys of one dimension and x.shape[{dim}] items",
            value=f"keys.shape={tuple(keys.shape)}, x.shape={tuple(x.shape)}",
            hint="pass keys.flatten(), or another dim",
        )
    checks.check_device("reduce_by_key", "keys", keys, x)
    unique, counts = torch.unique_consecutive(keys, return_counts=True)
    # and an empty run, as offsets name one segment at least
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0), counts.new_full((1,), len(keys))])
    options = (plain_name(op), dim, False, False, "segments", dtype, None)
    y, final = called((x, mask, None, None, offsets, None), (None,), False, options)
    return unique, final.narrow(dim, 0, len(unique)).to(y.dtype)
