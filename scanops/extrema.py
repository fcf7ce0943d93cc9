"""The public scans that return indices, ``cummax`` and ``cummin``, and reductions by key."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from scanops.errors import UnsupportedRequest
from scanops.ops.dispatch import called, plain_name
from scanops.requests import checks

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict

    from typing_extensions import Unpack

    from scanops.codegen.operators import Operator

    class Variant(TypedDict, total=False):
        """Keywords of every scan; the docstring of ``scan`` explains them."""

        mask: Tensor | None
        reverse: bool
        exclusive: bool
        initial: Tensor | complex | None
        segment_starts: Tensor | None
        offsets: Tensor | None

    class Keywords(Variant, total=False):
        """Keywords of scans with one result."""

        complete: bool
        dtype: torch.dtype | None
        accumulate: torch.dtype | str | None
        out: Tensor | None

    class Chunks(Keywords, total=False):
        """Keywords of scans that may begin again every so many items."""

        chunk: int | None

    class Functions(TypedDict, total=False):
        """Keywords of scans with functions of several tensors."""

        map: Callable[..., Any] | None
        then: Callable[..., Any] | None
        mask: Tensor | None
        reverse: bool
        exclusive: bool
        dtype: torch.dtype | None


__all__ = ["Ends", "Final", "Pair", "ValuesAndIndices", "cummax", "cummin", "reduce_by_key"]

Pair = tuple[Tensor, Tensor]
Ends = Literal[True, "segments"]  # values of return_final with which there are carries-out
Final = Ends | Literal[False]


class ValuesAndIndices(NamedTuple):
    """The results of ``cummax`` and ``cummin``, as torch's own return them."""

    values: Tensor
    indices: Tensor


@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Ends, out: Pair | None = None, **options: Unpack[Variant]
) -> tuple[ValuesAndIndices, Tensor]: ...
@overload
def cummax(
    x: Tensor, dim: int, *, return_final: Literal[False] = ..., out: Pair | None = None, **options: Unpack[Variant]
) -> ValuesAndIndices: ...
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


# The keywords that these pass on, as help() and editors show them.
for _function in (cummax, cummin):
    _shown = [each for each in signature(_extreme).parameters.values() if each.name != "op"]
    _function.__signature__ = signature(_extreme).replace(parameters=_shown)  # type: ignore[attr-defined]


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
