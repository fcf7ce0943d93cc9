"""The functions people call."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.codegen.operators import OPERATORS, Operator, register_operator
from scanops.errors import UnsupportedRequest
from scanops.ops.following import outputs
from scanops.requests.checks import check_tensor, lent_kind
from scanops.requests.request import Inputs
from scanops.requests.surroundings import at_tracing, is_traced
from scanops.runtime import native

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ValuesAndIndices", "cummax", "cummin", "cumprod", "cumsum", "linear_scan", "logcumsumexp", "scan"]

Pair = tuple[Tensor, Tensor]
# x, mask, gate, segment_starts, offsets and initial, which may be a number: as Inputs are once they are checked
Given = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | complex | None]


class ValuesAndIndices(NamedTuple):
    """What ``cummax`` and ``cummin`` return, as torch's own do."""

    values: Tensor
    indices: Tensor


class Variant(TypedDict, total=False):
    """What every scan may be told besides; ``scan`` says what each means."""

    mask: Tensor | None
    reverse: bool
    exclusive: bool
    initial: Tensor | complex | None
    segment_starts: Tensor | None
    offsets: Tensor | None


class Options(Variant, total=False):
    """And a scan with one result."""

    dtype: torch.dtype | None
    accumulate: torch.dtype | str | None
    out: Tensor | None


