"""``scanops.operator``: operators whose states have named fields, given as Python functions that are traced."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from scanops.codegen.dtypes import dtype_named, late_field, number_in, set_derived
from scanops.codegen.fusion.fused_rows import Field, is_field_name
from scanops.codegen.fusion.graph import Graph, Term, wide
from scanops.codegen.fusion.graph_derivatives import affine, affine_parts
from scanops.codegen.lazy import lazy
from scanops.errors import UnsupportedRequest, format_value
from scanops.fusion.tracing import Traced

Function = Callable[..., Any]
MOST_FIELDS, MOST_STEPS = 16, 4  # fields of a state; of one that is given by its step
_TRIED = (-2.0, 3.0, 1.0, -1.0, 0.5, -0.25, 4.0)  # numbers of states that 0 is tried beside, where no identity is given
_FIELDS = (torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Scanned(NamedTuple):
    """What is scanned: nodes of a graph, and their results."""

    elements: Sequence[Term]
    results: list[Traced]
    dtype: str
    fields: tuple[Field, ...] = ()  # and what follows: of an operator of expressions
    combine: tuple[int, ...] = ()
    append: tuple[int, ...] = ()


def operator(
    *,
    fields: Sequence[str] | Mapping[str, torch.dtype | None],
    combine: Function | None = None,
    identity: float | Sequence[float] | Mapping[str, float] | None = None,
    lift: Function | None = None,
    project: Function | None = None,
    step: Function | None = None,
    start: float | Sequence[float] | Mapping[str, float] = 0,
    name: str = "operator",
) -> FieldOperator:
    """Return an operator for ``scanops.scan``: ``y[i] = project(s[i])``, where the state s has named fields.

    Either ``s[i] = combine(s[i-1], lift(x[i], ...))`` from ``identity``, with an associative ``combine``; or
    ``s[i] = step(s[i-1], x[i], ...)`` from ``start``, where each field is a sum of fields of s[i-1] times what the
    tensors give, plus what they give: a linear recurrence of any order, whose combine is derived.

    The functions are traced as ``map`` and ``then`` are (docs/fusion.md), one definition for the kernels, for CPU
    tensors and for derivatives. States are named tuples: ``older.a``, ``older[0]`` and unpacking all work.

    Args:
        fields: names of the state's fields, at most 16; or a mapping of names to dtypes: bool, int32, int64 or a
            floating dtype. None, the default: what the undeclared fields of ``lift`` promote to, or ``dtype`` of the
            call; 8- and 16-bit integers become int64. Half types are computed in float32.
        combine: a function of the older and the newer of two states; returns a value for each field, as a tuple or a
            dict. It must be associative; it need not be commutative. ``scanops.check_operator`` tests it.
        identity: the neutral state: a number for each field, as a tuple or a dict, or one for all fields, as
            ``-math.inf`` for a maximum. Kernels start from it. It may be left out where 0 is neutral, which some states
            are tried for; ``scanops.check_operator`` tests it on more.
        lift: a function of the items of the tensors that makes the state of an item; by default the items themselves.
        project: a function of a state that makes the results, at most four; by default all fields.
        step: a function of the state before an item and of the items of the tensors; at most four fields.
        start: the state before the first item, where there is a ``step``.
        name: for messages.

    Raises:
        UnsupportedRequest: an argument that is not as described; no ``identity`` where 0 is not neutral; from
            ``scan``, an operation that no kernel computes, with its line, a wrong number of fields, or a step that is
            not linear in the state.

    Example:
        >>> import torch, scanops
        >>> mean = scanops.operator(
        ...     fields=("weight", "total"),
        ...     lift=lambda x, w: (w, w * x),
        ...     combine=lambda older, newer: (older.weight + newer.weight, older.total + newer.total),
        ...     project=lambda state: state.total / state.weight,
        ... )
        >>> scanops.scan((torch.tensor([1., 2., 6.]), torch.tensor([1., 1., 2.])), mean, 0)
        tensor([1.0000, 1.5000, 3.7500])
    """
    most = MOST_FIELDS if step is None else MOST_STEPS
    dtypes = dict(fields) if isinstance(fields, Mapping) else {}
    if isinstance(fields, Sequence) and not isinstance(fields, str) and all(isinstance(each, str) for each in fields):
        dtypes = dict.fromkeys(fields)
    if not all(map(is_field_name, dtypes)) or not 1 <= len(dtypes) <= most or len(dtypes) < len(fields):
        allowed = f"1 to {most} distinct names of lower-case letters, digits and _; no reserved word of C++, no own0"
        raise _make_refusal("fields", allowed, fields, "fields=('a', 'b')")
    if wrong := [each for each in dtypes.values() if not (each is None or any(each is legal for legal in _FIELDS))]:
        raise _make_refusal(
            "fields", "bool, int32, int64 and floating dtypes, or None", wrong[0], "fields={'a': torch.int64}"
        )
    if (step is None) == (combine is None) or (step is not None and lift is not None):
        given = [each for each, value in (("combine", combine), ("step", step), ("lift", lift)) if value is not None]
        raise _make_refusal("functions", "either combine, with lift if needed, or step", given, "combine=lambda ...")
    for role, function in (("combine", combine), ("lift", lift), ("project", project), ("step", step)):
        if function is not None and not callable(function):
            raise _make_refusal(role, "a function", function, f"{role}=lambda ...")
    role, numbers = ("identity", 0 if identity is None else identity) if step is None else ("start", start)
    if isinstance(numbers, Mapping):
        values = tuple(numbers.get(each) for each in dtypes) if len(numbers) == len(dtypes) else ()
    else:
        values = tuple(numbers) if isinstance(numbers, Sequence) else (numbers,) * len(dtypes)
    if len(values) != len(dtypes) or not all(isinstance(each, int | float) for each in values):
        raise _make_refusal(role, f"a number for each of {', '.join(dtypes)}", numbers, f"{role}=0")
    values = tuple(_plain_number(each) for each in values if each is not None)
    made = FieldOperator(name, dtypes, values, combine, lift, project, step)  # type: ignore[arg-type]
    shown = made.show_not_neutral() if identity is None and combine is not None else ""
    if shown:
        raise UnsupportedRequest(
            f"operator: no identity, and 0 is not neutral: {shown}",
            allowed="an identity that combine leaves every state as it is with, on either side",
            value="identity=None",
            hint="pass it, as identity=-math.inf for a maximum, or identity=0 if no state is like this one",
        )
    return made


def _plain_number(value: float) -> float:
    """Return a number of a class of its own, which may print as anything, as one of Python's."""
    if isinstance(value, bool):
        return value
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _make_refusal(role: str, allowed: str, value: object, example: str) -> UnsupportedRequest:
    hint = f"see help(scanops.operator); for example {example}"
    return UnsupportedRequest(
        f"operator: invalid {role}", allowed=allowed, value=f"{role}={format_value(value)}", hint=hint
    )


