"""Scans of a dimension that is sharded over the ranks of a process group, on torch.distributed.

Each rank calls with its own shard and gets the results of its own items. Ranks exchange scan states, one per line and
rank, and no items: a scan of any length moves a few bytes per line between ranks. docs/distributed.md has a quick
start, the traffic, and what happens when ranks disagree or end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from scanops.codegen.operators import find_operator
from scanops.distributed.groups import group_of
from scanops.distributed.sharded_scan import scan_sharded
from scanops.errors import UnsupportedRequest
from scanops.forks import LATE, load_late
from scanops.keywords import ABSENT, Pair, ValuesAndIndices, list_keywords_of, name_results
from scanops.requests.arguments import plain_name, prepare_recurrence
from scanops.requests.call import Call
from scanops.requests.placement import Placement, open_block
from scanops.requests.request import Inputs
from scanops.requests.sharding import Sharding
from scanops.runtime import native

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from scanops.keywords import Sharded, ShardedVariant

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "exscan", "linear_scan", "logcumsumexp", "scan", "sharded"]


def __dir__() -> list[str]:
    return sorted(__all__)


_REFUSED = {  # what scans of one GPU have, and why a sharded one does not
    "chunk": "cut the dimension where chunks begin, and pass the cuts as offsets",
    "complete": "ranks would return n + 1 results for n items: pass exclusive=True and return_final=True",
    "out": "leave it out: results are new tensors",
}


def _scan(function: str, op: str, x: Tensor, gate: Any, dim: int, options: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the results of a public function, whose keywords nothing has checked yet: by C++ after such a call."""
    method, spans, group = options.pop("method", "auto"), options.pop("spans", None), options.pop("group", None)
    if type(x).__name__ == "DTensor" or type(gate).__name__ == "DTensor":
        load_late("scanops.distributed.placed")  # which takes long to import
        call, _, inputs = _make_call(function, op, x, gate, dim, **options)
        placed = LATE["scanops.distributed.placed"]
        return placed.scan_placed(call, inputs, method, spans, group)  # type: ignore[no-any-return]
    group = group_of(group)
    if native.serve is not None and method != "twopass" and not is_compiling():
        served: tuple[Tensor, ...] | None = native.serve(
            x, gate, op, dim, options, function=function, method=method, spans=spans, group=group
        )
        if served is not None:
            return served
    call, asked, inputs = _make_call(function, op, x, gate, dim, **options)
    return scan_sharded(function, replace(call, sharding=Sharding(group, method, spans)), inputs, asked)


def _make_call(
    function: str,
    op: str,
    x: Tensor,
    gate: Any,
    dim: int,
    /,
    *,
    group: Any = None,  # it, spans and method stand here for ``help``: ``_scan`` reads them
    spans: str | None = None,
    method: str = "auto",
    mask: Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    segment_starts: Tensor | None = None,
    offsets: Tensor | None = None,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
    **unknown: object,
) -> tuple[Call, Call, Inputs]:
    """Return a call as the scan of one GPU has it, the same as the user gave it, and its tensors."""
    given = {"dtype": dtype, "accumulate": accumulate}
    for name in (*unknown, *[name for name in ABSENT.get(function, ()) if given.get(name) is not None]):
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    asked = call = Call(op, dim, reverse, exclusive, return_final, dtype, accumulate)
    if initial is not None and offsets is not None:  # which is of each segment on one GPU
        raise UnsupportedRequest(
            f"{function}: initial beside offsets is not for sharded dimensions",
            allowed="initial beside segment_starts, which continues the line, or offsets alone",
            value="initial and offsets given",
            hint="pass segment_starts in place of offsets, or leave initial out",
        )
    if function == "scan":
        find_operator(op, "; for an operator of your own gather the dimension and call scanops.scan")
        call = replace(call, op=plain_name(op))
    if gate is not None:
        x, gate, dtype = prepare_recurrence(gate, x, None, dtype=dtype, mask=mask, accumulate=accumulate)
        call = replace(call, dtype=dtype)
    return call, asked, Inputs(x, mask, gate, segment_starts, offsets, initial)  # type: ignore[arg-type]


def _unpack(found: tuple[Tensor, ...]) -> Tensor | Pair:
    return (found[0], found[1]) if len(found) > 1 else found[0]