@overload
def scan(
    x: Tensor, op: str | Operator, dim: int, *, return_final: Literal[True], **options: Unpack[Options]
) -> Pair: ...
@overload
def scan(
    x: Tensor, op: str | Operator, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
def scan(
    x: Tensor,
    op: str | Operator,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor | Pair:
    """``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, for every line of ``x``, in one pass over memory.

    ``exclusive`` leaves x[i] out of y[i], so that the first result is the identity; ``reverse`` counts i from the last
    item. CUDA tensors go through a kernel generated for exactly this request, built at its first use and kept, also
    from compiled and transformed code and backwards; CPU tensors go through torch's own operations with the same
    results.

    Args:
        x: a tensor of any shape and strides. bool, integers of up to 64 bits with a sign and without, float16,
            bfloat16, float32, float64, complex64, complex128, and the 8-bit floating types float8_e4m3fn, float8_e5m2,
            float8_e4m3fnuz and float8_e5m2fnuz, which are scanned in float32.
        op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"logcumsumexp"``, ``"bitwise_and"``, ``"bitwise_or"``,
            ``"bitwise_xor"``, ``"logical_and"`` or ``"logical_or"``. For indices there are ``cummax`` and ``cummin``.
            An operator of your own is a ``scanops.Operator``, which can be called by its name once it has been used.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: broadcasts to ``x.shape``; it is never copied. A bool mask selects: an element where it is False counts as
            the identity whatever its value, NaN included. A numeric mask multiplies, as ``x * mask`` does.
        reverse: scan from the last item to the first.
        exclusive: leave the item itself out.
        initial: what lines go on from, in place of the identity: a number, or a tensor that broadcasts to x's shape
            without ``dim``, one value for each line. An exclusive scan begins with it.
        return_final: whether to return what goes on from each line as well, so that a stream scanned in chunks, each
            with the ``initial`` that the chunk before it returned, equals the scan in one piece: exactly for integers,
            to within rounding for floats.
        segment_starts: a bool tensor that broadcasts to ``x.shape``: where it is True a segment begins, and the scan
            starts again from the identity. Segments are the same items whatever the direction; in reverse each is
            scanned from its end. ``initial`` belongs to the first segment, unless the first item begins another.
        offsets: segments that are the same in every line, as in ``cu_seqlens``: an int32 or int64 tensor
            [0, ..., x.shape[dim]] that never falls; segments may be empty. Its values are looked at once for each
            tensor, one made in inference mode at each call, which waits for the GPU.
        dtype: of the result; the elements are converted to it before they are scanned. By default x's dtype, or
            torch's promotion of ``x * mask``, for 8-bit floating types float32; sums and products of bool and integers
            give int64, logical operators give bool. Half types accumulate in float32, and so is what goes on from a
            line. No result is of an 8-bit floating type.
        accumulate: what to compute in. None for the default, which is the result's dtype and for half types float32; a
            wider one, such as torch.float64 for float32 results, to which elements are then converted; or
            ``"compensated"`` for sums and products of floating dtypes, which keeps beside each result what rounding has
            lost: the error of a sum is then at most u |y[i]| + (d u)^2 (|x[0]| + ... + |x[i]|) before the last
            rounding, with the accumulator's unit roundoff u and d additions that an item passes through, some tens; a
            plain sum has d u in the second term. That of a product of n is at most u |y[i]| + (n u)^2 |y[i]|, as long
            as nothing overflows or is denormal; a plain product's is n u |y[i]|.
        out: where to put the result: of x's shape, on x's device; its dtype is the result's. It may be x itself.

    Returns:
        A contiguous tensor of x's shape; with ``return_final`` a pair of that and of what goes on from each line, of
        x's shape without ``dim``.

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
    Programming, 4.2.2), products by TwoProduct; the bound is that of Ogita, Rump and Oishi, "Accurate Sum and Dot
    Product" (2005), for a tree.
    """
    if isinstance(op, Operator):
        _let_be_called(op.handle)
        op = op.name
    if type(op) is str and not _is_plain(op):
        plain = [name for name in tuple(OPERATORS) if _is_plain(name)]
        raise UnsupportedRequest(
            f"a scan with {op!r} of one tensor, which returns one",
            allowed=", ".join(map(repr, plain)),
            value=f"op={op!r}",
            hint="call scanops.linear_scan"
            if OPERATORS[op].gated
            else f"call scanops.{op}, which gives both its results",
        )
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _result(op, dim, tensors, reverse, exclusive, return_final, dtype, accumulate, out)


@overload
def cumsum(x: Tensor, dim: int, *, return_final: Literal[True], **options: Unpack[Options]) -> Pair: ...
@overload
def cumsum(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Options]) -> Tensor: ...
def cumsum(
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor | Pair:
    """``y[i] = x[0] + x[1] + ... + x[i]`` along ``dim``: ``torch.cumsum``, with a direction, a mask and an end.

    Exactly ``scan(x, "sum", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumsum(torch.tensor([1., 2., 3.]), 0, reverse=True, exclusive=True)
        tensor([5., 3., 0.])
        >>> scanops.cumsum(torch.tensor([1, 2, 3]), 0, initial=10, return_final=True)
        (tensor([11, 13, 16]), tensor(16))
    """
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _result("sum", dim, tensors, reverse, exclusive, return_final, dtype, accumulate, out)


@overload
def cumprod(x: Tensor, dim: int, *, return_final: Literal[True], **options: Unpack[Options]) -> Pair: ...
@overload
def cumprod(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Options]) -> Tensor: ...
def cumprod(
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor | Pair:
    """``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``: ``torch.cumprod``, with a direction, a mask and an end.

    Exactly ``scan(x, "prod", dim, ...)``; see there.

    Example:
        >>> import torch, scanops
        >>> scanops.cumprod(torch.tensor([2., 3., 4.]), 0, mask=torch.tensor([True, False, True]))
        tensor([2., 2., 8.])
    """
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _result("prod", dim, tensors, reverse, exclusive, return_final, dtype, accumulate, out)


@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Literal[True], **options: Unpack[Options]) -> Pair: ...
@overload
def logcumsumexp(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Options]) -> Tensor: ...
def logcumsumexp(
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor | Pair:
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
        >>> scanops.logcumsumexp(torch.tensor([100., 100., -100.]), 0)
        tensor([100.0000, 100.6931, 100.6931])

    Source: the (greatest, scaled sum) pair is the online normaliser of Milakov and Gimelshein, "Online normalizer
    calculation for softmax" (2018); here the greatest term's own 1 is left out of the sum, which keeps its small part.
    """
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _result("logcumsumexp", dim, tensors, reverse, exclusive, return_final, dtype, accumulate, out)


@overload
def linear_scan(a: Tensor, b: Tensor, dim: int, *, return_final: Literal[True], **options: Unpack[Options]) -> Pair: ...
@overload
def linear_scan(
    a: Tensor, b: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
def linear_scan(
    a: Tensor,
    b: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor | Pair:
    """``h[i] = a[i] * h[i-1] + b[i]`` along ``dim``, from ``initial`` or 0: a first-order recurrence in one pass.

    The recurrence of gated and of selective state-space layers, of exponential averages and of linear filters. a and b
    broadcast against each other, and neither is copied: a gate for each channel, or one number for each row, is read as
    it lies. Results are those of the recurrence computed item by item, to within rounding, NaN, infinite items and zero
    gates included: the product of gates never overflows or vanishes on the way. From an infinite gate on the recurrence
    has nothing finite; nor have the results, but they may be NaN where it would come to inf or -inf. Where h itself
    overflows, results depend on the order of the additions, as those of any sum that overflows do.

    Args:
        a: the gates. Its dtype and b's are promoted as those of ``a * b`` are.
        b: what is added; with a it broadcasts to the shape of the result.
        dim: the dimension to scan along, of that shape.
        mask: where it is False h stays as it was; a numeric mask multiplies b.
        reverse: ``h[i] = a[i] * h[i+1] + b[i]``.
        exclusive: the result at i is what h was before i.
        initial, return_final, segment_starts, offsets, dtype, out: as for ``scan``.
        accumulate: as for ``scan``, but for ``"compensated"``, which is for sums and products.

    Returns:
        h, contiguous; with ``return_final`` also the last h of each line.

    Raises:
        UnsupportedRequest, BuildFailure: as ``scan`` does.

    Example:
        >>> import torch, scanops
        >>> scanops.linear_scan(torch.tensor(0.5), torch.tensor([8., 0., 0., 1.]), 0)
        tensor([8., 4., 2., 2.])

    Source: pairs of a gate and a value under (a, b) then (c, d) -> (ca, cb + d) are associative: Blelloch, "Prefix Sums
    and Their Applications" (1990), section 1.4.
    """
    check_tensor("a", a)
    check_tensor("b", b)
    tensors = (_broadcast(a, b), mask, a, segment_starts, offsets, initial)
    return _result("linear", dim, tensors, reverse, exclusive, return_final, dtype, accumulate, out)


@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Literal[True], out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
def cummax(
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    out: Pair | None = None,
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
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
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _extreme("cummax", dim, tensors, reverse, exclusive, return_final, out)


@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Literal[True], out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummin(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
def cummin(
    x: Tensor,
    dim: int,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    out: Pair | None = None,
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """``values[i] = min(x[0], x[1], ..., x[i])`` along ``dim``, and where it is: ``torch.cummin``.

    As ``cummax`` with the order turned round; a NaN is less than anything, and where no item has been met the value is
    the dtype's highest.

    Example:
        >>> import torch, scanops
        >>> scanops.cummin(torch.tensor([2., 3., 1.]), 0, reverse=True)
        ValuesAndIndices(values=tensor([1., 1., 1.]), indices=tensor([2, 2, 2]))
    """
    tensors = (x, mask, None, segment_starts, offsets, initial)
    return _extreme("cummin", dim, tensors, reverse, exclusive, return_final, out)


@at_tracing
def _is_plain(op: str) -> bool:
    """Whether that is no operator of two tensors, or with two results."""
    row = OPERATORS.get(op)
    return row is None or not (row.indices or row.gated)


@at_tracing
def _let_be_called(handle: Any) -> bool:
    return register_operator(handle.operator) is handle.operator


def _whole(dim: Any) -> Any:
    """A whole number of whatever class, numpy's or a tensor, as torch takes it; what is none is left to the checks."""
    if type(dim) is int or type(dim) is bool or is_compiling():
        return dim
    try:
        return operator.index(dim)
    except TypeError:
        return dim


def _broadcast(a: Tensor, b: Tensor) -> Tensor:
    """b as a view with the shape that both broadcast to, in a dtype that ``a * b`` is promoted alike with."""
    compiling = is_compiling()  # sizes may be symbols, which may not be compared where nobody knows them
    try:
        same = not compiling and a.shape == b.shape
        shape = b.shape if same else torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    except RuntimeError as problem:
        raise UnsupportedRequest(
            "a linear scan of tensors that do not broadcast",
            allowed="each dimension of a equal to that of b, or one of them 1",
            value=f"a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)}",
            hint="reshape a: a gate for each row of b[rows, n] is a[rows, 1]",
        ) from problem
    b = lent_kind(b, a)
    if is_traced():  # else the graph would hold the shape of the tensors it was traced with
        whole: Tensor = torch.broadcast_tensors(b, a)[0]  # type: ignore[no-untyped-call]
        return whole
    return b if same or (not compiling and b.shape == shape) else b.expand(shape)


def _result(
    op: str,
    dim: int,
    tensors: Given,
    reverse: bool,
    exclusive: bool,
    final: bool,
    dtype: torch.dtype | None,
    accumulate: torch.dtype | str | None,
    out: Tensor | None,
) -> Tensor | Pair:
    found = None
    if not is_compiling():  # which cannot look into C++
        found = native.served(op, dim, tensors, reverse, exclusive, final, dtype, accumulate, out)
    if found is None:
        options = (op, _whole(dim), reverse, exclusive, final, dtype, accumulate)
        found = outputs(options, Inputs(*tensors), out)  # type: ignore[arg-type]
    return (found[0], found[1]) if final else found[0]


def _extreme(
    op: str,
    dim: int,
    tensors: Given,
    reverse: bool,
    exclusive: bool,
    final: bool,
    out: Pair | None,
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    if not (out is None or (isinstance(out, tuple | list) and len(out) == 2)):
        raise UnsupportedRequest(
            f"{op} into an out that is no pair",
            allowed="a pair of tensors: for values and for indices",
            value=f"out is a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple | list) else ""),
            hint="pass out=(torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))",
        )
    values, indices = out or (None, None)
    found = None
    if out is None and not is_compiling():
        found = native.served(op, dim, tensors, reverse, exclusive, final, None, None, None)
    if found is None:
        options = (op, _whole(dim), reverse, exclusive, final, None, None)
        found = outputs(options, Inputs(*tensors), values, indices)  # type: ignore[arg-type]
    pair = ValuesAndIndices(*found[:2])
    return (pair, found[2]) if final else pair
