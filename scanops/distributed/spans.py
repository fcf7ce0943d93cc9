"""Which items of the whole line each rank holds: one shard, or several spans of it, as zigzag layouts have them.

Pure functions. A *row* is a span in the order in which ranks exchange states: all spans of rank 0, then those of rank
1, and so on. A *position* is its place in the line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scanops.errors import UnsupportedRequest, format_value
from scanops.requests.request import Inputs

__all__ = [
    "HEAD_TAIL",
    "Layout",
    "Table",
    "describe_table",
    "in_order_of",
    "join_spans",
    "layout_of",
    "narrow_operand",
    "span_table",
    "split_spans",
]

HEAD_TAIL = "head_tail"
Table = tuple[tuple[tuple[int, int], ...], ...]  # of each rank its spans (start, stop), in the order of its items


class Layout(NamedTuple):
    """The spans of all ranks in the order of the line, and which of them are this rank's."""

    rows: tuple[int, ...]  # the row at each position
    positions: tuple[int, ...]  # of this rank's spans
    lengths: tuple[int, ...]  # of this rank's spans
    starts: tuple[int, ...] | None  # where the span at each position begins; None: that follows from all lengths

    @property
    def width(self) -> int:
        """The number of spans of each rank: those with fewer have empty ones."""
        return len(self.positions)

    def lengths_of(self, length: int) -> tuple[int, ...]:
        """Return the lengths of a rank's spans, whose items are ``length`` in all."""
        return (length,) if self.width == 1 else self.lengths

    def towards(self, reverse: bool) -> Layout:
        """Return the layout with positions in scan order."""
        if not reverse:
            return self
        last = len(self.rows) - 1
        return self._replace(
            rows=self.rows[::-1],
            positions=tuple(last - each for each in self.positions),
            starts=None if self.starts is None else self.starts[::-1],
        )

    def starts_of(self, lengths: Tensor | Sequence[int], reverse: bool) -> list[int] | Tensor:
        """Return where the span at each position begins in the line; ``lengths`` are those of the ranks' shards."""
        if self.starts is not None:
            return list(self.starts)
        if isinstance(lengths, Tensor):
            found = lengths.cumsum(0) - lengths
            return found.flip(0) if reverse else found
        starts = list(itertools.accumulate(lengths, initial=0))[:-1]
        return starts[::-1] if reverse else starts


def span_table(who: str, spans: Any, ranks: int, length: int) -> Table | None:
    """Return the spans of each rank; None where each holds one shard, in the order of the ranks.

    ``spans`` is None, ``"head_tail"`` for 2 spans of equal lengths, the k-th from the front and the k-th from the back,
    or a table: a sequence of (start, stop) for each rank. ``length`` is that of the items of this rank; Raises
    UnsupportedRequest unless the spans of all ranks are the line, each item once.
    """
    if spans is None:
        return None
    if isinstance(spans, str) and spans == HEAD_TAIL:
        half, odd = divmod(length, 2)
        if odd:
            raise _illegal(who, "an even number of items on each rank", f"spans={HEAD_TAIL!r} of {length} items")
        back = (2 * ranks - 1) * half
        return tuple(((r * half, (r + 1) * half), (back - r * half, back - (r - 1) * half)) for r in range(ranks))
    table = _parse(spans)
    if table is None or len(table) != ranks:
        raise _illegal(
            who, f"None, {HEAD_TAIL!r}, or pairs (start, stop) for each of {ranks} ranks", format_value(spans)
        )
    held = sorted(span for of_rank in table for span in of_rank if span[0] != span[1])
    ends = [0, *(stop for _, stop in held)]
    if any(start >= stop for start, stop in held) or [start for start, _ in held] != ends[:-1]:
        raise _illegal(who, "spans that hold each item of the line once, from 0 to its end", format_value(spans))
    return table


def _parse(spans: Any) -> Table | None:
    try:
        return tuple(tuple((int(start), int(stop)) for start, stop in of_rank) for of_rank in spans)
    except (TypeError, ValueError):
        return None


def _illegal(who: str, allowed: str, value: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"{who}: spans must be the items of each rank: {value}",
        allowed=allowed,
        value=value,
        hint="leave spans out where the shards lie in the order of the ranks",
    )


def layout_of(who: str, table: Table | None, ranks: int, position: int, length: int) -> Layout:
    """Return the layout of a table. Raises UnsupportedRequest where ``length`` is not that of this rank's spans."""
    if table is None:
        return Layout(tuple(range(ranks)), (position,), (length,), None)
    own = sum(stop - start for start, stop in table[position])
    if own != length:
        raise _illegal(
            who, f"{length} items for the rank at position {position}, as x has", format_value(table[position])
        )
    count = max(1, *map(len, table))
    rows = [span for of_rank in table for span in (*of_rank, *[(0, 0)] * (count - len(of_rank)))]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    mine = range(position * count, (position + 1) * count)
    return Layout(
        rows=tuple(order),
        positions=tuple(map(order.index, mine)),
        lengths=tuple(rows[row][1] - rows[row][0] for row in mine),
        starts=tuple(rows[row][0] for row in order),
    )


def describe_table(table: Table | None) -> str:
    """Return a table in words that are equal for equal layouts."""
    return "one a rank" if table is None else str(table)


def split_spans(tensors: Inputs, dim: int, lengths: Sequence[int]) -> list[Inputs]:
    """Return views of each span of a rank's tensors; what is of size 1 along ``dim`` belongs to every span."""
    if len(lengths) == 1:
        return [tensors]
    ends = list(itertools.accumulate(lengths, initial=0))
    return [
        tensors._replace(
            **{
                name: narrow_operand(getattr(tensors, name), tensors.x.ndim, dim, *ends)
                for name in ("mask", "gate", "starts")
            },
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
