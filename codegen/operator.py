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

Everything else about the operator is in its row, too: variants with another state, the gradient kernel, the local
derivatives, the combine on tensors, the public function, autocast. Only its page of the docs is not: that is the
docstring of the module in ``codegen/operators`` that the row stands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.dtypes import DType, late_field, numbers_of, set_derived

COMPENSATED = "compensated"  # value of ``accumulate``: keep the rounding error of each addition beside the sum
BACKWARD: dict[str, Any] = {"kinds": ("float",), "gives": "kept", "commutative": False}  # fields of gradients' rows

FieldValues = tuple[Any, ...]  # a tensor for each field of a state, or a number for all its elements


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` where ``condition`` holds and else ``no``, of numbers or of tensors."""
    return (yes if condition else no) if isinstance(condition, bool) else yes.where(condition, no)


class Join(NamedTuple):
    """The combine of an operator on tensors of states: PyTorch's operators scan with it in log2(n) passes."""

    combine: Callable[[FieldValues, FieldValues], FieldValues]  # older states, newer states -> states
    lift: Callable[[Any, Any, Any], FieldValues] = lambda x, g, i: (x,)  # items, gates, indices -> states
    identity: FieldValues | None = None  # numbers, or keys of BOUNDS; None: the row's start
    result: Callable[[FieldValues], FieldValues] = lambda states: states  # states -> outputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operator:
    """An associative operator to scan with: ``y[i] = project(lift(x[0]) combined with ... combined with lift(x[i]))``.

    The expressions are C++ over the names that this module's docstring lists; ``start``, ``step`` and ``output`` are
    the same operator as a recurrence in Python. ``step`` and ``output`` also compute results on the CPU, under
    ``torch.compile`` and ``torch.func``, and gradients: there h and x are tensors of one element per line, or of all.
    Branches are written with ``where``.

    Every state field has the accumulator's type unless ``types`` says otherwise. Declare fields that hold ``i`` as
    ``"index"``: float32 does not tell integers beyond 2^24 apart.

    Source: scans of recurrences with state, lift, combine and project as in Blelloch, "Prefix Sums and Their
    Applications" (1990).
    """

    name: str  # lower-case letters, digits and _: the operator's name in requests and file names
    formula: str  # the output in terms of the input, one line, for docstrings and generated comments
    fields: tuple[str, ...] = ("value",)  # names of the state's fields
    types: tuple[str, ...] = ()  # one per field: "value" (the accumulator's type) or a key of FIELD_TYPES; (): "value"
    lift: tuple[str, ...] = ("x",)  # one expression over x, i and g for each field
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
    # A condition on the states of a thread's first and last result, made by behind, and an expression over first and
    # state of fewer instructions than project, the output of the thread's results where the condition holds.
    quick: tuple[str, ...] = ()
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
    # Where v is the forward scan's result before the element: that operator's name, which says what comes before all
    # elements. An expression over g and m for that operator's element may follow, of which kernels recompute v.
    before: tuple[str, ...] = ()
    masked: bool = False  # lift reads m, the mask value of the element; the mask then skips no element
    # Whether a mask may hold integers, which multiply: of a sum they count an item so many times. Elsewhere a mask of
    # zeros and ones, meant to select, would put zeros among the items.
    integer_masks: bool = False
    # Legal kinds of the dtype that elements are scanned in, which is the output's.
    kinds: tuple[str, ...] = ("int", "float", "complex")
    # Output dtype by default: "widened" (integers become int64), "kept" (the elements') or "bool".
    gives: Literal["widened", "kept", "bool"] = "widened"
    ordered: bool = False  # values are compared: integers are scanned in a signed type, which must not overflow
    costly: bool = False  # in double, combine and project are hundreds of instructions: emitted once and called
    commutative: bool  # for readers and tests; kernels never rely on it
    start: Any  # h before the first element: a number, a key of BOUNDS, or a tuple of these
    # h after x: step(h, x), step(h, x, i) or step(h, x, g), as lift reads i or g.
    step: Callable[..., Any]
    # The result of h; None: h itself, or its parts where there are indices.
    output: Callable[[Any], Any] | None = None
    # h after a carry-in; None: the carry-in itself
    resumed: Callable[[Any], Any] | None = None

    torch_name: str | None = None  # torch function with the same inclusive forward result
    unsound: tuple[
        str, ...
    ] = ()  # what torch's function gets wrong: "tangents", all "gradients", or those of "complex" items
    function: str = ""  # function of scanops that computes this; empty: ``scanops.scan`` with the operator's name
    autocast: bool = False  # torch.autocast computes halves in float32, as it does for torch's function
    # Roundings to float32 that a lost, doubled or misplaced item exceeds, as a function of the length.
    roundings: Callable[[int], float] | None = None
    # Variants with another state: the fields that differ, by a kind of accumulator or "compensated".
    forms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gradient: Gradient | None = None  # the kernel of the backward pass
    # Of one step: a linear scan computes every other derivative, and first ones without a ``gradient``. None: PyTorch's
    # of ``step`` for floats if h is one number and the result; else it differentiates the recurrence item by item.
    derivative: Derivative | None = None
    # None: ``step`` combines two states, each of which is an element.
    join: Join | None = None

    # What follows from the fields above, computed once.
    field_types: tuple[str, ...] = late_field()  # of each field: "value" or a key of FIELD_TYPES
    gated: bool = late_field()  # lift reads ``g``, a second input for each element
    places_items: bool = late_field()  # lift reads ``i``, the element's index
    of_elements: bool = late_field()  # a state is an element, so ``step`` combines any two states
    resumes: tuple[str, ...] = late_field()  # the state of a carry-in x; empty: it takes none
    passed: tuple[str, ...] = late_field()  # the fields that are exchanged between lanes and tiles
    doubled: bool = late_field()  # there is a second output
    variants: Mapping[str, Operator] = late_field()  # the rows of ``forms``

    def __post_init__(self) -> None:
        read = " ".join(self.lift)
        kinds = self.types or ("value",) * len(self.fields)
        of_elements = self.lift == ("x",) and self.project == "state" and kinds == ("value",)
        set_derived(
            self,
            field_types=kinds,
            gated=re.search(r"\bg\b", read) is not None,
            places_items=re.search(r"\bi\b", read) is not None,
            of_elements=of_elements,
            resumes=self.resume or (self.lift if of_elements else ()),
            passed=self.fields[: len(self.fields) - len(self.own)],
            doubled=bool(self.indices or self.second),
        )
        set_derived(self, variants={form: replace(self, forms={}, **changed) for form, changed in self.forms.items()})

    def start_of(self, out: DType) -> Any:
        """``start`` as numbers, with its words replaced by the bounds of dtype ``out``."""
        return numbers_of(self.start, out)
