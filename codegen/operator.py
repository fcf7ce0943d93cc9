"""What an operator is: one row of data, from which every kernel follows.

A scan carries a *state*. ``lift`` makes a state of one element, ``combine`` joins the states of an older and a newer
stretch, ``project`` gives the output of a state, ``resume`` the state of an output that the scan goes on from, and
``identity`` is the state of nothing at all. The expressions are C++ over ``x`` (one element, already of the
accumulator's type ``Value``), ``g`` (the gate that comes with it, likewise), ``i`` (its index in the line, as it lies
in memory), ``older`` and ``newer`` (states) and ``state``; ``is_nan(value)`` may be asked of any dtype, and ``lowest``
and ``highest`` stand for the output dtype's bounds, infinities of a floating one. With one field a state is a plain
``Value``; with more it is a struct, and fields are read as ``older.gate``.

``combine`` must be associative and need not be commutative: every kernel keeps the older operand on the left.
``start`` and ``step`` are the same operator written as the recurrence a reader would write: h = step(h, x), and
y = output(h). Tests hold each kernel to it, so it must not be derived from the expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from scanops.codegen.dtypes import DTYPES, DType, kept_result, scan_result
from scanops.codegen.rows import check_row

__all__ = ["COMPENSATED", "Operator"]

COMPENSATED = "compensated"  # of an accumulator: what rounding loses is kept beside the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An associative operator to scan with: ``y[i] = project(lift(x[0]) combined with ... combined with lift(x[i]))``.

    The expressions are C++, as this module's opening describes; ``start``, ``step`` and ``output`` are the reference in
    Python. ``scanops.check_operator`` holds one to the other and looks for what breaks the laws of a scan.

    For an operator that torch does not have, ``step`` and ``output`` also compute on the CPU, under ``torch.compile``
    and ``torch.func`` and for gradients: h and x are then tensors that hold an item of every line, so that a branch is
    a ``torch.where``.

    Raises:
        UnsupportedRequest: a field that is not as described, at construction.

    Example:
        >>> import torch, scanops
        >>> last = scanops.Operator(
        ...     name="last",
        ...     formula="y[i] = x[i], or the newest before it that is not 0",
        ...     lift=("x",),
        ...     combine=("newer != 0 ? newer : older",),
        ...     identity=("0",),
        ...     gives="kept",
        ...     commutative=False,
        ...     start=0,
        ...     step=lambda h, x: torch.where(x != 0, x, h),
        ... )
        >>> scanops.scan(torch.tensor([3, 0, 0, 5, 0]), last, 0)
        tensor([3, 3, 3, 5, 5])

    Source: state, lift, combine and project are how Blelloch, "Prefix Sums and Their Applications" (1990), makes scans
    of recurrences.
    """

    name: str  # small letters, digits and _: how the operator is called in requests and file names
    formula: str  # the output in terms of the input, for docstrings and banners
    fields: tuple[str, ...] = ("value",)  # the state's fields
    places: tuple[str, ...] = ()  # those that are of type int, as an index in the line is; all others are of type Value
    lift: tuple[str, ...]  # one expression over x, i and g for each field
    combine: tuple[str, ...]  # one expression over older and newer for each field, or one for the whole state
    # The same where newer is one element, lifted and not combined with anything yet, if that is cheaper.
    append: tuple[str, ...] = ()
    # And where newer is one element and older are the few before it of the same thread, if that is cheaper still.
    extend: tuple[str, ...] = ()
    # Whether what it makes can be gone on from, and whether a state of it is right at the end, over state: else append
    # takes its place. What a total is to others then: one expression over state for each field.
    holds: tuple[str, ...] = ()
    settle: tuple[str, ...] = ()
    # The state whose result is that of such a total's last element, with newer as that total and older as what precedes
    # the thread; empty: for results, append is as cheap.
    behind: tuple[str, ...] = ()
    # Of floating numbers, what rounding has lost so far: an expression over lost (what it had before), older and newer.
    # Where a thread scans items one by one, its total regains that. Empty: rounding may lose what it does.
    loss: str = ""
    identity: tuple[str, ...]  # one constant for each field
    project: str = "state"  # an expression over state, of type Value
    # The state of a result x that is carried in: one expression for each field. None: as that of an element, where a
    # state is one; else nothing can be carried in.
    resume: tuple[str, ...] = ()
    indices: str = ""  # an expression over state for a second output, of int64: an index in the line; -1: there is none
    # What gradients need besides. Fields, the last ones, that are an item's own: lanes and tiles do not pass them on,
    # and a result has its own item's, be it exclusive or not.
    own: tuple[str, ...] = ()
    carried: str = ""  # an expression over state for what goes on from a line, where that is not the result
    second: str = ""  # and one for a second output of the result's dtype
    # Whether lift mentions v, an item of what the forward kept: a Value, or the index of an item.
    saved: Literal["", "value", "place"] = ""
    # What v may be made of, in place of what a kernel would compute first: the name of an operator, and of its elements
    # x, and g where it has one, expressions over x, g and m; v is then its exclusive result in the opposite direction.
    # Or an empty name: v is the forward's result, of the item before.
    before: tuple[str, ...] = ()
    masked: bool = False  # whether lift mentions m: a mask then says of each item whether it counts, and skips none
    kinds: tuple[str, ...] = ("int", "float", "complex")  # legal kinds of the output dtype
    gives: Literal["widened", "kept", "bool"] = "widened"  # the output dtype by default: see RESULTS
    ordered: bool = False  # whether values are compared: signed integers are scanned as such, and do not wrap
    costly: bool = False  # whether combine and project are hundreds of instructions in double: called, not repeated
    commutative: bool  # whether a test may swap operands to catch a wrong claim; kernels never rely on it
    torch_name: str | None = None  # torch's function with the same inclusive, forward result
    start: Any  # h before the first element; or a word of WORDS; a tuple where there are indices
    step: Callable[..., Any]  # h after the element x: step(h, x); step(h, x, i), step(h, x, g) where lift mentions them
    output: Callable[[Any], Any] | None = None  # the result of h; None: h itself, or its parts where there are indices
    resumed: Callable[[Any], Any] | None = None  # h after a result that is carried in; None: that itself

    # A class that leads here: compilers that take no such object for a constant take a class for one, as torch 2.11's.
    handle: type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_row(self, RESULTS, WORDS)
        object.__setattr__(self, "handle", type("Handle", (), {"operator": self}))

    def __reduce__(self) -> tuple[Any, ...]:
        # Built-in rows travel by name: their lambdas have none. One of yours travels when its functions have names.
        from scanops.codegen.operators import is_built_in, operator_named

        if is_built_in(self):
            return operator_named, (self.name,)
        return _rebuilt, ({each.name: getattr(self, each.name) for each in fields(self) if each.init},)

    @property
    def content(self) -> tuple[object, ...]:
        """What results follow from, save functions, which cannot be compared: two rows of equal content are one."""
        functions = ("step", "output", "resumed")
        return tuple(getattr(self, each.name) for each in fields(self) if each.init and each.name not in functions)

    @property
    def gated(self) -> bool:
        """Whether each element comes with one of a second input."""
        return any(re.search(r"\bg\b", text) for text in self.lift)

    @property
    def places_items(self) -> bool:
        """Whether a state is made of an element and of where it is."""
        return any(re.search(r"\bi\b", text) for text in self.lift)

    @property
    def of_elements(self) -> bool:
        """Whether a state is an element, so that ``step`` joins any two stretches."""
        return self.lift == ("x",) and self.project == "state"

    @property
    def resumes(self) -> tuple[str, ...]:
        """The state of a result x that is carried in; empty where that does not tell it."""
        return self.resume or (self.lift if self.of_elements else ())

    @property
    def passed(self) -> tuple[str, ...]:
        """The fields that lanes and tiles pass on."""
        return self.fields[: len(self.fields) - len(self.own)]

    @property
    def doubled(self) -> bool:
        """Whether there is a second output."""
        return bool(self.indices or self.second)

    def result(self, term: DType) -> DType:
        """The dtype of the output for elements of dtype ``term``, when none is asked for."""
        return RESULTS[self.gives](term)

    def start_of(self, out: DType) -> Any:
        """``start`` in numbers, for an output dtype."""
        parts = self.start if isinstance(self.start, tuple) else (self.start,)
        numbers = tuple(WORDS[part](out) if isinstance(part, str) else part for part in parts)
        return numbers if isinstance(self.start, tuple) else numbers[0]


def _rebuilt(values: Mapping[str, Any]) -> Operator:
    return Operator(**values)


RESULTS: Mapping[str, Callable[[DType], DType]] = MappingProxyType(
    {
        "widened": scan_result,  # integers become int64, as torch.cumsum has it
        "kept": kept_result,
        "bool": lambda term: DTYPES["bool"],
    }
)

WORDS: Mapping[str, Callable[[DType], int | float]] = MappingProxyType(
    {
        "lowest": lambda out: out.lowest,
        "highest": lambda out: out.highest,
        "ones": lambda out: -1 if out.lowest < 0 else out.highest,  # every bit is set
    }
)
