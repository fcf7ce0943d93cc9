"""One row per operator. An operator is data: nothing else in the project names one.

A scan carries a *state*. ``lift`` makes a state of one element, ``combine`` joins the states of an older and a newer
stretch, ``project`` gives the output of a state, ``identity`` is the state of nothing at all. The expressions are C++
over ``x`` (one element, already of the accumulator's type ``Value``), ``older`` and ``newer`` (states) and ``state``.
With one field a state is a plain ``Value``; with more it is a struct, and fields are read as ``older.gate``.

``combine`` must be associative and need not be commutative: every kernel keeps the older operand on the left.
``start`` and ``step`` are the same operator written as the recurrence a reader would write: h = step(h, x). Tests hold
each kernel to it, so it must not be derived from the expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from scanops.errors import UnsupportedRequest

__all__ = ["BUILT_IN", "OPERATORS", "Operator", "operator_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An associative operator to scan with."""

    name: str
    formula: str  # the output in terms of the input, for docstrings and banners
    fields: tuple[str, ...] = ("value",)  # the state's fields, each of type Value
    lift: tuple[str, ...]  # one expression over x for each field
    combine: tuple[str, ...]  # one expression over older and newer for each field
    identity: tuple[str, ...]  # one constant for each field
    project: str = "state"  # an expression over state, of type Value
    kinds: tuple[str, ...] = ("int", "float")  # legal kinds of the output dtype
    commutative: bool  # whether a test may swap operands to catch a wrong claim; kernels never rely on it
    torch_name: str | None = None  # torch's function with the same inclusive, forward result
    start: Any  # h before the first element
    step: Callable[[Any, Any], Any]  # h after the element x: step(h, x)


_ROWS = (
    Operator(
        name="sum",
        formula="y[i] = x[0] + x[1] + ... + x[i]",
        lift=("x",),
        combine=("older + newer",),
        identity=("0",),
        commutative=True,
        torch_name="cumsum",
        start=0,
        step=lambda h, x: h + x,
    ),
    Operator(
        name="prod",
        formula="y[i] = x[0] * x[1] * ... * x[i]",
        lift=("x",),
        combine=("older * newer",),
        identity=("1",),
        commutative=True,
        torch_name="cumprod",
        start=1,
        step=lambda h, x: h * x,
    ),
)

BUILT_IN: Mapping[str, Operator] = MappingProxyType({row.name: row for row in _ROWS})
OPERATORS: dict[str, Operator] = dict(BUILT_IN)


def operator_named(name: object) -> Operator:
    """The row called ``name``."""
    row = OPERATORS.get(name) if isinstance(name, str) else None
    if row is None:
        raise UnsupportedRequest(
            f"a scan with the operator {name!r}",
            allowed=", ".join(repr(known) for known in OPERATORS),
            value=repr(name),
            hint="pass one of the names above as a string",
        )
    return row
