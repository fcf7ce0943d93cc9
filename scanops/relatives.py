"""The public functions ``cumprod``, ``logcumsumexp``, ``cummax``, ``cummin`` and ``reduce_by_key``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from scanops.api import make_call, run_scan
from scanops.errors import UnsupportedRequest
from scanops.fallback.reductions import reduce_segments
from scanops.keywords import ABSENT, Ends, Final, Pair, ValuesAndIndices, list_keywords_of, name_results
from scanops.requests import checks
from scanops.requests.arguments import plain_name, resolve_call
from scanops.requests.call import Call
from scanops.requests.placement import OPEN
from scanops.requests.request import Inputs, check_request
from scanops.requests.torch_state import is_followed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from scanops.keywords import Chunks, Variant

__all__ = ["cummax", "cummin", "cumprod", "logcumsumexp", "reduce_by_key"]


@overload
def cumprod(x: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Chunks]) -> Pair: ...
@overload
def cumprod(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Chunks]) -> Tensor: ...
@overload
def cumprod(x: Tensor, dim: int, *, return_final: Final, **options: Unpack[Chunks]) -> Tensor | Pair: ...
@list_keywords_of(make_call)
def cumprod(x: Tensor, dim: int, *, out: Tensor | None = None, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Return the cumulative product of ``x`` along ``dim``: ``y[i] = x[0] * x[1] * ... * x[i]``.

    Like ``torch.cumprod``, with a direction, a mask, segments, carries and a choice of accumulator, in one pass over
    memory.

    Arguments that ``scanops.cumsum`` has are as there, where they are described in full.

    Args:
        x: the input, of any shape and strides: bool, integers, floats or complex numbers. The 8-bit floats
            ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` and ``float8_e5m2fnuz`` are scanned in float32.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: a tensor that broadcasts to ``x.shape``: a bool one selects items, a floating or complex one multiplies.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``: the first result is the identity of the operator, or ``initial``.
        initial: the carry-in, in place of the identity: a number, or one value for each line or segment.
        return_final: also return the carry-out of each line, or with ``"segments"`` of each segment.
        complete: return n + 1 results for n items: the carry-in or the identity, then the inclusive results.
        segment_starts: head flags: True where a segment begins and the scan starts again.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``.
        chunk: start again every ``chunk`` items of a line or segment.
        dtype: the dtype of the result, to whose accumulator items are converted before they are scanned.
        accumulate: the dtype to compute in, or ``"compensated"``.
        out: a tensor to write the result to: of the result's shape, on x's device, with the dtype that the result
            is to have. It may be x itself.

    Returns:
        A contiguous tensor of x's shape, or with ``complete`` of one more item along ``dim``. With ``return_final``
        a pair of that and of the carry-out, which has x's shape without ``dim``, or with the segments in its place.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, mask=torch.tensor([True, False, True]))
        tensor([2., 2., 8.])
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, exclusive=True)
        tensor([1., 2., 6.])

    Gradient: by kernels, with respect to x, a numeric mask and ``initial``; right where items are 0, without a
    division.

    Source: one-pass scans follow Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
    (2016); rows split over blocks combine published tile aggregates in a fixed order, whatever the timing.
    """
    return run_scan("prod", x, None, dim, (out,), options)  # type: ignore[no-any-return]


