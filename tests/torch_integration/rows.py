"""The scans that everything of PyTorch is tried on: every kind of operator, and every variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import scanops

__all__ = ["DIM", "LENGTH", "ROWS", "Row", "Tensors"]

Tensors = tuple[torch.Tensor, ...]
DIM, LENGTH = 1, 5

COMPOUND = scanops.Operator(
    name="compound",
    formula="y[i] = (1 + x[0]) (1 + x[1]) ... (1 + x[i]) - 1",
    lift=("x",),
    combine=("older + newer + older * newer",),
    identity=("0",),
    kinds=("float",),
    gives="kept",
    commutative=True,
    start=0,
    step=lambda h, x: h + x + h * x,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sort of call: a function of tensors, all of whose results count."""

    name: str  # as on the page
    call: Callable[..., Any]
    operands: tuple[str, ...] = ("x",)  # words of _DRAWS
    torch_name: str | None = None  # torch's function of the same results

    def tensors(self, length: int = LENGTH, seed: int = 0) -> Tensors:
        """Arguments of the call, whose lines are of that length."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_DRAWS[word](length, generator) for word in self.operands)

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        found = self.call(*tensors)
        return (found,) if isinstance(found, torch.Tensor) else tuple(_flat(found))


def _flat(found: Any) -> Tensors:
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

ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(name="`cumsum`", call=lambda x: scanops.cumsum(x, DIM), torch_name="cumsum"),
        Row(name="`cumprod`", call=lambda x: scanops.cumprod(x, DIM), torch_name="cumprod"),
        Row(name="`logcumsumexp`", call=lambda x: scanops.logcumsumexp(x, DIM), torch_name="logcumsumexp"),
        Row(name="`cummax`", call=lambda x: scanops.cummax(x, DIM), torch_name="cummax"),
        Row(name="`cummin`", call=lambda x: scanops.cummin(x, DIM), torch_name="cummin"),
        Row(
            name="`linear_scan`",
            call=lambda a, b: scanops.linear_scan(a, b, DIM),
            operands=("gate", "x"),
        ),
        Row(name='`scan(x, "max")`', call=lambda x: scanops.scan(x, "max", DIM)),
        Row(name='`scan(x, "bitwise_xor")`', call=lambda x: scanops.scan(x, "bitwise_xor", DIM), operands=("whole",)),
        Row(name="`scan(x, Operator(...))`", call=lambda x: scanops.scan(x, COMPOUND, DIM)),
        Row(
            name="`reverse`, `exclusive`",
            call=lambda x: scanops.cumprod(x, DIM, reverse=True, exclusive=True),
        ),
        Row(
            name="`mask` that selects",
            call=lambda x, keep: scanops.cumsum(x, DIM, mask=keep, reverse=True),
            operands=("x", "keep"),
        ),
        Row(
            name="`mask` that multiplies",
            call=lambda x, weights: scanops.cumsum(x, DIM, mask=weights),
            operands=("x", "weights"),
        ),
        Row(
            name="`initial`, `return_final`",
            call=lambda x, initial: scanops.cumsum(x, DIM, initial=initial, return_final=True),
            operands=("x", "initial"),
        ),
        Row(
            name="`segment_starts`",
            call=lambda a, x, starts: scanops.linear_scan(a, x, DIM, segment_starts=starts, return_final=True),
            operands=("gates of rows", "x", "starts"),
        ),
        Row(
            name="`offsets`",
            call=lambda x, offsets, initial: scanops.cummax(x, DIM, offsets=offsets, initial=initial * 0.5),
            operands=("x", "offsets", "initial"),
        ),
    )
}