@list_keywords_of(_make_call)
def scan(x: Tensor, op: str, dim: int, **options: Unpack[Sharded]) -> Tensor | Pair:
    """Return ``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, which is sharded over the ranks of ``group``.

    The line is the shards in the order of the ranks. Every rank of the group makes the same call with its own x;
    lengths along ``dim`` may differ and be 0, and all else must be equal.

    Args:
        x: this rank's shard, of any shape and strides.
        op: the name of an operator, as for ``scanops.scan``, but none of your own.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, in the order of the ranks; ``"head_tail"`` where each holds two of
            equal lengths, the k-th from the front and the k-th from the back, as zigzag layouts have them. x has the
            items of its spans one after the other.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``. One pass reads every item once. It needs GPUs that write
            one another's memory, on one host. auto takes it where it serves the call and takes less time.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks: where False, the item is left out; a
            numeric mask multiplies the items.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result; the first result of the line is the carry-in.
        initial: the carry-in of the whole line, a number or a tensor that broadcasts to x's shape without ``dim``;
            equal on all ranks; not beside ``offsets``. Its gradient is on the first rank, the last with ``reverse``,
            and zeros are on the others: the sum over the ranks is the gradient.
        return_final: also return the carry-out of the whole line, equal on all ranks. Gradients of it add up over the
            ranks.
        segment_starts: sharded as x is: True where an item begins a segment, before which nothing is carried.
        offsets: segments by their positions in the whole line, equal on all ranks: int32 or int64, 0 first, the length
            of the line last.
        dtype: the dtype of the results; None for that of x, or int64 for sums and products of smaller integers.
        accumulate: the dtype to compute in, or ``"compensated"`` to carry rounding errors; None for the default.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest: an argument that is not as described, on the rank that has it and before anything is sent.
        PeerMismatch: on every rank, where calls differ: at the latest at the next call of the group.
        PeerLost: a rank ended, or did not call within the timeout of the group.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.scan(torch.tensor([1.0, 3.0, 2.0]), "max", 0)
        tensor([1., 3., 3.])
        >>> dist.destroy_process_group()

    Source: Blelloch, "Prefix Sums and Their Applications" (1990), section 1.3: each processor reduces its part, the
    sums are scanned, and each scans its part from there.
    """
    return _unpack(_scan("scan", op, x, None, dim, {**options}))


@list_keywords_of(_make_call)
def cumsum(x: Tensor, dim: int, **options: Unpack[Sharded]) -> Tensor | Pair:
    """Return the cumulative sum ``y[i] = x[0] + x[1] + ... + x[i]`` along ``dim``, which is sharded over ranks.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        x: this rank's shard, of any shape and strides.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as x is.
        offsets: boundaries of segments in the whole line, equal on all ranks.
        dtype: the dtype of the results.
        accumulate: the dtype to compute in, or ``"compensated"``.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.cumsum(torch.ones(3), 0)
        tensor([1., 2., 3.])
        >>> dist.destroy_process_group()
    """
    return _unpack(_scan("cumsum", "sum", x, None, dim, {**options}))


@list_keywords_of(_make_call)
def cumprod(x: Tensor, dim: int, **options: Unpack[Sharded]) -> Tensor | Pair:
    """Return the cumulative product ``y[i] = x[0] * x[1] * ... * x[i]`` along ``dim``, which is sharded over ranks.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        x: this rank's shard, of any shape and strides.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as x is.
        offsets: boundaries of segments in the whole line, equal on all ranks.
        dtype: the dtype of the results.
        accumulate: the dtype to compute in, or ``"compensated"``.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.cumprod(torch.tensor([1.0, 2.0, 3.0]), 0)
        tensor([1., 2., 6.])
        >>> dist.destroy_process_group()
    """
    return _unpack(_scan("cumprod", "prod", x, None, dim, {**options}))


