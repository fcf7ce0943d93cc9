"""Scans of a dimension that is sharded over the ranks of a process group, on torch.distributed.

Each rank calls with its own shard and gets the results of its own items. Ranks exchange scan states, one per line and
rank, and no items: a scan of any length moves a few bytes per line between ranks. docs/distributed.md has a quick
start, the traffic, and what happens when ranks disagree or end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from scanops.codegen.operators import Operator
from scanops.distributed.calls import How, key_of, scan_shards
from scanops.distributed.groups import Group, group_of
from scanops.errors import UnsupportedRequest
from scanops.forks import LATE, load_late
from scanops.keywords import Pair, ValuesAndIndices
from scanops.ops.dispatch import broadcast_gates, gate_of, plain_name
from scanops.requests.call import SHARDED, Block, Call
from scanops.requests.request import Inputs

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "exscan", "linear_scan", "logcumsumexp", "scan", "sharded"]


def __dir__() -> list[str]:
    return sorted(__all__)


_REFUSED = {
    "modulo": "scan with scanops.cumsum on one GPU, or take the remainder of the sums",
    "chunk": "cut the dimension where chunks begin, and pass the cuts as offsets",
    "complete": "ranks would return n + 1 results for n items: pass exclusive=True and return_final=True",
    "map": "compute the elements first, or scan on one GPU",
    "then": "apply the function to the results, or scan on one GPU",
    "out": "leave it out: results are new tensors",
}
_TENSORS = {"mask": "mask", "segment_starts": "starts", "offsets": "offsets", "initial": "initial"}
_OPTIONS = ("return_final", *Call.__slots__[2:4], *Call.__slots__[5:7])  # those of a call beside op and dim


def scan(x: Tensor, op: str | Operator, dim: int, **options: Any) -> Tensor | Pair:
    """Return ``y[i] = x[0] op x[1] op ... op x[i]`` along ``dim``, which is sharded over the ranks of ``group``.

    The line is the shards in the order of the ranks; i counts along the whole of it. Every rank of the group makes the
    same call with its own x. Lengths along ``dim`` may differ and be 0; all else must be equal.

    Args:
        x: this rank's shard.
        op: the name of an operator, as for ``scanops.scan``, or an operator of your own whose state is an element.
        dim: the scanned dimension, the one that is sharded.
        group: a process group, a DeviceMesh of one dimension, whose order counts then, ``(mesh, name)``, or None for
            all ranks.
        mask, segment_starts: sharded as x is.
        reverse, exclusive, dtype, and the dtype to compute in: as for ``scanops.scan``, equal on all ranks.
        initial: the carry-in of the whole line, equal on all ranks. Its gradient is on the first rank, the last with
            ``reverse``; zeros on the others: the sum over the ranks is the gradient.
        return_final: also return the carry-out of the whole line, equal on all ranks. Gradients of it add up over the
            ranks.
        offsets: segments by their positions in the whole line, equal on all ranks.
        spans: None where each rank holds one shard, in the order of the ranks; ``"head_tail"`` where each holds two of
            equal lengths, the k-th from the front and the k-th from the back, as zigzag layouts have them; or for each
            rank its pairs (start, stop), equal on all ranks. x has the items of its spans one after the other.
        method: ``"auto"``, ``"onepass"`` or ``"twopass"``. One pass needs GPUs of one host and reads every item
            once; auto takes it where it serves the call and moves fewer bytes.
        check: ``"first"``, ``"always"`` or ``"never"``: when ranks compare their calls. Groups with a CPU backend do so
            at every call but with ``"never"``; the others at the first of equal calls.

    Returns:
        The results of this shard, contiguous; with ``return_final`` a pair of that and of the carry-out.

    Raises:
        UnsupportedRequest: on the rank whose argument is not as described; PeerMismatch, its subclass, on all others.
        PeerMismatch: on every rank, where calls differ.
        PeerLost: a rank ended, or did not call within the timeout of the group.

    Source: Blelloch, "Prefix Sums and Their Applications" (1990), section 1.3: each processor reduces its part, the
    sums are scanned, and each scans its part from there.
    """
    return _plain("scan", x, op, dim, options)


def cumsum(x: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``y[i] = x[0] + x[1] + ... + x[i]`` along the sharded ``dim``: ``scan(x, "sum", dim, ...)``; see there."""
    return _plain("cumsum", x, "sum", dim, options)


