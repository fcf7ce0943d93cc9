"""The oracle of kernel tests: a sequential scan in Python's numbers, and inputs on which every kernel is exact.

Inputs are small integers (signs for products), so that every partial result is exact in every dtype's accumulator,
whatever the order of association: results must be equal, not merely close.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

import scanops
from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operator import Join
from scanops.codegen.operators import OPERATORS, Operator

# For tests only: not commutative and of two fields, so that a swapped operand or a lost field shows in any strategy.
AFFINE = Operator(
    name="affine",
    formula="y[i] = x[i] * y[i-1] + 1",
    fields=("gate", "value"),
    lift=("x", "1"),
    combine=("older.gate * newer.gate", "newer.gate * older.value + newer.value"),
    identity=("1", "0"),
    project="state.value",
    resume=("1", "x"),
    commutative=False,
    start=0,
    step=lambda h, x: x * h + 1,
    join=Join(
        lift=lambda x, g, i: (torch.where(i < 0, 1, x), torch.where(i < 0, x, 1)),  # a carry-in has the index -1
        combine=lambda older, newer: (older[0] * newer[0], newer[0] * older[1] + newer[1]),
        identity=(1, 0),
        result=lambda states: (states[1],),
    ),
)


@contextmanager
def affine_in_table() -> Iterator[None]:
    """Put AFFINE into the table inside the block, unless it is there already."""
    there = OPERATORS.get("affine")
    OPERATORS["affine"] = AFFINE
    yield
    if there is None:
        del OPERATORS["affine"]


UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
UNITS = (1, 1, -1, 1j, -1j)  # their products are exact in a complex dtype

# Elements by operator; other operators are exact on any small integers.
_SIGNED = (-3, -2, -1, 0, 1, 2, 3)
_VALUES: dict[str, tuple[int, ...]] = {
    "sum": _SIGNED,
    "prod": (1, 1, 1, -1),
    "affine": (-1, 0, 1, 1),
    **dict.fromkeys(("linear", "max", "min", "cummax", "cummin"), _SIGNED),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (-1, 1, 2, 9, 60, 100, 126, 127)),
    "logical_and": (0, *(1, 2, 3) * 20),  # a rare element decides
    "logical_or": (1, *(0,) * 60),
}
_WEIGHTS = {"sum": (0, 1, 2), "prod": (1, -1), "affine": (0, 1, 1), "logical_and": (1,)}
_GATES: tuple[complex, ...] = (-1, 0, 1, 1)  # sums between two zeros are small in any dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape, the scanned dimension, and the strategy of the kernel that it is meant for."""

    strategy: str  # of the plans of most dtypes
    shape: tuple[int, ...]
    dim: int
    turned: tuple[int, ...] | None = None  # the order of the input's dimensions in memory, outermost first
    generic: bool = False  # run by a kernel that takes its length as an argument


# Lengths are next to sizes of tiles, lanes and accesses; numbers of rows are odd, so that the last block is partial.
CASES = {
    "one_thread_a_row": Case(strategy="warp", shape=(37, 4), dim=1),
    "lanes": Case(strategy="warp", shape=(9, 64), dim=1),
    "whole_warp": Case(strategy="warp", shape=(5, 601), dim=1),
    "staged": Case(strategy="staged", shape=(70, 7), dim=1),
    "staged_pieces": Case(strategy="staged", shape=(9, 127), dim=1),
    "one_tile": Case(strategy="block", shape=(3, 2052), dim=1),
    "one_tile_odd": Case(strategy="block", shape=(3, 2047), dim=1),
    "persistent": Case(strategy="persistent", shape=(4, 33004), dim=1),
    "wave_odd": Case(strategy="persistent", shape=(3, 33003), dim=1),
    "short_columns": Case(strategy="columns", shape=(3, 5, 33), dim=1),
    "column_loop": Case(strategy="columns", shape=(2, 1030, 7), dim=1),
    "wide_columns": Case(strategy="columns", shape=(1, 130, 70), dim=1),
    "column_ring": Case(strategy="columns", shape=(2, 700, 36), dim=1),
    "panels_chain": Case(strategy="columns_lookback", shape=(2, 1100, 36), dim=1),
    "panels_odd": Case(strategy="columns_lookback", shape=(1, 600, 35), dim=1),
    "panels_few": Case(strategy="columns_lookback", shape=(1, 1500, 32), dim=1),
    "split": Case(strategy="split", shape=(2, 33004), dim=1),
    "split_odd": Case(strategy="split", shape=(1, 70001), dim=1),
}