@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Chunks]) -> Pair: ...
@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Chunks]) -> Tensor: ...
@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Final, **options: Unpack[Chunks]) -> Tensor | Pair: ...
@list_keywords_of(make_call)
def logcumsumexp(x: Tensor, dim: int, *, out: Tensor | None = None, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Return ``y[i] = log(exp(x[0]) + exp(x[1]) + ... + exp(x[i]))`` along ``dim``.

    Like ``torch.logcumsumexp``, with a direction, a mask, segments and carries, in one pass over memory. Intermediate
    values do not overflow. Rules for infinities, NaN and complex items: docs/operators/logcumsumexp.md.

    Arguments that ``scanops.cumsum`` has are as there, where they are described in full.

    Args:
        x: the input, of any shape and strides, of a floating or complex dtype.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: a tensor that broadcasts to ``x.shape``: a bool one selects items, a floating or complex one multiplies.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``: the first result is the identity of the operator, or ``initial``.
        initial: the carry-in, in place of the identity: a number, or one value for each line or segment.
        return_final: also return the carry-out of each line, or with ``"segments"`` of each segment.
        complete: return n + 1 results for n items: the carry-in or the identity, then the inclusive results.
        segment_starts: head flags: True where a segment begins and the scan starts again.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``.
        chunk: start again every ``chunk`` items of a line or segment.
        dtype: the dtype of the result, to whose accumulator items are converted before they are scanned.
        accumulate: the dtype to compute in; by default the result's, float32 for float16 and bfloat16.
        out: a tensor to write the result to: of the result's shape, on x's device, with the dtype that the result
            is to have. It may be x itself.

    Returns:
        A contiguous tensor of x's shape, or with ``complete`` of one more item along ``dim``. With ``return_final``
        a pair of that and of the carry-out, which has x's shape without ``dim``, or with the segments in its place.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.logcumsumexp(torch.tensor([100., 100., -100.]), 0)
        tensor([100.0000, 100.6931, 100.6931])

    Gradient: by one kernel, with respect to x, a numeric mask and ``initial``; x and the result are saved, as torch
    saves them.

    Source: the (greatest, scaled sum) pair is the online normaliser of Milakov and Gimelshein, "Online normalizer
    calculation for softmax" (2018); here the sum leaves out the maximum's own 1, which preserves small terms.
    """
    return run_scan("logcumsumexp", x, None, dim, (out,), options)  # type: ignore[no-any-return]


@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Ends, out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Final, out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]: ...
@list_keywords_of(make_call, *ABSENT["cummax"])
def cummax(
    x: Tensor, dim: int, *, out: tuple[Tensor, Tensor] | None = None, **options: Any
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """Return the cumulative maximum of ``x`` along ``dim``, and where it is: ``values[i] = max(x[0], ..., x[i])``.

    Like ``torch.cummax``, with a direction, a mask, segments and carries, in one pass over memory. Of equal items the
    index of the last one is given, as in torch. A NaN is greater than every number, and of several the last one counts.
    With ``reverse`` the scan goes from the last item to the first, so that the last of equal items is the one with the
    lowest index. Where no item has been met, because all are masked out or the scan is exclusive, the value is the
    lowest of the dtype, -inf for a floating one, and the index -1. For values alone, and for ``dtype``:
    ``scanops.scan(x, "max", dim)``.

    Arguments that ``scanops.cumsum`` has are as there, where they are described in full.

    Args:
        x: the input, of any shape and strides: bool, integers, floats or complex numbers. The 8-bit floats
            ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` and ``float8_e5m2fnuz`` are scanned in float32.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: a tensor that broadcasts to ``x.shape``: a bool one selects items, a floating or complex one multiplies.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``: the first result is the identity of the operator, or ``initial``.
        initial: the carry-in, in place of the identity: a number, or one value for each line or segment.
        return_final: also return the carry-out of each line, or with ``"segments"`` of each segment.
        segment_starts: head flags: True where a segment begins and the scan starts again.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``.
        out: a pair of tensors of x's shape on its device, for values and indices: of the result's dtype, which is
            that of x or of ``x * mask``, and of int64.

    Returns:
        A named tuple of contiguous tensors of x's shape: ``values``, and ``indices`` of int64. With
        ``return_final`` a pair of that and of the last value of each line, or of each segment.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.cummax(torch.tensor([1., 3., 3., 2.]), 0).indices
        tensor([0, 1, 2, 2])

    Gradient: each gradient goes to the item that the index names, by one kernel that reads the indices alone.

    Source: pairs of a value and its index under the order of both are associative: Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """
    return _run_indexed("cummax", x, dim, out, options)


@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Ends, out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Final, out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]: ...
@list_keywords_of(make_call, *ABSENT["cummin"])
def cummin(
    x: Tensor, dim: int, *, out: tuple[Tensor, Tensor] | None = None, **options: Any
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """Return the cumulative minimum of ``x`` along ``dim``, and where it is: ``values[i] = min(x[0], ..., x[i])``.

    Like ``torch.cummin``, with a direction, a mask, segments and carries, in one pass over memory. Of equal items the
    index of the last one is given, as in torch. A NaN is less than every number, and of several the last one counts.
    With ``reverse`` the scan goes from the last item to the first, so that the last of equal items is the one with the
    lowest index. Where no item has been met, because all are masked out or the scan is exclusive, the value is the
    highest of the dtype, inf for a floating one, and the index -1. For values alone, and for ``dtype``:
    ``scanops.scan(x, "min", dim)``.

    Arguments that ``scanops.cumsum`` has are as there, where they are described in full.

    Args:
        x: the input, of any shape and strides: bool, integers, floats or complex numbers. The 8-bit floats
            ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` and ``float8_e5m2fnuz`` are scanned in float32.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: a tensor that broadcasts to ``x.shape``: a bool one selects items, a floating or complex one multiplies.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``: the first result is the identity of the operator, or ``initial``.
        initial: the carry-in, in place of the identity: a number, or one value for each line or segment.
        return_final: also return the carry-out of each line, or with ``"segments"`` of each segment.
        segment_starts: head flags: True where a segment begins and the scan starts again.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``.
        out: a pair of tensors of x's shape on its device, for values and indices: of the result's dtype, which is
            that of x or of ``x * mask``, and of int64.

    Returns:
        A named tuple of contiguous tensors of x's shape: ``values``, and ``indices`` of int64. With
        ``return_final`` a pair of that and of the last value of each line, or of each segment.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.cummin(torch.tensor([2., 3., 1.]), 0, reverse=True)
        ValuesAndIndices(values=tensor([1., 1., 1.]), indices=tensor([2, 2, 2]))

    Gradient: each gradient goes to the item that the index names, by one kernel that reads the indices alone.

    Source: pairs of a value and its index under the order of both are associative: Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """
    return _run_indexed("cummin", x, dim, out, options)


def _run_indexed(
    op: str, x: Tensor, dim: int, out: Pair | None, options: dict[str, Any]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    if not (out is None or (isinstance(out, tuple | list) and len(out) == 2)):
        raise UnsupportedRequest(
            f"{op}: out must be a pair of tensors",
            allowed="a pair of tensors: for values and for indices",
            value=f"out is a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple | list) else ""),
            hint="pass out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))",
        )
    found = run_scan(op, x, None, dim, tuple(out or (None, None)), options)
    return name_results(found)


def reduce_by_key(
    keys: Tensor,
    x: Tensor,
    op: str,
    dim: int = 0,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each run of equal keys once, and the reduction by ``op`` of the items of ``x`` that belong to it.

    ``y[k] = x[i] op x[i+1] op ... op x[j]`` along ``dim``, where keys[i] to keys[j] are the k-th run, as
    ``thrust::reduce_by_key`` does. Of sorted keys each occurs in one run. One pass reads the keys, and one scan reads x
    and writes the totals of segments, and results that are dropped: about the time of two copies of x. It waits for
    the GPU twice, for the number of runs and to check their offsets; ``torch.compile`` breaks the graph there. On a
    CPU PyTorch's reductions by index compute sums, products and extrema; sums and products of floats are accumulated
    in float64.

    Args:
        keys: one dimension, a key for each item of x along ``dim``, on x's device.
        x: the items to reduce, of any shape and strides.
        op: the name of an operator with one result, such as ``"sum"`` or ``"max"``.
        dim: the dimension of x that is reduced to one item for each run.
        mask: a tensor that broadcasts to ``x.shape``. Where a bool mask is False, the item is left out.
        dtype: the dtype of the result; by default that of a scan of x.

    Returns:
        A pair: the key of each run, and the reductions, of x's shape with the runs in place of ``dim``.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        BuildFailure: the kernel is not in the store and could not be built.

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
    op = plain_name(op)
    unique, counts = torch.unique_consecutive(keys, return_counts=True)
    # and an empty run, as offsets name one segment at least
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0), counts.new_full((1,), len(keys))])
    given = Inputs(x, mask, offsets=offsets)
    call, eager = resolve_call(Call(op, dim, final=True, per_segment=True, dtype=dtype), given, (None,))
    if not (eager or OPEN or is_followed(given.flat) or given.differentiates):
        found = reduce_segments(check_request(call, given), counts)
        if found is not None:
            return unique, found
    y, final = run_scan(
        op, x, None, dim, (None,), {"mask": mask, "dtype": dtype, "offsets": offsets, "return_final": "segments"}
    )
    return unique, final.narrow(dim, 0, len(unique)).to(y.dtype)
