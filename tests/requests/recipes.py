"""Whole requests, drawn: what a kernel is specialised for, the layout of data, and what is wrong with a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanops.codegen.dtypes import DTYPES, dtype_named
from scanops.codegen.operators import BUILT_IN

__all__ = ["OPS", "OUTS", "Call", "Recipe", "laid", "recipe", "spread_over"]

OPS = tuple(BUILT_IN)
NUMBERS = tuple(getattr(torch, name) for name in DTYPES)
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (7,), (33,), (3, 5), (1, 64), (4, 31), (65, 2), (3, 0), (0, 4), (2, 1, 9), (2, 33, 3),
    (3, 4, 0), (1, 1, 1), (2, 130, 5), (2, 3, 4, 5), (1, 2, 1, 40), (2, 4, 3, 3), (1, 300), (2, 2049), (700, 3),
)  # fmt: skip
VIEWS = ("dense", "permuted", "stepped", "offset", "expanded", "channels_last")
MASKS = ("none", "none", "bool", "number")
SPREADS = ("full", "broadcast", "of lower rank", "0-d", "expanded", "stepped", "permuted", "channels_last")
INITIALS = ("none", "none", "number", "one for each line", "one for all lines", "expanded", "stepped")
SEGMENTS = ("none", "none", "flags", "int32", "int64")
ACCUMULATE = (None, None, None, None, None, None, "compensated", torch.float32, torch.float64, torch.complex128)
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


def recipe(pick: Callable[[Sequence[Any]], Any]) -> Recipe:
    """Draw one by choosing out of sequences."""
    shape = pick(SHAPES)
    rank = max(1, len(shape))
    op = pick((*OPS, "linear", "linear"))
    kinds = BUILT_IN[op].kinds
    likely = [dtype for dtype in NUMBERS if dtype_named(str(dtype)).kind in kinds]
    x_dtype = pick((*NUMBERS, *likely * 3))
    return Recipe(
        op=op,
        x_dtype=x_dtype,
        shape=shape,
        view=pick(VIEWS),
        dim=pick(range(-rank, rank)),
        mask=pick(MASKS),
        mask_dtype=pick((x_dtype, torch.float32, *NUMBERS[1:])) if x_dtype != torch.bool else pick(NUMBERS[1:]),
        spread=pick(SPREADS),
        gate_dtype=pick((*[x_dtype] * len(NUMBERS), torch.float32, *NUMBERS)),
        gate_spread=pick(SPREADS),
        wide_gate=pick((False, False, True)),
        initial=pick(INITIALS),
        initial_dtype=pick((*[None] * len(NUMBERS), *NUMBERS)),
        final=pick((False, True)),
        segments=pick(SEGMENTS),
        starts_spread=pick(SPREADS),
        reverse=pick((False, True)),
        exclusive=pick((False, True)),
        dtype=pick((*[None] * len(NUMBERS), *NUMBERS, *likely)),
        accumulate=pick(ACCUMULATE),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recipe with its data and what is wrong with it."""

    recipe: Recipe
    seed: int = 0
    special: bool = False  # NaN and infinities among the items
    out: str = "none"
    wrong: str | None = None  # a key of built.CHANGES


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
