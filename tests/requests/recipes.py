"""Whole requests, drawn: what a kernel is specialised for, and the layout of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, dtype_named
from scanops.codegen.operators import BUILT_IN

OPS = tuple(BUILT_IN)
NUMBERS = tuple(getattr(torch, name) for name in DTYPES)
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (7,), (33,), (3, 5), (1, 64), (4, 31), (65, 2), (3, 0), (0, 4), (2, 1, 9), (2, 33, 3),
    (3, 4, 0), (1, 1, 1), (2, 130, 5), (2, 3, 4, 5), (1, 2, 1, 40), (2, 4, 3, 3), (1, 300), (2, 2049), (700, 3),
    (2, 1, 2, 9, 2, 1, 2),
)  # fmt: skip
VIEWS = ("dense", "permuted", "stepped", "offset", "expanded", "channels_last")
SPREADS = ("full", "broadcast", "of lower rank", "0-d", "expanded", "stepped", "permuted", "channels_last")
OUTS = ("none", "none", "none", "fresh", "stepped", "alias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a kernel is specialised for."""

    op: str
    x_dtype: torch.dtype
    shape: tuple[int, ...]
    view: str
    dim: int
    mask: str
    mask_dtype: torch.dtype
    spread: str
    gate_dtype: torch.dtype
    gate_spread: str
    wide_gate: bool  # the gate has the whole shape, and what is added is broadcast
    initial: str
    initial_dtype: torch.dtype | None  # None: the one that lines go on in
    final: bool
    segments: str
    starts_spread: str
    reverse: bool
    exclusive: bool
    dtype: torch.dtype | None
    accumulate: torch.dtype | str | None


AXES: dict[str, Sequence[Any]] = {
    "view": VIEWS,
    "mask": ("none", "none", "bool", "number"),
    "spread": SPREADS,
    "gate_spread": SPREADS,
    "starts_spread": SPREADS,
    "wide_gate": (False, False, True),
    "initial": ("none", "none", "number", "one for each line", "one for all lines", "expanded", "stepped"),
    "initial_dtype": (*[None] * len(NUMBERS), *NUMBERS),
    "segments": ("none", "none", "flags", "int32", "int64"),
    "accumulate": (*[None] * 6, "compensated", torch.float32, torch.float64, torch.complex128),
    **dict.fromkeys(("final", "reverse", "exclusive"), (False, True)),
}


def recipe(pick: Callable[[Sequence[Any]], Any]) -> Recipe:
    """Draw one by choosing out of sequences; dtypes that suit the operator are likely."""
    shape, op = pick(SHAPES), pick((*OPS, "linear", "linear"))
    rank, kinds = max(1, len(shape)), BUILT_IN[op].kinds
    likely = [dtype for dtype in NUMBERS if dtype_named(str(dtype)).kind in kinds]
    x_dtype = pick((*NUMBERS, *likely * 3))
    return Recipe(
        op=op,
        x_dtype=x_dtype,
        shape=shape,
        dim=pick(range(-rank, rank)),
        mask_dtype=pick(((x_dtype, torch.float32) if x_dtype != torch.bool else ()) + NUMBERS[1:]),
        gate_dtype=pick((*[x_dtype] * len(NUMBERS), torch.float32, *NUMBERS)),
        dtype=pick((*[None] * len(NUMBERS), *NUMBERS, *likely)),
        **{axis: pick(values) for axis, values in AXES.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recipe with its data."""

    recipe: Recipe
    seed: int = 0
    special: bool = False  # NaN and infinities among the items
    out: str = "none"


def laid(view: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    """A tensor of that shape, lying as the view says."""
    if view == "permuted" and len(shape) > 1:
        return draw(shape[::-1]).permute(*reversed(range(len(shape))))
    if view == "stepped" and shape:
        return draw((*shape[:-1], 2 * shape[-1]))[..., ::2]
    if view == "offset" and shape:
        return draw((math.prod(shape) + 1,))[1:].reshape(shape)
    if view == "expanded" and shape and shape[0]:
        return draw((1, *shape[1:])).expand(shape)
    if view == "channels_last" and len(shape) == 4:
        return draw(shape).contiguous(memory_format=torch.channels_last)
    return draw(shape)


def spread_over(spread: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    """A tensor that broadcasts to that shape."""
    if spread == "broadcast" and shape:
        return draw((1, *shape[1:]))
    if spread == "of lower rank":
        return draw(shape[1:])
    if spread == "0-d":
        return draw(())
    if spread == "expanded" and shape:
        return draw((*shape[:-1], 1)).expand(shape)
    return laid(spread, shape, draw)
