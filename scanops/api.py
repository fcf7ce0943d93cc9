"""The public functions ``scan``, ``cumsum`` and ``linear_scan``, and ``run_scan``, which all public functions call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from scanops.dtensors import run_call
from scanops.forks import LATE, load_late
from scanops.fusion.calls import scan_fused
from scanops.keywords import ABSENT, Ends, Final, Pair, list_keywords_of
from scanops.ops.native_calls import register_chunks
from scanops.requests.arguments import plain_name, prepare_recurrence, resolve_call
from scanops.requests.call import Call
from scanops.requests.packed_sequences import PlainCall, is_jagged, split_chunks, unpack_nested
from scanops.requests.placement import OPEN, find_placement
from scanops.requests.request import Inputs, Tensors
from scanops.requests.segments import select_last
from scanops.runtime import native

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from scanops.fusion.operators import FieldOperator
    from scanops.keywords import Chunks, Functions, Keywords

__all__ = ["cumsum", "linear_scan", "scan"]


def run_scan(op: str, x: Any, gate: Any, dim: Any, outs: Tensors, options: dict[str, Any]) -> Any:
    """Return what a public function returns, with one of ``outs`` for each result: by C++ after such a call.

    ``options``: keywords as the user gave them, which nothing has checked. Two results and the carry-out are a tuple
    of three.
    """
    if OPEN and (placement := find_placement(x, dim)) is not None:
        load_late("scanops.distributed")
        return LATE["scanops.distributed"].scan_placement(placement, op, x, gate, dim, outs, **options)
    # Dynamo cannot look into C++; calls under other tracers are left to Python. There is no ``Call`` yet, which takes
    # as long to make as C++ takes to serve it.
    serve = native.serve if outs[0] is None and not is_dynamo_compiling() else None
    if serve is not None:
        found = serve(x, gate, op, dim, options)
        if found is not None:
            return found
    call, inputs = make_call(op, x, gate, dim, **options)
    if type(x) is not Tensor and is_jagged(x):
        return _run_values(unpack_nested(call, inputs, outs))
    if call.chunk is None:
        return _run_plain(call, inputs, outs)
    view = split_chunks(call, inputs, outs)
    if view.inputs.x is x:
        return view.restore(_run_plain(view.call, view.inputs, view.outs))
    found = None
    if serve is not None:  # with a gradient the view is a node of its own
        viewed = {**options, "mask": view.inputs.mask, "chunk": None}
        found = serve(view.inputs.x, gate, op, view.call.dim, viewed)
    result = view.restore(_run_plain(view.call, view.inputs, view.outs) if found is None else found)
    if not view.inputs.differentiates:
        register_chunks(call, inputs, view, result)
    return result


def make_call(
    op: str,
    x: Tensor,
    gate: Tensor | None,
    dim: int,
    /,
    *,
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool | Literal["segments"] = False,
    complete: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    **unknown: object,
) -> tuple[Call, Inputs]:
    """Return the call that the arguments of a public function make, and its tensors. Nothing is checked yet.

    Raises TypeError for a keyword that the public functions do not have.
    """
    by_segment = isinstance(return_final, str) and return_final == "segments"
    call = Call(
        op,
        dim,
        reverse=reverse,
        exclusive=exclusive,
        final=True if by_segment else return_final,  # type: ignore[arg-type]
        per_segment=by_segment,
        dtype=dtype,
        accumulate=accumulate,
        complete=complete,
        chunk=chunk,
    )
    given = {"complete": complete, "chunk": chunk, "dtype": dtype, "accumulate": accumulate}
    absent = ABSENT.get(op, ()) if isinstance(op, str) else ()
    for name in (*unknown, *[name for name in absent if given[name] is not None and given[name] is not False]):
        raise TypeError(f"{call.name.partition(' ')[0]}() got an unexpected keyword argument {name!r}")
    return call, Inputs(x, mask, gate, segment_starts, offsets, initial)  # type: ignore[arg-type]


def _run_values(plain: PlainCall) -> Any:
    """Return the results for a nested tensor, from the call on its values."""
    call, inputs = plain.call, plain.inputs
    options = {
        name: getattr(call, name) for name in ("reverse", "exclusive", "dtype", "accumulate", "complete", "chunk")
    }
    options |= {"mask": inputs.mask, "segment_starts": inputs.starts, "offsets": inputs.offsets}
    options |= {"initial": inputs.initial, "return_final": "segments" if call.per_segment else call.final}
    return plain.restore(run_scan(call.op, inputs.x, inputs.gate, call.dim, plain.outs, options))


def _run_plain(call: Call, inputs: Inputs, outs: Tensors) -> Any:
    """Return the results of ``run_scan`` for a scan of plain tensors, whose chunks are not a view."""
    of_line = call.final and not call.per_segment  # whether a carry-out is asked for, but not one for each segment
    call, eager = resolve_call(call, inputs, outs)
    found = run_call(call, inputs, outs, eager=eager)
    if call.per_segment and of_line and getattr(inputs.initial, "ndim", 0) == 0:  # which is of all segments
        assert inputs.offsets is not None
        found = (*found[:-1], select_last(found[-1], inputs.offsets, call.dim, call.reverse))
    return found if call.final or len(outs) > 1 else found[0]


@overload
def scan(x: Tensor, op: str, dim: int, *, return_final: Ends, **options: Unpack[Chunks]) -> Pair: ...
@overload
def scan(x: Tensor, op: str, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Chunks]) -> Tensor: ...
@overload
def scan(x: Tensor, op: str, dim: int, *, return_final: Final, **options: Unpack[Chunks]) -> Tensor | Pair: ...
@overload
def scan(x: Tensor | Sequence[Tensor], op: str | FieldOperator, dim: int, **options: Unpack[Functions]) -> Any: ...
@list_keywords_of(make_call)
def scan(
    x: Tensor | Sequence[Tensor],
    op: str | FieldOperator,
    dim: int,
    *,
    map: Callable[..., Any] | None = None,
    then: Callable[..., Any] | None = None,
    sum: int | Sequence[int] | None = None,
    finish: Callable[..., Any] | None = None,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Return ``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, for every line of ``x``, in one pass over memory.

    CUDA tensors are scanned by a kernel generated for exactly this request, built at its first use and cached, in
    compiled code and backward passes too; CPU tensors by PyTorch's own operators, with the same results.

    Arguments that ``scanops.cumsum`` has are as there, where they are described in full.

    Args:
        x: the input, of any shape and strides: bool, integers, floats or complex numbers. The 8-bit floats
            ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` and ``float8_e5m2fnuz`` are scanned in float32.
            With ``map`` or ``then`` a sequence of several tensors that broadcast.
        op: the name of an operator: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, ``"logcumsumexp"``,
            ``"bitwise_and"``, ``"bitwise_or"``, ``"bitwise_xor"``, ``"logical_and"``, ``"logical_or"``; or an
            operator of your own, which ``scanops.operator`` makes. For indices there are ``cummax`` and ``cummin``.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        map: a pointwise function of the tensors that returns the elements to scan, computed in the same kernel
            (docs/fusion.md); for ``"linear"`` it returns a pair of gates and values.
        then: a pointwise function of the result and the tensors that returns what is stored, computed in the same
            kernel; of several values a tuple.
        sum: one or several dimensions of the broadcast shape, together of at most 256 lines: the results of
            ``"linear"`` are summed over them in the accumulator and never written, as by ``.sum(d)`` of the result.
        finish: beside ``sum``, a pointwise function of the sum and the tensors that returns what is stored, computed in
            the same kernel. It may read tensors that have size 1 in the dimensions of ``sum``.
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
        accumulate: the dtype to compute in, or ``"compensated"`` (sums and products).
        out: a tensor to write the result to: of the result's shape, on x's device, with the dtype that the result
            is to have. It may be x itself.

    Returns:
        A contiguous tensor of x's shape, or with ``complete`` of one more item along ``dim``. With ``return_final``
        a pair of that and of the carry-out, which has x's shape without ``dim``, or with the segments in its place.
        With ``then`` that returns several values, a tuple of tensors. With ``sum`` results lack its dimensions, and
        the carry-out has them.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.scan(torch.tensor([1, 2, 3]), "sum", 0, exclusive=True)
        tensor([0, 1, 3])

    Gradient: by kernels, for every operator on floats, with respect to x, a numeric mask and ``initial``;
    docs/derivatives.md.

    Source: one-pass scans follow Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
    (2016); rows split over blocks combine published tile aggregates in a fixed order, whatever the timing.
    """
    if map is None and then is None and isinstance(op, str) and not isinstance(x, tuple | list):
        return run_scan(plain_name(op), x, None, dim, (out,), options)  # type: ignore[no-any-return]
    if out is None and not OPEN and (serve := native.serve) is not None and not is_dynamo_compiling():
        found: Any = serve(x, None, op, dim, options, map=map, then=then, sum=sum, finish=finish)
        if found is not None:
            return found  # type: ignore[no-any-return]
    call, inputs = make_call(op, x, None, dim, **options)  # type: ignore[arg-type]  # of what scan_fused checks
    return scan_fused(call, inputs, map=map, then=then, sum=sum, finish=finish, out=out)