def cumprod(x: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``y[i] = x[0] * x[1] * ... * x[i]`` along the sharded ``dim``: ``scan(x, "prod", dim, ...)``; see there."""
    return _plain("cumprod", x, "prod", dim, options)


def logcumsumexp(x: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``y[i] = log(exp(x[0]) + ... + exp(x[i]))`` along the sharded ``dim``; keywords as for ``scan``."""
    return _plain("logcumsumexp", x, "logcumsumexp", dim, options)


def linear_scan(a: Tensor | complex, b: Tensor, dim: int, **options: Any) -> Tensor | Pair:
    """``h[i] = a[i] * h[i-1] + b[i]`` along the sharded ``dim``, from ``initial`` or 0; keywords as for ``scan``.

    a and b broadcast against each other; one of size 1 along ``dim`` is replicated, and its gradient is this rank's
    part. Ranks exchange the product of a shard's gates and its last h from 0, both in the dtype of the carry.
    """
    return _plain("linear_scan", b, "linear", dim, options, gate=a)


def cummax(x: Tensor, dim: int, **options: Any) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """``values[i] = max(x[0], ..., x[i])`` along the sharded ``dim``, and where in the whole line it is.

    Keywords as for ``scan`` but for the dtypes; ties, NaN and indices of nothing as ``scanops.cummax``.
    """
    return _extreme(x, "cummax", dim, options)


def cummin(x: Tensor, dim: int, **options: Any) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    """``values[i] = min(x[0], ..., x[i])`` along the sharded ``dim``, and where in the whole line it is."""
    return _extreme(x, "cummin", dim, options)


def exscan(x: Tensor, op: str | Operator = "sum", *, inclusive: bool = False, **options: Any) -> Tensor | Pair:
    """Return, item by item, ``x of rank 0 op x of rank 1 op ...`` over the ranks before this one: MPI's Exscan.

    Shapes and dtypes are equal on all ranks. The first rank gets the operator's identity, or ``initial``. With
    ``inclusive`` this rank's own x is the last operand. Other keywords as for ``scan``, segments aside.

    Example, offsets of each rank's items in a table of all: ``exscan(count, "sum")``.
    """
    found = scan(x.unsqueeze(0), op, 0, exclusive=not inclusive, **options)
    return (found[0].squeeze(0), found[1]) if isinstance(found, tuple) else found.squeeze(0)


def _plain(
    who: str, x: Tensor, op: str | Operator, dim: int, options: dict[str, Any], gate: Any = None
) -> Tensor | Pair:
    y, *final = _called(who, x, op, dim, options, gate)
    return (y, final[0]) if final else y


def _extreme(
    x: Tensor, op: str, dim: int, options: dict[str, Any]
) -> ValuesAndIndices | tuple[ValuesAndIndices, Tensor]:
    values, indices, *final = _called(op, x, op, dim, options)
    pair = ValuesAndIndices(values, indices)
    return (pair, final[0]) if final else pair


def _called(
    who: str, x: Tensor, op: str | Operator, dim: int, options: dict[str, Any], gate: Any = None
) -> tuple[Tensor, ...]:
    how, group = How.of(options), options.pop("group", None)
    if type(x).__name__ == "DTensor" or type(gate).__name__ == "DTensor":
        load_late("scanops.distributed.placed")  # which takes long to import
        scan_placed = LATE["scanops.distributed.placed"].scan_placed
        found: tuple[Tensor, ...] = scan_placed(*_request(who, x, op, dim, options, gate), how, group)
        return found
    return _sharded(who, x, op, dim, options, gate, group_of(group), how)


def _sharded(
    who: str, x: Tensor, op: Any, dim: int, options: dict[str, Any], gate: Tensor | None, group: Group, how: How
) -> tuple[Tensor, ...]:
    get = options.get
    given = Inputs(x, get("mask"), gate, get("segment_starts"), get("offsets"), get("initial"))
    key = None
    if not is_compiling():
        said = [(name, type(each), each) for name, each in options.items() if name not in _TENSORS]
        key = key_of((who, op, type(dim), dim, how, *said), given[:6])
    return scan_shards(who, partial(_request, who, x, op, dim, options, gate), group, how, key, given)


def answered(
    tensors: tuple[Any, ...], outs: tuple[Any, ...], complete: Any, options: tuple[Any, ...], chunk: Any
) -> Any:
    """Return what a call returns that the innermost block shards; None for others. The arguments are ``called``'s."""
    block, (x, mask, gate, starts, offsets, initial), (op, dim, *_) = SHARDED[-1], tensors, options
    if type(x).__name__ == "DTensor" or not block.covers(dim, getattr(x, "ndim", 0)):
        return None
    given = dict(zip(Call.__slots__[2:7], options[2:], strict=True))
    given |= {"mask": mask, "segment_starts": starts, "offsets": offsets, "initial": initial, "complete": complete}
    given |= {"return_final": given.pop("final"), "chunk": chunk}
    given["out"] = next((each for each in outs if each is not None), None)
    name = Call(op, dim).name
    found = _sharded(name, x, op, dim, given, gate, block.group, block.how)
    return found if len(found) > 1 else found[0]


@contextlib.contextmanager
def sharded(
    group: Any = None, dims: tuple[int, ...] = (1,), *, spans: Any = None, method: str = "auto", check: str = "first"
) -> Iterator[None]:
    """Scan plain tensors along ``dims`` over the ranks of a group inside the block, for models that know of no ranks.

    Every scan of ``scanops`` inside the block, and with ``scanops.patch_torch()`` those of torch, whose dimension is
    one of ``dims`` is the sharded one of the same name; others stay as they are. Arguments are those of ``scan``. What
    sharded scans do not support raises UnsupportedRequest. The block counts in all threads of the process, and where
    ``torch.compile`` traces. Backward passes need no block, except those of checkpoints, which compute again.

    Example:
        >>> import torch, scanops, scanops.distributed as sd, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> with sd.sharded(dims=(0,)):
        ...     scanops.cumsum(torch.ones(3), 0)
        tensor([1., 2., 3.])
        >>> dist.destroy_process_group()
    """
    SHARDED.append(Block(group_of(group), dims, How(method, check, spans)))
    try:
        yield
    finally:
        SHARDED.pop()


def _request(who: str, x: Tensor, op: Any, dim: int, options: dict[str, Any], gate: Any) -> tuple[Call, Inputs]:
    """Return a call and its tensors as the scan of one GPU has them; what it refuses the other ranks hear of."""
    for name, instead in _REFUSED.items():
        given = options.pop(name, None)
        if given is not None and given is not False:
            raise UnsupportedRequest(
                f"{who}: {name} is not for sharded dimensions",
                allowed="group, spans, method, check, mask, reverse, exclusive, initial, return_final, segment_starts, "
                "offsets, dtype, accumulate",
                value=f"{name} given",
                hint=instead,
            )
    unknown = [name for name in options if name not in _TENSORS and name not in _OPTIONS]
    if unknown:
        raise TypeError(f"{who}() got an unexpected keyword argument {unknown[0]!r}")
    op = plain_name(op) if who == "scan" else op
    if gate is not None:
        gate, options["dtype"] = gate_of(gate, x, options.get("dtype"), None)
        x = broadcast_gates(gate, x)
    tensors = {field: options.pop(name, None) for name, field in _TENSORS.items()}
    return Call(op, dim, final=options.pop("return_final", False), **options), Inputs(x, gate=gate, **tensors)
