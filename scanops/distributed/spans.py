"""Which items of the line each rank holds: one shard each, or a span near each end of the line, as zigzag layouts have.

Positions count the spans in scan order. A state is exchanged for each span, so a layout says in which order the states
that ranks exchanged are scanned, and where each span begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.request import Inputs

__all__ = ["Layout", "in_order_of", "join_spans", "layout_of", "split_spans"]

HEAD_TAIL = "head_tail"


class Layout(NamedTuple):
    """The spans of all ranks in scan order, and which of them are this rank's."""

    rows: tuple[int, ...]  # the span at each position: the ranks' spans are counted one rank after the other
    positions: tuple[int, ...]  # of this rank's spans
    half: int | None = None  # the length of every span, where ranks hold two

    @property
    def width(self) -> int:
        """The number of spans of each rank."""
        return len(self.positions)

    @property
    def words(self) -> str:
        """The layout in words that are equal for equal layouts."""
        return "one a rank" if self.half is None else f"two of {self.half} items a rank"

    def lengths_of(self, length: int) -> tuple[int, ...]:
        """Return the lengths of a rank's spans, whose items are ``length`` in all."""
        return (length,) if self.half is None else (self.half, self.half)

    def starts_of(self, lengths: Tensor, reverse: bool) -> Tensor:
        """Return where the span at each position begins in the line; ``lengths`` are those of the ranks' shards."""
        if self.half is None:  # by no scan of torch, which a block may have patched
            before = torch.ones((len(lengths),) * 2, dtype=lengths.dtype, device=lengths.device).tril(-1)
            starts = (before * lengths).sum(1)
        else:  # made on the device: no CUDA graph holds a copy from the CPU
            starts = torch.arange(len(self.rows), device=lengths.device) * self.half
        return starts.flip(0) if reverse else starts


def layout_of(who: str, spans: object, ranks: int, rank: int, length: int, *, reverse: bool) -> Layout:
    """Return the layout of ``spans``: None, or ``"head_tail"`` for the k-th span from the front and from the back.

    ``length`` is that of the items of this rank. Raises UnsupportedRequest.
    """
    half: int | None = None
    mine: tuple[int, ...] = (rank,)
    if spans is None:
        rows = list(range(ranks))
    elif isinstance(spans, str) and spans == HEAD_TAIL:
        half, odd = divmod(length, 2)
        if odd:
            raise _illegal(who, "an even number of items on each rank", f"spans={HEAD_TAIL!r} of {length} items")
        rows = [*range(0, 2 * ranks, 2), *range(2 * ranks - 1, 0, -2)]
        mine = (2 * rank, 2 * rank + 1)
    else:
        raise _illegal(who, f"None or {HEAD_TAIL!r}", f"spans={format_value(spans)}")
    rows = rows[::-1] if reverse else rows
    return Layout(tuple(rows), tuple(map(rows.index, mine)), half)


def _illegal(who: str, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"{who}: spans must be None or {HEAD_TAIL!r}: {value}",
        allowed=allowed,
        value=value,
        hint="leave spans out where the shards lie in the order of the ranks",
    )


def split_spans(tensors: Inputs, dim: int, lengths: Sequence[int]) -> list[Inputs]:
    """Return views of each span of a rank's tensors; what is of size 1 along ``dim`` belongs to every span."""
    if len(lengths) == 1:
        return [tensors]
    ends = list(itertools.accumulate(lengths, initial=0))
    return [
        tensors._replace(
            mask=narrow_operand(tensors.mask, tensors.x.ndim, dim, *ends),
            gate=narrow_operand(tensors.gate, tensors.x.ndim, dim, *ends),
            starts=narrow_operand(tensors.starts, tensors.x.ndim, dim, *ends),
            x=tensors.x.narrow(dim, ends[0], ends[1] - ends[0]),
        )
        for ends in itertools.pairwise(ends)
    ]


def narrow_operand(operand: Tensor | None, rank: int, dim: int, start: int, stop: int) -> Tensor | None:
    """Return the items of an operand that broadcasts to ``rank`` dimensions between two places along ``dim``."""
    if operand is None:
        return None
    at = dim - rank + operand.ndim
    return operand if at < 0 or operand.shape[at] == 1 else operand.narrow(at, start, stop - start)


def join_spans(results: Sequence[tuple[Tensor, ...]], dim: int) -> tuple[Tensor, ...]:
    """Return the results of all spans of a rank, one after the other."""
    return results[0] if len(results) == 1 else tuple(torch.cat(of, dim) for of in zip(*results, strict=True))


def in_order_of(places: Sequence[int], rows: Tensor) -> Tensor:
    """Return the rows at these places. Indexing by a list would wait for the GPU, which no CUDA graph can."""
    places, rising = list(places), list(range(len(rows)))
    if places == rising:
        return rows
    return rows.flip(0) if places == rising[::-1] else torch.stack([rows[place] for place in places])
