"""What the kernels are held to: a sequential scan in Python's own numbers, and data on which it is exact.

The inputs are small whole numbers (or signs, for products), so that every partial result is exact in every dtype's
accumulator whatever the order of association: results must be equal, not merely close.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import OPERATORS, Operator, form_of

# Test only: not commutative, two fields, so that a swapped operand or a dropped field shows in any strategy.
AFFINE = Operator(
    name="affine",
    formula="y[i] = x[i] * y[i-1] + 1",
    fields=("gate", "value"),
    lift=("x", "1"),
    combine=("older.gate * newer.gate", "newer.gate * older.value + newer.value"),
    identity=("1", "0"),
    project="state.value",
    commutative=False,
    start=0,
    step=lambda h, x: x * h + 1,
)

UNITS = (1, 1, -1, 1j, -1j)  # whose products are exact in a complex dtype

# By operator; one that is not here is taken to be exact on any small whole numbers.
_VALUES = {"sum": (-3, -2, -1, 0, 1, 2, 3), "prod": (1, 1, 1, -1), "affine": (-1, 0, 1, 1)}
_WEIGHTS = {"sum": (0, 1, 2), "prod": (1, -1), "affine": (0, 1, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape that a strategy serves."""

    strategy: str
    shape: tuple[int, ...]
    dim: int


# Lengths sit just off the sizes of tiles, lanes and accesses; rows are odd in number so that blocks are ragged.
CASES = {
    "one_thread_a_row": Case(strategy="warp", shape=(37, 4), dim=1),
    "lanes": Case(strategy="warp", shape=(9, 64), dim=1),
    "whole_warp": Case(strategy="warp", shape=(5, 601), dim=1),
    "staged": Case(strategy="staged", shape=(70, 7), dim=1),
    "staged_pieces": Case(strategy="staged", shape=(9, 127), dim=1),
    "one_tile": Case(strategy="block", shape=(3, 2052), dim=1),
    "one_tile_odd": Case(strategy="block", shape=(3, 2047), dim=1),
    "wave": Case(strategy="wave", shape=(7, 40004), dim=1),
    "wave_odd": Case(strategy="wave", shape=(5, 40003), dim=1),
    "short_columns": Case(strategy="columns", shape=(3, 5, 33), dim=1),
    "column_loop": Case(strategy="columns", shape=(2, 1030, 7), dim=1),
    "wide_columns": Case(strategy="columns", shape=(1, 130, 70), dim=1),
    "column_ring": Case(strategy="columns", shape=(2, 700, 36), dim=1),
    "panels_chain": Case(strategy="panels", shape=(2, 1100, 36), dim=1),
    "panels_odd": Case(strategy="panels", shape=(1, 600, 35), dim=1),
    "panels_few": Case(strategy="panels", shape=(1, 1500, 32), dim=1),
    "split": Case(strategy="split", shape=(2, 131076), dim=1),
    "split_odd": Case(strategy="split", shape=(1, 70001), dim=1),
}


def exact_dtype(op: str) -> torch.dtype:
    """A dtype that the operator takes and is exact in."""
    return torch.float32 if "float" in OPERATORS[op].kinds else torch.int64


def values(op: str, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 0) -> torch.Tensor:
    """Input on which ``op`` is exact."""
    choices = _VALUES.get(op, (0, 1, 2, 3))
    if dtype.is_complex and op == "sum":
        return _draw(tuple(complex(a, b) for a in choices for b in choices), shape, seed).to(dtype)
    return _draw(UNITS if dtype.is_complex else choices, shape, seed).to(dtype)


def weights(op: str, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 1) -> torch.Tensor:
    """A numeric mask on which it stays exact."""
    if dtype.is_complex:
        return _draw(UNITS, shape, seed).to(dtype)
    return _draw(_WEIGHTS.get(op, (0, 1, 1)), shape, seed).to(dtype)