@list_keywords_of(_make_call)
def logcumsumexp(x: Tensor, dim: int, **options: Unpack[Sharded]) -> Tensor | Pair:
    """Return ``y[i] = log(exp(x[0]) + ... + exp(x[i]))`` along ``dim``, which is sharded over ranks.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        x: this rank's shard, of any shape and strides.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as x is.
        offsets: boundaries of segments in the whole line, equal on all ranks.
        dtype: the dtype of the results.
        accumulate: the dtype to compute in, or ``"compensated"``.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.logcumsumexp(torch.zeros(2), 0)
        tensor([0.0000, 0.6931])
        >>> dist.destroy_process_group()
    """
    return _unpack(_scan("logcumsumexp", "logcumsumexp", x, None, dim, {**options}))


@list_keywords_of(_make_call)
def linear_scan(a: Tensor | complex, b: Tensor, dim: int, **options: Unpack[Sharded]) -> Tensor | Pair:
    """Return the recurrence ``h[i] = a[i] * h[i-1] + b[i]`` along ``dim``, which is sharded over ranks.

    h starts from ``initial`` or 0. Ranks exchange the product of a shard's gates and its last h from 0.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        a: this rank's gates, a tensor that broadcasts with b, or a number.
        b: this rank's terms.
        dim: the scanned dimension, which is sharded over the ranks: from ``-b.ndim`` to ``b.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as b is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as b is.
        offsets: boundaries of segments in the whole line, equal on all ranks.
        dtype: the dtype of the results.
        accumulate: the dtype to compute in, or ``"compensated"``.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.linear_scan(0.5, torch.ones(3), 0)
        tensor([1.0000, 1.5000, 1.7500])
        >>> dist.destroy_process_group()
    """
    return _unpack(_scan("linear_scan", "linear", b, a, dim, {**options}))