def laid(lines: torch.Tensor, case: Case) -> torch.Tensor:
    """These lines, one per row, as a tensor of the case's shape."""
    beside = case.shape[: case.dim] + case.shape[case.dim + 1 :]
    return lines.reshape(*beside, -1).movedim(-1, case.dim).contiguous()


def values(op: str, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 0) -> torch.Tensor:
    """Draw an input on which ``op`` is exact."""
    choices = _VALUES.get(op, (0, 1, 2, 3))
    if dtype.is_complex and op == "sum":
        return _draw(tuple(complex(a, b) for a in choices for b in choices), shape, seed).to(dtype)
    return _draw(UNITS if dtype.is_complex else choices, shape, seed).to(dtype)


def weights(op: str, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 1) -> torch.Tensor:
    """Draw a numeric mask with which ``op`` stays exact."""
    if dtype.is_complex:
        return _draw(UNITS, shape, seed).to(dtype)
    return _draw(_WEIGHTS.get(op, (0, 1, 1)), shape, seed).to(dtype)


def selection(shape: tuple[int, ...], *, seed: int = 2) -> torch.Tensor:
    """Draw a bool mask, two thirds of it True."""
    return _draw((0, 1, 1), shape, seed).bool()


_BLANK = ContextVar("blank", default=False)


@contextmanager
def blank() -> Iterator[None]:
    """Draw zeros inside the block: faster, where only shapes and strides matter."""
    token = _BLANK.set(True)
    yield
    _BLANK.reset(token)