def selection(shape: tuple[int, ...], *, seed: int = 2) -> torch.Tensor:
    """A bool mask."""
    return _draw((0, 1, 1), shape, seed).bool()


def _draw(choices: tuple[complex, ...], shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor(choices)[torch.randint(len(choices), shape, generator=generator)]


def sequential(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The scan, line by line and item by item, in Python's numbers; converted to ``dtype`` at the end."""
    return both_ends(x, op, dim, mask=mask, reverse=reverse, dtype=dtype)[exclusive]


def both_ends(
    x: torch.Tensor, op: str, dim: int, *, mask: torch.Tensor | None, reverse: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inclusive and the exclusive scan: the states after and before each item of one walk."""
    walks, terms = _walks(x, op, dim, mask, reverse, dtype)
    return both_ends_of(walks, terms, dim, reverse, dtype)


def _walks(
    x: torch.Tensor, op: str, dim: int, mask: torch.Tensor | None, reverse: bool, dtype: torch.dtype
) -> tuple[list[list[Any]], torch.Tensor]:
    """The states of every line in scan order, and what was scanned, with its dimension last."""
    out = dtype_named(dtype)
    operator = form_of(OPERATORS[op], out.kind)
    start = operator.start_of(out)
    selects = mask is not None and mask.dtype == torch.bool
    terms = (x if mask is None or selects else x * mask).movedim(dim, -1)
    keeps = mask.expand(x.shape).movedim(dim, -1).reshape(-1, x.shape[dim]) if mask is not None and selects else None
    walks = []
    for number, line in enumerate(terms.reshape(-1, terms.shape[-1]).tolist()):
        keep = None if keeps is None else keeps[number].tolist()
        places = range(len(line))
        turn = slice(None, None, -1 if reverse else 1)
        walks.append(_walk(operator, start, line[turn], keep[turn] if keep else None, places[turn]))
    return walks, terms


def outputs(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """Every output of an operator: the values, and the indices where it gives them."""
    if not OPERATORS[op].indices:
        return (sequential(x, op, dim, mask=mask, reverse=reverse, exclusive=exclusive, dtype=dtype),)
    walks, terms = _walks(x, op, dim, mask, reverse, dtype)
    found = []
    for part, of in enumerate((dtype, torch.int64)):
        states = [[state[part] for state in walk] for walk in walks]
        found.append(both_ends_of(states, terms, dim, reverse, of)[exclusive])
    return tuple(found)


def both_ends_of(
    walks: list[list[Any]], terms: torch.Tensor, dim: int, reverse: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states after and before each item, in the tensor's shape; ``terms`` has the scanned dimension last."""
    exact = torch.complex128 if dtype.is_complex else torch.int64
    exact = torch.float64 if dtype.is_floating_point else exact
    states = torch.tensor(walks, dtype=exact)
    ends = (states[:, 1:], states[:, :-1])
    results = [(end.flip(1) if reverse else end).reshape(terms.shape).movedim(-1, dim) for end in ends]
    return results[0].to(dtype).contiguous(), results[1].to(dtype).contiguous()


def of_same_turn(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """``y`` with each angle moved by whole turns to where ``wanted`` has it: torch's logarithm of a complex sum takes
    the turn from the order in which it adds, and has no angle at all where the real part is infinite.
    """
    turns = torch.round((wanted.imag - y.imag) / (2 * math.pi))
    moved = torch.where(turns.isfinite(), y.imag + 2 * math.pi * turns, y.imag)
    return torch.complex(y.real, torch.where(y.real.isinf(), wanted.imag, moved))


def _walk(operator: Operator, start: Any, line: list[float], keep: list[bool] | None, places: range) -> list[Any]:
    """The states from before the first item to after the last one."""
    step = operator.step if operator.indices else lambda h, x, i: operator.step(h, x)
    items = zip(line, places, itertools.repeat(True) if keep is None else keep, strict=False)
    return list(itertools.accumulate(items, lambda h, item: step(h, *item[:2]) if item[2] else h, initial=start))
