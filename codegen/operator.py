"""The operator row: the C++ expressions, dtypes and Python reference that define one associative operator.

A scan carries a *state*. ``lift`` makes the state of one element, ``combine`` is the associative operator on two
states, ``project`` maps a state to the output, ``resume`` maps an output that is carried in back to a state, and
``identity`` is the neutral state. The expressions are C++ over these names:

    x                  one element, converted to the accumulator's type ``Value``
    g                  the gate of that element, also a ``Value`` (operators with a second input)
    i                  the element's index along the scanned dimension, an ``int``
    older, newer       the states of two adjacent ranges; ``older`` precedes ``newer`` in scan order
    state              one state
    is_nan(value)      defined for every dtype
    lowest, highest    bounds of the accumulator's dtype, infinities for floating dtypes (only in ``identity``)

With one field a state is a plain number; with more it is a struct whose fields are read as ``older.gate``.
``combine`` must be associative and need not be commutative: every kernel keeps the older operand on the left.

``start`` and ``step`` define the same operator as the recurrence h = step(h, x), y = output(h). Tests compare every
kernel with it, so it must be written independently of the C++ expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from scanops.codegen.dtypes import DTYPES, DType, kept_result, scan_result
from scanops.codegen.operator_rules import check_row

__all__ = ["COMPENSATED", "FIELD_TYPES", "Operator"]

COMPENSATED = "compensated"  # value of ``accumulate``: keep the rounding error of each addition beside the sum

# Types of a state field: C type and bytes. A line has at most 2^31 elements, so an int holds every index.
FIELD_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "index": ("int", 4),
        "int32": ("int", 4),
        "int64": ("long long", 8),
        "float32": ("float", 4),
        "float64": ("double", 8),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An associative operator to scan with: ``y[i] = project(lift(x[0]) combined with ... combined with lift(x[i]))``.

    The expressions are C++ over the names that ``help(scanops.codegen.operator)`` lists; ``start``, ``step`` and
    ``output`` are the same operator as a recurrence in Python. ``scanops.check_operator`` compares the two and tests
    associativity, identity and commutativity.

    ``step`` and ``output`` also compute results on the CPU, under ``torch.compile`` and ``torch.func``, and gradients:
    there h and x are tensors with one element per line, so branches must be written with ``torch.where``.

    Every state field has the accumulator's type unless ``types`` says otherwise. Declare fields that hold ``i`` as
    ``"index"``: float32 does not tell integers beyond 2^24 apart. An operator whose output is an index, such as argmax,
    sets ``gives="index"``, so that elements keep their dtype and the output is int64.

    Raises:
        UnsupportedRequest: an argument that is not as described, at construction.

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

    Source: scans of recurrences with state, lift, combine and project as in Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """

    name: str  # lower-case letters, digits and _: the operator's name in requests and file names
    formula: str  # the output in terms of the input, one line, for docstrings and generated comments
    fields: tuple[str, ...] = ("value",)  # names of the state's fields
    types: tuple[str, ...] = ()  # one per field: "value" (the accumulator's type) or a key of FIELD_TYPES; (): "value"
    places: tuple[str, ...] = ()  # fields of type "index", as an alternative to ``types``
    lift: tuple[str, ...]  # one expression over x, i and g for each field
    combine: tuple[str, ...]  # one expression over older and newer for each field, or one for the whole state
    # Optional cheaper form of combine where newer is the state of a single element.
    append: tuple[str, ...] = ()
    # Optional still cheaper form where, in addition, older covers only elements of the same thread.
    extend: tuple[str, ...] = ()
    # Two conditions on a state made by extend: whether extend may continue from it, and whether it is valid at the end.
    # Where one fails, append is used instead.
    holds: tuple[str, ...] = ()
    # One expression over state per field: converts a thread's total made by extend for use by combine.
    settle: tuple[str, ...] = ()
    # The state whose result belongs to the last element of a thread's total (newer), given the prefix that precedes the
    # thread (older). Empty: append is as cheap for results.
    behind: tuple[str, ...] = ()
    # Rounding error accumulated so far, over lost (its previous value), older and newer; added to a thread's total
    # where the thread scans its elements serially. Empty: rounding errors are not tracked.
    loss: str = ""
    identity: tuple[str, ...]  # one constant for each field
    project: str = "state"  # the output, an expression over state
    # One expression over x for each field: the state of a carry-in x. Empty: lift where a state is an element;
    # otherwise the operator takes no carry-in.
    resume: tuple[str, ...] = ()
    indices: str = ""  # an expression over state for a second, int64 output: an index along the line; -1: none
    # The remaining expressions are used by gradients. ``own``: the last fields, which belong to single elements: they
    # are not exchanged between lanes or tiles, and a result uses its own element's, even in an exclusive scan.
    own: tuple[str, ...] = ()
    carried: str = ""  # the carry-out as an expression over state, where it differs from the result
    second: str = ""  # a second output of the result's dtype, an expression over state
    # Meaning of v in lift, an element of a tensor that the forward pass saved: a Value, or an element's index.
    saved: Literal["", "value", "place"] = ""
    # How a kernel can recompute v: an operator's name, then expressions over x, g and m for that operator's element
    # (and gate, if it has one); v is the exclusive result of that scan in the opposite direction. With an empty name v
    # is the forward result of the preceding element.
    before: tuple[str, ...] = ()
    masked: bool = False  # lift reads m, the mask value of the element; the mask then skips no element
    # Legal kinds of the dtype that elements are scanned in: of the output's, except with gives="index".
    kinds: tuple[str, ...] = ("int", "float", "complex")
    # Output dtype by default: "widened" (integers become int64), "kept" (the elements'), "bool" or "index" (int64,
    # while elements keep their dtype).
    gives: Literal["widened", "kept", "bool", "index"] = "widened"
    ordered: bool = False  # values are compared: integers are scanned in a signed type, which must not overflow
    costly: bool = False  # in double, combine and project are hundreds of instructions: emitted once and called
    commutative: bool  # check_operator tests this claim; kernels never rely on it
    torch_name: str | None = None  # torch function with the same inclusive forward result
    start: Any  # h before the first element: a number, a key of WORDS, or a tuple of these
    step: Callable[..., Any]  # h after x: step(h, x), step(h, x, i) or step(h, x, g), as lift reads i or g
    output: Callable[[Any], Any] | None = None  # the result of h; None: h itself, or its parts where there are indices
    resumed: Callable[[Any], Any] | None = None  # h after a carry-in; None: the carry-in itself

    # A class that refers back to the row: torch.compile accepts a class as a constant where it refuses the row.
    handle: type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_row(self, RESULTS, WORDS, FIELD_TYPES)
        object.__setattr__(self, "handle", type("Handle", (), {"operator": self}))

    def __reduce__(self) -> tuple[Any, ...]:
        # Built-in rows are pickled by name, because lambdas cannot be pickled. Other rows need named functions.
        from scanops.codegen.operators import is_built_in, operator_named

        if is_built_in(self):
            return operator_named, (self.name,)
        return _rebuilt, ({each.name: getattr(self, each.name) for each in fields(self) if each.init},)

    @property
    def content(self) -> tuple[object, ...]:
        """All fields except the Python functions, which cannot be compared: rows of equal content are equal."""
        functions = ("step", "output", "resumed")
        return tuple(getattr(self, each.name) for each in fields(self) if each.init and each.name not in functions)

    @property
    def field_types(self) -> tuple[str, ...]:
        """The type of each state field: "value" or a key of FIELD_TYPES."""
        return self.types or tuple("index" if name in self.places else "value" for name in self.fields)

    @property
    def gated(self) -> bool:
        """Whether the operator reads a second input, the gate, for each element."""
        return any(re.search(r"\bg\b", text) for text in self.lift)

    @property
    def places_items(self) -> bool:
        """Whether lift reads ``i``, the element's index."""
        return any(re.search(r"\bi\b", text) for text in self.lift)

    @property
    def of_elements(self) -> bool:
        """Whether a state is an element, so that ``step`` combines any two states."""
        return self.lift == ("x",) and self.project == "state" and self.field_types == ("value",)

    @property
    def resumes(self) -> tuple[str, ...]:
        """Expressions for the state of a carry-in x; empty if the operator takes no carry-in."""
        return self.resume or (self.lift if self.of_elements else ())

    @property
    def passed(self) -> tuple[str, ...]:
        """The state fields that are exchanged between lanes and tiles."""
        return self.fields[: len(self.fields) - len(self.own)]

    @property
    def doubled(self) -> bool:
        """Whether the operator has a second output."""
        return bool(self.indices or self.second)

    def result(self, term: DType) -> DType:
        """The default output dtype for elements of dtype ``term``."""
        return RESULTS[self.gives](term)

    def start_of(self, out: DType) -> Any:
        """``start`` as numbers, with its words replaced by the bounds of dtype ``out``."""
        parts = self.start if isinstance(self.start, tuple) else (self.start,)
        numbers = tuple(WORDS[part](out) if isinstance(part, str) else part for part in parts)
        return numbers if isinstance(self.start, tuple) else numbers[0]


def _rebuilt(values: Mapping[str, Any]) -> Operator:
    return Operator(**values)


RESULTS: Mapping[str, Callable[[DType], DType]] = MappingProxyType(
    {
        "widened": scan_result,  # as torch.cumsum
        "kept": kept_result,
        "bool": lambda term: DTYPES["bool"],
        "index": lambda term: DTYPES["int64"],
    }
)

WORDS: Mapping[str, Callable[[DType], int | float]] = MappingProxyType(
    {
        "lowest": lambda out: out.lowest,
        "highest": lambda out: out.highest,
        "ones": lambda out: -1 if out.lowest < 0 else out.highest,  # every bit set
    }
)