def _draw(choices: tuple[complex, ...], shape: tuple[int, ...], seed: int) -> torch.Tensor:
    if _BLANK.get():
        return torch.zeros(shape, dtype=torch.tensor(choices).dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor(choices)[torch.randint(len(choices), shape, generator=generator)]


def gates(shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 3) -> torch.Tensor:
    """Draw a gate with which recurrences stay exact."""
    drawn = _draw((-1, 0, 1, 1j) if dtype.is_complex else _GATES, shape, seed)
    return (drawn.abs() if dtype in UNSIGNED else drawn).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The expected results of a scan."""

    outputs: tuple[torch.Tensor, ...]  # the values, and the indices of an operator that returns them
    final: torch.Tensor  # the carry-out of each line


def scan(
    x: torch.Tensor,
    op: str,
    dim: int,
    *,
    mask: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    initial: torch.Tensor | complex | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    complete: bool = False,
    per_segment: bool = False,
    dtype: torch.dtype,
    carry_dtype: torch.dtype | None = None,
) -> Found:
    """Scan line by line and item by item in Python's numbers; results are converted to ``dtype`` at the end.

    With ``per_segment`` each segment of a line has a carry-in and a carry-out.
    """
    out = dtype_named(dtype)
    operator = OPERATORS[op].variants.get(out.kind, OPERATORS[op])
    shape = x.movedim(dim, -1).shape
    length = shape[-1]

    def lines(tensor: torch.Tensor | None, default: Any) -> list[list[Any]]:
        if tensor is None:
            return [[default] * length] * math.prod(shape[:-1])
        found: list[list[Any]] = tensor.expand(x.shape).movedim(dim, -1).reshape(math.prod(shape[:-1]), length).tolist()
        return found

    selects = mask is not None and mask.dtype == torch.bool
    terms = _converted(x if mask is None or selects else _number(x) * _number(mask), dtype)
    cuts, heads = [(0, length)], shape[:-1]  # a line is walked from one carry-in to one carry-out
    if per_segment and offsets is not None:
        cuts, offsets = list(itertools.pairwise(offsets.tolist())), None
        heads = torch.Size([*shape[:-1], len(cuts)])
    columns = [
        lines(terms, None),
        lines(None if gate is None else _converted(gate, dtype), None),
        lines(mask if selects else None, True),
        lines(starts, False) if offsets is None else [_begun(offsets.tolist(), length)] * math.prod(shape[:-1]),
    ]
    start = operator.start_of(out)
    firsts = [start] * math.prod(heads)
    if initial is not None:
        given = initial if isinstance(initial, torch.Tensor) else torch.tensor(initial)
        given = given.movedim(dim, -1) if per_segment and given.ndim else given
        firsts = [operator.resumed(h) if operator.resumed else h for h in given.expand(heads).reshape(-1).tolist()]
    turn = slice(None, None, -1 if reverse else 1)
    found_before, found_after, last, carries = [], [], [], iter(firsts)
    for line in zip(*columns, strict=True):
        parts = []
        for begin, end in cuts:
            items = zip(*(each[begin:end][turn] for each in (*line, range(length))), strict=True)
            parts.append(_walk(operator, start, next(carries), items, reverse))
        last += [h for _, _, h in parts]
        for found, states in zip((found_before, found_after), zip(*parts, strict=True), strict=False):
            found.append([state for part in states[turn] for state in part])
    indexed = bool(OPERATORS[op].indices)
    outputs = []
    for part, of in enumerate((dtype, torch.int64) if indexed else (dtype,)):
        of_lines = found_before if exclusive else found_after
        of_lines = [[first, *line] for first, line in zip(firsts, of_lines, strict=True)] if complete else of_lines
        of_lines = [[state[part] for state in line] for line in of_lines] if indexed else of_lines
        outputs.append(_laid(of_lines, torch.Size([*shape[:-1], length + complete]), dim, reverse, of))
    final = _tensor([h[0] for h in last] if indexed else last, carry_dtype or dtype).reshape(heads)
    return Found(outputs=tuple(outputs), final=final.movedim(-1, dim) if per_segment else final)


def expected(*, final: bool = False, **options: Any) -> tuple[torch.Tensor, ...]:
    """Return the outputs of ``scan``, and the carry-out if ``final`` is set."""
    found = scan(**options)
    return (*found.outputs, *([found.final] if final else []))


def sequential(x: torch.Tensor, op: str, dim: int, **options: Any) -> torch.Tensor:
    """Return the values of a scan, as ``scan`` computes them."""
    return scan(x, op, dim, **options).outputs[0]


def _walk(
    operator: Operator, start: Any, h: Any, items: Iterable[tuple[Any, ...]], reverse: bool
) -> tuple[list[Any], list[Any], Any]:
    """Return the states of one line before and after each item, and its carry-out.

    A segment starts before its first item; in reverse it ends after that item.
    """
    before, after = [], []
    step = operator.step
    gated, placed = operator.gated, operator.places_items
    for x, gate, kept, begins, place in items:
        if begins and not reverse:
            h = start
        before.append(h)
        if kept:
            h = step(h, x, gate) if gated else step(h, x, place) if placed else step(h, x)
        after.append(h)
        if begins and reverse:
            h = start
    return before, after, h


def _begun(offsets: list[int], length: int) -> list[bool]:
    """Head flags of all segments but the first; an empty segment begins where the next one does."""
    begins = set(offsets[1:-1])
    return [place in begins for place in range(length)]


def _number(x: torch.Tensor) -> torch.Tensor:
    """Convert to a dtype that torch multiplies and that holds the same small values."""
    if x.dtype in UNSIGNED:
        return x.to(torch.int64)
    return x.float() if x.is_floating_point() and x.itemsize == 1 else x


def _converted(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert elements to the kind of the output's dtype, as before a scan."""
    if dtype == torch.bool:
        return terms != 0 if not terms.is_floating_point() else terms.float() != 0
    terms = terms.real if terms.is_complex() and not dtype.is_complex else terms
    if terms.is_floating_point():
        terms = terms.double()
        return terms if dtype.is_floating_point or dtype.is_complex else terms.long()
    return terms


def _laid(states: list[list[Any]], shape: torch.Size, dim: int, reverse: bool, dtype: torch.dtype) -> torch.Tensor:
    """Results in scan order as a tensor, with the scanned dimension moved back to ``dim``."""
    lines = [line[::-1] for line in states] if reverse else states
    return _tensor(lines, dtype).reshape(shape).movedim(-1, dim).contiguous()


def _tensor(numbers: list[Any], dtype: torch.dtype) -> torch.Tensor:
    exact = torch.complex128 if dtype.is_complex else torch.int64
    exact = torch.float64 if dtype.is_floating_point else exact
    try:
        return torch.tensor(numbers, dtype=exact).to(dtype)
    except ValueError:  # numbers of more than 64 bits: the same lower ones
        return torch.tensor([_wrapped(each) for each in numbers], dtype=exact).to(dtype)


def _wrapped(number: Any) -> Any:
    if isinstance(number, list):
        return [_wrapped(each) for each in number]
    return (int(number) + 2**63) % 2**64 - 2**63


def placed(x: torch.Tensor, device: str) -> torch.Tensor:
    """Copy ``x`` to a device, strides and offset included, which ``to`` does not promise."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    storage = x.as_strided((x.storage_offset() + reach,), (1,), 0).to(device)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def call(
    x: torch.Tensor, op: str, dim: int, *, gate: torch.Tensor | None = None, final: bool = False, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Return every output of the public function for ``op``, then the carry-out if ``final`` is set."""
    options["return_final"] = "segments" if options.pop("per_segment", False) and final else final
    if "starts" in options:
        options["segment_starts"] = options.pop("starts")
    if OPERATORS[op].indices:
        for name in ("dtype", "complete"):  # which these have not
            options.pop(name, None)
        found = getattr(scanops, op)(x, dim, **options)
        return (*found[0], found[1]) if final else tuple(found)
    found = scanops.scan(x, op, dim, **options) if gate is None else scanops.linear_scan(gate, x, dim, **options)
    return found if final else (found,)


def hold(x: torch.Tensor, op: str, dim: int, device: str = "cpu", *, final: bool = False, **options: Any) -> None:
    """Scan ``x`` on a device and compare every output, and the carry-out, with ``scan``."""
    there = {name: placed(each, device) if isinstance(each, torch.Tensor) else each for name, each in options.items()}
    found = call(placed(x, device), op, dim, final=final, **there)
    options["dtype"] = options.get("dtype") or found[0].dtype
    carry = found[-1].dtype if final else None
    compare(op, found, expected(x=x, op=op, dim=dim, final=final, carry_dtype=carry, **options))


def compare(op: str, found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Compare results in dtype, shape, layout and values: exactly, or within rounding for logcumsumexp."""
    for y, wanted in zip(found, expected, strict=True):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape and y.is_contiguous()
        agree(op, y.cpu(), wanted)


def agree(op: str, y: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare the values of two results, NaN equal to NaN."""
    if op != "logcumsumexp":
        torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    elif y.is_complex():
        torch.testing.assert_close(of_same_turn(y, wanted), wanted, atol=1e-4, rtol=1e-4, equal_nan=True)
    else:
        torch.testing.assert_close(y, wanted, equal_nan=True)


def of_same_turn(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return ``y`` with its angles moved by multiples of 2 pi towards those of ``wanted``.

    The angle of torch's complex logcumsumexp depends on its order of additions, and is undefined for infinite real
    parts.
    """
    turns = torch.round((wanted.imag - y.imag) / (2 * math.pi))
    moved = torch.where(turns.isfinite(), y.imag + 2 * math.pi * turns, y.imag)
    return torch.complex(y.real, torch.where(y.real.isinf(), wanted.imag, moved))


# ---- a reference that is differentiated: the same in torch's operations

# The state before any item, and how an item changes it; the gate of a recurrence is the last argument.
STEPS: dict[str, tuple[float, Callable[..., torch.Tensor]]] = {
    "sum": (0.0, lambda h, x: h + x),
    "prod": (1.0, lambda h, x: h * x),
    "logcumsumexp": (-math.inf, lambda h, x: (h.exp() + x.exp()).log()),
    "max": (-math.inf, lambda h, x: torch.where((x >= h) | x.isnan(), x, h)),  # the newest of equal items
    "min": (math.inf, lambda h, x: torch.where((x <= h) | x.isnan(), x, h)),
    "cummax": (-math.inf, torch.maximum),
    "cummin": (math.inf, torch.minimum),
    "linear": (0.0, lambda h, x, a: a * h + x),
}


def walked(
    op: str,
    x: torch.Tensor,
    *,
    a: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
    segment_starts: torch.Tensor | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    complete: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of a scan along the last dimension, and its carry-out: item by item, in torch's operations."""
    start, step = STEPS[op]
    keep = mask if mask is not None and mask.dtype == torch.bool else None
    x = x if mask is None or keep is not None else x * mask
    x, a = (x, None) if a is None else torch.broadcast_tensors(x, a)
    h = nothing = torch.full_like(x[..., :1].sum(-1), start)
    h = h if initial is None else initial.expand(h.shape)
    begins = torch.zeros(x.shape[-1:], dtype=torch.bool, device=x.device) if segment_starts is None else segment_starts
    begins = begins.expand(x.shape)
    results = [h] if complete else []
    for i in reversed(range(x.shape[-1])) if reverse else range(x.shape[-1]):
        before = h if reverse else torch.where(begins[..., i], nothing, h)
        after = step(before, x[..., i]) if a is None else step(before, x[..., i], a[..., i])
        after = after if keep is None else torch.where(keep.expand(x.shape)[..., i], after, before)
        results.append(before if exclusive else after)
        h = torch.where(begins[..., i], nothing, after) if reverse else after
    results = results[::-1] if reverse else results
    return (torch.stack(results, -1) if results else x * 1), h


def starts_of(offsets: torch.Tensor, length: int) -> torch.Tensor:
    """Return the head flags of segments that offsets give."""
    begins = torch.zeros(length, dtype=torch.bool, device=offsets.device)
    begins[[each for each in offsets.tolist()[1:-1] if each < length]] = True
    return begins