@overload
def cumsum(x: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Chunks]) -> Pair: ...
@overload
def cumsum(x: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Chunks]) -> Tensor: ...
@overload
def cumsum(x: Tensor, dim: int, *, return_final: Final, **options: Unpack[Chunks]) -> Tensor | Pair: ...
@list_keywords_of(make_call)
def cumsum(
    x: Tensor,
    dim: int,
    *,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the cumulative sum of ``x`` along ``dim``: ``y[i] = x[0] + x[1] + ... + x[i]``.

    Like ``torch.cumsum``, with a direction, a mask, segments, carries and a choice of accumulator, in one pass over
    memory. CUDA tensors are scanned by a kernel generated for the request, CPU tensors by PyTorch's own operators.

    Args:
        x: the input, of any shape and strides: bool, integers, floats or complex numbers. The 8-bit floats
            ``float8_e4m3fn``, ``float8_e5m2``, ``float8_e4m3fnuz`` and ``float8_e5m2fnuz`` are scanned in float32.
        dim: the dimension to scan along, from ``-x.ndim`` to ``x.ndim - 1``.
        mask: a tensor that broadcasts to ``x.shape``; it is never copied. A bool mask selects: an item where it is
            False counts as the identity of the operator whatever its value, NaN included. A floating or
            complex mask multiplies, as ``x * mask`` does, and so does a mask of integers, which only sums take.
        reverse: scan from the last item to the first.
        exclusive: leave ``x[i]`` out of ``y[i]``: the first result is the identity of the operator, or ``initial``.
        initial: the carry-in, which takes the place of the identity: a number, or a tensor that broadcasts to x's
            shape without ``dim``, one value for each line. Beside ``offsets`` each segment starts from it: from one
            number, or from a value of its own in a tensor of x's shape with the segments in place of ``dim``.
        return_final: also return the carry-out, the final state of each line; of each segment if it is ``"segments"``,
            or if ``initial`` is a tensor with a value for each segment. Chunks of a stream that are scanned one after
            another, each with the carry-out of the last as its ``initial``, give the results of one scan, floats to
            within rounding.
        complete: return n + 1 results for n items, such as offsets from lengths: the carry-in or the identity, then
            the inclusive results; with ``reverse`` the carry-in is last. Not together with ``exclusive``,
            ``return_final`` or segments.
        segment_starts: head flags: a bool tensor that broadcasts to ``x.shape``, True where a segment begins and
            the scan starts again from the identity. Segments are the same items in both directions; in reverse each
            is scanned from its end. ``initial`` belongs to the first segment, unless the first item begins another.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``: an int32 or int64 tensor
            ``[0, ..., x.shape[dim]]`` that never falls; segments may be empty. Its values are read once for each
            tensor (for an inference tensor at each call), which waits for the GPU.
        chunk: start again every ``chunk`` items of a line, or of each segment of ``offsets``; the last chunk may be
            shorter. In reverse the chunks hold the same items. Not together with other segments, carries or
            ``complete``.
        dtype: the dtype of the result; items are converted to its accumulator before they are scanned. By default x's
            dtype, or torch's promotion of ``x * mask``; int64 for sums and products of bool and integers; bool for
            logical operators; float32 for 8-bit floats, which no result has. float16 and bfloat16 accumulate in
            float32, the dtype of their carries as well.
        accumulate: the dtype to compute in; by default the result's, float32 for float16 and bfloat16. A wider one,
            such as ``torch.float64`` for a float32 result, to which items are then converted. ``"compensated"``,
            for sums and products of floats, carries what rounding has lost beside them (docs/variants.md).
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
        >>> scanops.cumsum(torch.tensor([1., 2., 3.]), 0, reverse=True, exclusive=True)
        tensor([5., 3., 0.])
        >>> y, carry = scanops.cumsum(torch.tensor([1., 2.]), 0, return_final=True)
        >>> scanops.cumsum(torch.tensor([3., 4.]), 0, initial=carry)  # the next chunk continues from it
        tensor([ 6., 10.])

    Gradient: the cumulative sum of the gradient in the other direction, by a kernel, with respect to x, a numeric mask
    and ``initial``. x is saved only where a numeric mask needs a gradient.

    Source: one-pass scans follow Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
    (2016); rows split over blocks combine published tile aggregates in a fixed order, whatever the timing.
    """
    return run_scan("sum", x, None, dim, (out,), options)  # type: ignore[no-any-return]


@overload
def linear_scan(
    a: Tensor | complex, b: Tensor, dim: int, *, return_final: Ends, **options: Unpack[Keywords]
) -> Pair: ...
@overload
def linear_scan(
    a: Tensor | complex, b: Tensor, dim: int, *, return_final: Literal[False] = ..., **options: Unpack[Keywords]
) -> Tensor: ...
@overload
def linear_scan(
    a: Tensor, b: Tensor, dim: int, *, return_final: Final, **options: Unpack[Keywords]
) -> Tensor | Pair: ...
@list_keywords_of(make_call, *ABSENT["linear"])
def linear_scan(
    a: Tensor | complex,
    b: Tensor,
    dim: int,
    *,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return ``h[i] = a[i] * h[i-1] + b[i]`` along ``dim``, from ``initial`` or 0: a first-order linear recurrence.

    The recurrence of gated and of selective state-space layers, of exponential averages and of linear filters, in one
    pass over memory. a and b broadcast against each other, and neither is copied: a gate for each channel, or one for
    each row, is read as it lies.

    Accuracy: the error is at most

    ```math
    |\Delta h_i| \le k u \sum_{j=0}^{i} |a_i \cdots a_{j+1} b_j| + t \max_{j \le i} |h_j|
    ```

    where u is the unit roundoff of the accumulator, k the number of combines that an item passes through (some tens)
    and t the accumulator's least positive number, 2^-149 for float32. Products of gates may underflow, which drops
    terms that small, or overflow, to infinities or NaN unless the state is 0: ``accumulate=torch.float64`` widens the
    range.

    Args:
        a: the gates: a tensor, or a Python number, one gate for all items. Its dtype and b's are promoted as those of
            ``a * b`` are; a number or a tensor of no dimension acts in the accumulator's precision.
        b: what is added; with a it broadcasts to the shape of the result.
        dim: the dimension to scan along, of that shape.
        mask: a tensor that broadcasts to the shape of the result. Where a bool mask is False, h stays as it was; a
            floating or complex mask multiplies b.
        reverse: ``h[i] = a[i] * h[i+1] + b[i]``.
        exclusive: the result at i is what h was before i.
        initial: h before the first item: a number, or a tensor that broadcasts to the shape of the result without
            ``dim``, one value for each line. Beside ``offsets`` each segment starts from it: from one number, or from a
            value of its own in a tensor of the result's shape with the segments in place of ``dim``.
        return_final: also return the last h of each line; of each segment if it is ``"segments"``, or if ``initial`` is
            a tensor with a value for each segment. As ``initial`` of the next chunk of a stream it continues the
            recurrence.
        complete: return n + 1 results for n items: ``initial`` or 0, then the inclusive results; with ``reverse``
            the carry-in is last. Not together with ``exclusive``, ``return_final`` or segments.
        segment_starts: head flags: a bool tensor that broadcasts to the shape of the result, True where a segment
            begins and the scan starts again from 0. Segments are the same items in both directions; in reverse each
            is scanned from its end. ``initial`` belongs to the first segment, unless the first item begins another.
        offsets: boundaries of segments that are the same in every line, as ``cu_seqlens``: an int32 or int64 tensor
            ``[0, ..., n]`` that never falls; segments may be empty. Its values are read once for each tensor (for
            an inference tensor at each call), which waits for the GPU.
        dtype: the dtype of the result; by default that of ``a * b``. float16 and bfloat16 accumulate in float32,
            the dtype of their carries as well.
        accumulate: the dtype to compute in; by default the result's, float32 for float16 and bfloat16.
        out: a tensor to write the result to: of the result's shape, on b's device, with the dtype that the result
            is to have. It may be b itself.

    Returns:
        h, contiguous, or with ``complete`` of one more item along ``dim``. With ``return_final`` a pair of that and
        of the last h of each line, or of each segment.

    Raises:
        UnsupportedRequest: an argument that is not as described.
        DimensionOutOfRange: ``dim`` is not a dimension of x.
        BuildFailure: the kernel is not in the store and could not be built.

    Example:
        >>> import torch, scanops
        >>> scanops.linear_scan(torch.tensor(0.5), torch.tensor([8., 0., 0., 1.]), 0)
        tensor([8., 4., 2., 2.])

    Gradient: a linear recurrence in the other direction, by a kernel, with respect to a, b, a numeric mask and
    ``initial``; a and h are saved.

    Source: pairs of a gate and a value under (a, b) then (c, d) -> (ca, cb + d) are associative: Blelloch, "Prefix Sums
    and Their Applications" (1990), section 1.4.
    """
    if out is None and not OPEN and (serve := native.serve) is not None and not is_dynamo_compiling():
        found: Any = serve(b, a, "linear", dim, options)
        if found is not None:
            return found  # type: ignore[no-any-return]
    x, gate, options["dtype"] = prepare_recurrence(a, b, out, **options)
    return run_scan("linear", x, gate, dim, (out,), options)  # type: ignore[no-any-return]