@dataclass(frozen=True, eq=False)
class FieldOperator:
    """An operator of expressions, as ``scanops.operator`` makes it."""

    name: str
    dtypes: Mapping[str, torch.dtype | None]  # of the fields, by their names
    start: tuple[float, ...]  # the identity; of a ``step`` the state before the first item
    combine: Function | None
    lift: Function | None
    project: Function | None
    step: Function | None
    handle: type = late_field()  # a class that refers back to the operator: torch.compile accepts it as a constant

    @property
    def functions(self) -> tuple[Function | None, ...]:
        """The functions that are traced."""
        return self.combine, self.lift, self.project, self.step

    @property
    def inputs(self) -> int:
        """The number of tensors that the operator scans."""
        if self.step is not None:
            return len(inspect.signature(self.step).parameters) - 1
        return len(self.dtypes) if self.lift is None else len(inspect.signature(self.lift).parameters)

    @lazy
    def trace_signature(self) -> tuple[object, ...]:
        """What a trace depends on beside the functions."""
        return tuple(self.dtypes.items()), tuple(map(repr, self.start))  # which tells 0.0 from -0.0

    def __post_init__(self) -> None:
        set_derived(self, handle=type("Handle", (), {"operator": self}))

    def __reduce__(self) -> tuple[Any, ...]:
        # By its functions, which pickle finds by the names of their modules: it refuses lambdas, and names them.
        functions = (self.combine, self.lift, self.project, self.step)
        return FieldOperator, (self.name, dict(self.dtypes), self.start, *functions)

    def __copy__(self) -> FieldOperator:
        return self

    def __deepcopy__(self, memo: object) -> FieldOperator:
        return self  # nothing of it changes

    @lazy
    def _state(self) -> Any:
        return namedtuple("State", self.dtypes, rename=True)

    def show_not_neutral(self) -> str:
        """Return a state that ``combine`` changes beside the identity, in words; empty where none of a few is found.

        They are what ``lift`` makes of a few numbers. A function that does not compute them is left to the trace, which
        says why.
        """
        tried = torch.tensor(_TRIED, dtype=torch.float64)
        for dtype in (torch.float64, torch.int64):  # of the items
            with contextlib.suppress(Exception):
                items = [tried.roll(place).to(dtype) for place in range(self.inputs)]
                lifted = self._values(self.lift(*items) if self.lift else items)
                state = [each.to(told or dtype) for each, told in zip(lifted, self.dtypes.values(), strict=True)]
                neutral = [torch.full_like(each, number) for each, number in zip(state, self.start, strict=True)]
                for words, older, newer in (("combine(0, a)", neutral, state), ("combine(a, 0)", state, neutral)):
                    found = self._values(self.combine(self._state(*older), self._state(*newer)))  # type: ignore[misc]
                    off = [~torch.isclose(a, b.to(a.dtype)) for a, b in zip(state, found, strict=True)]
                    for place in torch.stack(off).any(0).nonzero().flatten().tolist():
                        a, b = (", ".join(f"{each[place].item():g}" for each in side) for side in (state, found))
                        return f"{words} is ({b}) for a = ({a})"
        return ""

    def _values(self, found: Any) -> list[torch.Tensor]:
        """The tensors that a function gives for the fields."""
        given = [found[each] for each in self.dtypes] if isinstance(found, Mapping) else found
        values = list(given) if isinstance(given, tuple | list) else [given]
        return [torch.as_tensor(each).expand(len(_TRIED)) for each in values]

    def trace(self, items: list[Traced], graph: Graph, mask: Term | None, dtype: torch.dtype | None) -> Scanned:
        """Trace the operator on items of tensors, or on what ``map`` makes of them. ``dtype``: of undeclared fields."""
        if self.step is not None:
            return self._recurrence(items, graph, mask, dtype)
        lifted = self._fields("lift", self.lift, items, graph)
        undeclared = [each for each, told in zip(lifted, self.dtypes.values(), strict=True) if told is None]
        kept = dtype or _promote(undeclared)
        dtypes = [told or kept for told in self.dtypes.values()]
        names = [wide(dtype_named(each).name) for each in dtypes]
        self._check("lift", lifted, dtypes)
        older, newer = (
            [self._leaf(graph, role, place, each) for place, each in enumerate(dtypes)] for role in ("older", "newer")
        )
        made = self._fields("combine", self.combine, [self._state(*older), self._state(*newer)], graph)
        self._check("combine", made, dtypes)
        combine = [each._term.cast(name) for each, name in zip(made, names, strict=True)]
        elements = [each._term.cast(name) for each, name in zip(lifted, names, strict=True)]
        roles = [f"the identity of the field {each!r}" for each in self.dtypes]
        starts = map(number_in, self.start, map(dtype_named, names), roles)
        # The prefix keeps them apart from names of C++ and of the functions of kernels.
        fields = tuple(map(Field, [f"field_{each}" for each in self.dtypes], names, starts))
        if mask is not None:
            elements = [mask.select(each, field.identity) for each, field in zip(elements, fields, strict=True)]
        results = [self._leaf(graph, "result", place, each) for place, each in enumerate(dtypes)]
        return Scanned(elements, self._project(results, graph), names[0], fields, tuple(each.at for each in combine))

    def _recurrence(self, items: list[Traced], graph: Graph, mask: Term | None, dtype: Any) -> Scanned:
        """The scan of affine maps of states, which a step is for each item."""
        dtype = dtype or next((each for each in self.dtypes.values() if each is not None), None) or _promote(items)
        if not dtype.is_floating_point:
            raise _make_refusal("step", "floating tensors, or dtype=torch.float32 of the call", dtype, "x.float()")
        name = wide(dtype_named(dtype).name)
        states = self._state(*(self._leaf(graph, "older", place, dtype) for place in range(len(self.dtypes))))
        made = self._fields("step", self.step, [states, *items], graph)
        parts = [affine_parts(graph, each._term.cast(name).at) for each in made]
        matrix = {(row, column): term for row, (_, terms) in enumerate(parts) for column, term in terms.items()}
        scan = affine(graph, matrix, [constant for constant, _ in parts], name, mask)
        results = []
        for row, place in enumerate(scan.vector):
            y = graph.add("result", name, place)
            for column, number in enumerate(self.start):
                entry = scan.entry("result", row, column)
                if number and entry is not None:
                    y = y + entry * number
            results.append(Traced(y, torch.empty(1, dtype=dtype, device="meta")))
        return Scanned(scan.elements, self._project(results, graph), name, scan.fields, scan.combine, scan.append)

    def _leaf(self, graph: Graph, role: str, place: int, dtype: torch.dtype) -> Traced:
        meta = torch.empty(1, dtype=dtype, device="meta")
        return Traced(graph.add(role, wide(dtype_named(dtype).name), place), meta)

    def _project(self, results: list[Traced], graph: Graph) -> list[Traced]:
        return results if self.project is None else values_of("project", self.project, [self._state(*results)], graph)

    def _fields(self, role: str, function: Function | None, given: Sequence[Any], graph: Graph) -> list[Traced]:
        """The values that a function gives for the fields."""
        function = function or (lambda *items: items)
        values = values_of(role, function, given, graph, tuple(self.dtypes))
        if len(values) != len(self.dtypes):
            raise make_count_error(
                role, f"{len(self.dtypes)} values, for the fields {', '.join(self.dtypes)}", len(values)
            )
        return values

    def _check(self, role: str, values: list[Traced], dtypes: Sequence[torch.dtype]) -> None:
        """Raise UnsupportedRequest for a field whose dtype does not hold the values."""
        for name, value, dtype in zip(self.dtypes, values, dtypes, strict=True):
            if not torch.can_cast(value.dtype, dtype):
                raise UnsupportedRequest(
                    f"scan: {role} gives {value.dtype} for the field {name!r}, which is {dtype}",
                    allowed=f"a dtype that converts to {dtype}",
                    value=f"{name}.dtype={value.dtype}",
                    hint=f"declare it: fields={{{name!r}: {value.dtype}, ...}}, or convert the value",
                )


