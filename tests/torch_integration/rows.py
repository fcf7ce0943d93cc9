"""The scans that everything of PyTorch is tried on: every kind of operator, and every variant."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import scanops
from tests.numbers.oracle import COMPOUND, starts_of, walked

__all__ = ["DIM", "LENGTH", "ROWS", "Row", "Tensors", "flat"]

Tensors = tuple[torch.Tensor, ...]
DIM, LENGTH = 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sort of call: a function of tensors, all of whose results count."""

    name: str  # as on the page
    call: Callable[..., Any]
    composed: Callable[..., Any]  # the same of torch's operations, or item by item
    operands: tuple[str, ...] = ("x",)  # words of _DRAWS
    torch_name: str | None = None  # torch's function of the same results

    def tensors(self, length: int = LENGTH, seed: int = 0) -> Tensors:
        """Arguments of the call, whose lines are of that length."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_DRAWS[word](length, generator) for word in self.operands)

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        return flat(self.call(*tensors))

    def by_torch(self, *tensors: torch.Tensor) -> Tensors:
        """What the call is held to."""
        return flat(self.composed(*tensors))


def flat(found: Any) -> Tensors:
    if isinstance(found, torch.Tensor):
        return (found,)
    values, *others = found
    return (*values, *others) if isinstance(values, tuple) else (values, *others)


def _rand(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Away from 0 and from one another."""
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


_DRAWS: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "x": lambda n, g: _rand(3, n, generator=g),
    "whole": lambda n, g: torch.randint(-9, 9, (3, n), generator=g),
    "weights": lambda n, g: _rand(n, generator=g),  # of lower rank: its gradient is summed
    "gate": lambda n, g: _rand(3, n, generator=g),
    "gates of rows": lambda n, g: _rand(3, 1, generator=g),
    "keep": lambda n, g: torch.randint(2, (3, n), generator=g).bool(),
    "starts": lambda n, g: torch.randint(2, (3, n), generator=g).bool(),
    "offsets": lambda n, g: torch.tensor([0, 2, 2, n]),
    "initial": lambda n, g: _rand(3, generator=g),
}


def _of_torch(name: str) -> Row:
    """A scan of the same name in torch."""
    ours, theirs = getattr(scanops, name), getattr(torch, name)
    return Row(name=f"`{name}`", call=lambda x: ours(x, DIM), composed=lambda x: theirs(x, DIM), torch_name=name)


# By its name on the page: the operands, the call, and the same of torch's operations.
_CALLS: dict[str, tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]] = {
    "`linear_scan`": (
        ("gate", "x"),
        lambda a, x: scanops.linear_scan(a, x, DIM),
        lambda a, x: walked("linear", x, a=a)[:1],
    ),
    '`scan(x, "max")`': (("x",), lambda x: scanops.scan(x, "max", DIM), lambda x: torch.cummax(x, DIM).values),
    '`scan(x, "bitwise_xor")`': (
        ("whole",),
        lambda x: scanops.scan(x, "bitwise_xor", DIM),
        lambda x: torch.stack(list(itertools.accumulate(x.unbind(DIM), operator.xor)), DIM),
    ),
    "`scan(x, Operator(...))`": (
        ("x",),
        lambda x: scanops.scan(x, COMPOUND, DIM),
        lambda x: torch.cumprod(1 + x, DIM) - 1,
    ),
    "`reverse`, `exclusive`": (
        ("x",),
        lambda x: scanops.cumprod(x, DIM, reverse=True, exclusive=True),
        lambda x: walked("prod", x, reverse=True, exclusive=True)[:1],
    ),
    "`complete`": (
        ("x", "initial"),
        lambda x, initial: scanops.cumprod(x, DIM, initial=initial, complete=True),
        lambda x, initial: torch.cumprod(torch.cat([initial.unsqueeze(DIM), x], DIM), DIM),
    ),
    "`mask` that selects": (
        ("x", "keep"),
        lambda x, keep: scanops.cumsum(x, DIM, mask=keep, reverse=True),
        lambda x, keep: walked("sum", x, mask=keep, reverse=True)[:1],
    ),
    "`mask` that multiplies": (
        ("x", "weights"),
        lambda x, weights: scanops.cumsum(x, DIM, mask=weights),
        lambda x, weights: torch.cumsum(x * weights, DIM),
    ),
    "`initial`, `return_final`": (
        ("x", "initial"),
        lambda x, initial: scanops.cumsum(x, DIM, initial=initial, return_final=True),
        lambda x, initial: walked("sum", x, initial=initial),
    ),
    "`segment_starts`": (
        ("gates of rows", "x", "starts"),
        lambda a, x, starts: scanops.linear_scan(a, x, DIM, segment_starts=starts, return_final=True),
        lambda a, x, starts: walked("linear", x, a=a, segment_starts=starts),
    ),
    "`offsets`": (
        ("x", "offsets"),
        lambda x, offsets: scanops.logcumsumexp(x, DIM, offsets=offsets),
        lambda x, offsets: walked("logcumsumexp", x, segment_starts=starts_of(offsets, x.shape[DIM]))[:1],
    ),
}
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        *(_of_torch(name) for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")),
        *(Row(name=name, operands=words, call=call, composed=same) for name, (words, call, same) in _CALLS.items()),
    )
}