@list_keywords_of(_make_call, "dtype", "accumulate")
def cummax(
    x: Tensor, dim: int, **options: Unpack[ShardedVariant]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """Return ``values[i] = max(x[0], ..., x[i])`` along ``dim``, sharded over ranks, and where in the line each is.

    Ties and NaN are those of ``scanops.cummax``.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        x: this rank's shard, of any shape and strides.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as x is.
        offsets: boundaries of segments in the whole line, equal on all ranks.

    Returns:
        The values and the indices of this shard, a named pair as of ``torch.cummax``. Indices count in the whole
        line; they are -1 where there is no item. With ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.cummax(torch.tensor([1.0, 3.0, 2.0]), 0).values
        tensor([1., 3., 3.])
        >>> dist.destroy_process_group()
    """
    return name_results(_scan("cummax", "cummax", x, None, dim, {**options}))


@list_keywords_of(_make_call, "dtype", "accumulate")
def cummin(
    x: Tensor, dim: int, **options: Unpack[ShardedVariant]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """Return ``values[i] = min(x[0], ..., x[i])`` along ``dim``, sharded over ranks, and where in the line each is.

    Ties and NaN are those of ``scanops.cummin``.

    ``scanops.distributed.scan`` describes what sharding adds to the arguments; else they are as of ``scanops.cumsum``.

    Args:
        x: this rank's shard, of any shape and strides.
        dim: the scanned dimension, which is sharded over the ranks: from ``-x.ndim`` to ``x.ndim - 1``.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        spans: None where each rank holds one shard, or ``"head_tail"``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``.
        mask: sharded as x is, or of size 1 along ``dim`` and equal on all ranks.
        reverse: scan from the last item of the whole line to its first.
        exclusive: leave the item itself out of its result.
        initial: the carry-in of the whole line, equal on all ranks.
        return_final: also return the carry-out of the whole line, equal on all ranks.
        segment_starts: head flags, sharded as x is.
        offsets: boundaries of segments in the whole line, equal on all ranks.

    Returns:
        The values and the indices of this shard, a named pair as of ``torch.cummin``. Indices count in the whole
        line; they are -1 where there is no item. With ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest, PeerMismatch, PeerLost: as ``scanops.distributed.scan`` does.

    Example:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.cummin(torch.tensor([1.0, 3.0, 2.0]), 0).values
        tensor([1., 1., 1.])
        >>> dist.destroy_process_group()
    """
    return name_results(_scan("cummin", "cummin", x, None, dim, {**options}))


def exscan(
    x: Tensor,
    op: str = "sum",
    *,
    inclusive: bool = False,
    group: Any = None,
    method: str = "auto",
    initial: Tensor | complex | None = None,
    return_final: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
    accumulate: torch.dtype | str | None = None,
) -> Tensor | Pair:
    """Return, item by item, ``x of rank 0 op x of rank 1 op ...`` over the ranks before this one: MPI's Exscan.

    Args:
        x: a tensor of the same shape and dtype on all ranks.
        op: the name of an operator, as for ``scanops.scan``, but none of your own.
        inclusive: whether this rank's own x is the last operand, as in MPI's Scan.
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``, as for ``scan``.
        initial: what comes before rank 0, a number or a tensor that broadcasts to x's shape; without it the first rank
            gets the operator's identity.
        return_final: also return the result over all ranks, equal on all of them.
        reverse: over the ranks behind this one, the last rank first.
        dtype: the dtype of the results; None for that of x, or int64 for sums and products of smaller integers.
        accumulate: the dtype to compute in, or ``"compensated"`` to carry rounding errors; None for the default.

    Returns:
        A tensor of x's shape; with ``return_final`` a pair of that and of the result over all ranks.

    Raises:
        UnsupportedRequest: an argument that is not as described, on the rank that has it and before anything is sent.
        PeerMismatch: on every rank, where calls differ: at the latest at the next call of the group.
        PeerLost: a rank ended, or did not call within the timeout of the group.

    Example, where the items of each rank begin in a table of all:
        >>> import torch, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> sd.exscan(torch.tensor(3), "sum")
        tensor(0)
        >>> dist.destroy_process_group()

    Source: MPI: A Message-Passing Interface Standard, section "Scan", MPI_Exscan.
    """
    ends: Any = {"initial": initial, "reverse": reverse, "exclusive": not inclusive, "return_final": return_final}
    how: Any = {"group": group, "method": method, "dtype": dtype, "accumulate": accumulate}
    found = _scan("scan", op, x.unsqueeze(0), None, 0, ends | how)
    return (found[0].squeeze(0), found[1]) if len(found) > 1 else found[0].squeeze(0)


def scan_placement(
    placement: Placement,
    op: str,
    x: Tensor,
    gate: Any,
    dim: int,
    outs: tuple[Tensor | None, ...],
    *,
    complete: bool = False,
    chunk: int | None = None,
    **fields: Any,
) -> Any:
    """Return what a call returns that a block shards. The other arguments are those of ``scanops.api.run_scan``."""
    function, out = Call(op, dim).name, next((each for each in outs if each is not None), None)
    for name, value in (("complete", complete), ("chunk", chunk), ("out", out)):
        if value is not None and value is not False:
            raise UnsupportedRequest(
                f"{function}: {name} is not for sharded dimensions",
                allowed="mask, reverse, exclusive, initial, return_final, segment_starts, offsets, dtype, accumulate",
                value=f"{name} given",
                hint=_REFUSED[name],
            )
    return _unpack(_scan(function, op, x, gate, dim, placement.sharding._asdict() | fields))


@contextlib.contextmanager
def sharded(
    group: Any = None, dims: tuple[int, ...] = (1,), *, spans: str | None = None, method: str = "auto"
) -> Iterator[None]:
    """Scan plain tensors along ``dims`` over the ranks of a group inside the block, for models that know of no ranks.

    Every scan of ``scanops`` inside the block, and with ``scanops.patch_torch()`` those of torch, whose dimension is
    one of ``dims`` is the sharded one of the same name; others stay as they are. The block counts in all threads of the
    process, and where ``torch.compile`` traces. Backward passes need no block, except those of checkpoints, which
    compute again.

    Args:
        group: a process group, a DeviceMesh of one dimension, ``(mesh, name)``, or None for all ranks.
        dims: the dimensions that are sharded, of tensors that have them; negative ones count from the last.
        spans: the layout of the shards, as for ``scan``.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``, as for ``scan``.

    Raises:
        UnsupportedRequest: inside the block, by scans along ``dims`` with ``out``, ``complete``, ``chunk``, ``map`` or
            ``then``.

    Example:
        >>> import torch, scanops, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> with sd.sharded(dims=(0,)):
        ...     scanops.cumsum(torch.ones(3), 0)
        tensor([1., 2., 3.])
        >>> dist.destroy_process_group()
    """
    with open_block(Placement(Sharding(group_of(group), method, spans), dims)):
        yield