def _promote(values: Sequence[Traced]) -> torch.dtype:
    """The dtype of fields that hold these values."""
    metas = [each._meta for each in values] or [torch.empty(1, device="meta")]
    metas = [each if dtype_named(each.dtype).stored else each.float() for each in metas]  # of 8-bit floats
    whole = functools.reduce(lambda one, other: torch.empty_like(one + other), metas)
    small = not whole.dtype.is_floating_point and whole.dtype not in _FIELDS
    return torch.int64 if small else whole.dtype


def values_of(
    role: str, function: Any, given: Sequence[Any], graph: Graph, names: tuple[str, ...] = ()
) -> list[Traced]:
    """Return the values that a function gives for traced items, those of a dict in the order of ``names``.

    Raises UnsupportedRequest for anything else.
    """
    try:
        found = function(*given)
    except TypeError as problem:
        if problem.__traceback__ is None or problem.__traceback__.tb_next is not None:
            raise
        raise UnsupportedRequest(
            f"scan: {role} does not take {len(given)} arguments",
            allowed="a function of the tensors"
            + (", after the result of the scan" if role in ("then", "finish") else ""),
            value=str(problem),
            hint=f"give {role} a parameter for each tensor"
            + (", and a first one" if role in ("then", "finish") else ""),
        ) from None
    if names and isinstance(found, Mapping):
        if set(found) != set(names):
            raise make_count_error(role, f"values for {', '.join(names)}", ", ".join(map(str, found)))
        found = [found[each] for each in names]
    values = list(found) if isinstance(found, tuple | list) else [found]
    for place, each in enumerate(values):
        if isinstance(each, bool | int | float):
            dtype = torch.get_default_dtype() if isinstance(each, float) else torch.int64
            number = graph.number(each, dtype_named(dtype).name)
            values[place] = Traced(number, torch.empty((), dtype=dtype, device="meta"))
        elif not isinstance(each, Traced):
            raise UnsupportedRequest(
                f"scan: {role} must return values made of its arguments",
                allowed="a value, or a tuple of them",
                value=format_value(each),
                hint=f"return what torch's operations give for the arguments of {role}",
            )
    return values


def make_count_error(role: str, wanted: str, count: object) -> UnsupportedRequest:
    """The error for a wrong number of values."""
    return UnsupportedRequest(
        f"scan: {role} must give {wanted}", allowed=wanted, value=f"{count} values", hint=f"change what {role} gives"
    )
