"""Functions to expressions: a function is called with traced items, and its trace is cached if it has a key.

Under ``torch.compile`` a function is followed, and what it did is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scanops import torch_private as private
from scanops.codegen.dtypes import DTYPES, default_result, dtype_named, result_dtype_of
from scanops.codegen.fusion.fusion import MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.codegen.fusion.graph import SUM, Graph, Term, wide
from scanops.codegen.operators import Operator, operator_named
from scanops.errors import UnsupportedRequest
from scanops.forks import import_late
from scanops.fusion.operators import FieldOperator, Scanned, make_count_error, values_of
from scanops.fusion.trace_keys import TraceKey
from scanops.fusion.tracing import Traced, apply_operation, make_capture_error, make_refusal
from scanops.requests.fused import carry_dtype_of
from scanops.torch_private import at_tracing

Function = Callable[..., Any]
Kinds = tuple[tuple[torch.dtype, bool], ...]  # dtype of each tensor, and whether it has no dimension


# ---- traces


class Sums(NamedTuple):
    """What becomes of the results of a recurrence that are summed over lines."""

    summed: bool = False
    finish: Function | None = None  # of the sums and the tensors
    flagged: bool = False  # the last of the tensors, behind a mask, are head flags in the order of the scan
    exclusive: bool = False  # of a scan with head flags, whose first result in a segment is then 0


UNSUMMED = Sums()
_MOST = 1024
_TRACES: dict[tuple[Any, ...], Fusion] = {}


def find_fusion(
    trace: TraceKey | None,
    is_unchanged: Callable[[], bool],
    map: Any,
    then: Any,
    row: Operator | FieldOperator,
    kinds: Kinds,
    masked: bool,
    dtype: Any,
    *,
    sums: Sums,
) -> tuple[Fusion, bool]:
    """Return what ``trace_fusion`` returns, of an equal call if there was one, and whether equal calls may share it.

    ``trace``: what the functions read; None where they are to be traced at every call. ``is_unchanged`` is asked after
    they ran: they are traced again where something changed meanwhile.
    """
    own = (row.name, kinds, masked, dtype, sums._replace(finish=None), torch.get_default_dtype())
    place = None if trace is None else (trace, *own)
    found = None if place is None else _TRACES.get(place)
    if found is not None:
        return found, True
    found = trace_fusion(map, then, row, kinds, masked, dtype, sums)
    if place is None or not is_unchanged():
        return found, False
    if len(_TRACES) >= _MOST:
        _TRACES.clear()
    _TRACES[place] = found
    return found, True


def trace_fusion(
    map: Function | None,
    then: Function | None,
    row: Operator | FieldOperator,
    kinds: Kinds,
    masked: bool,
    dtype: torch.dtype | None,
    sums: Sums = UNSUMMED,
) -> Fusion:
    """Return the fusion of a scan by ``row`` of what ``map`` makes of tensors of these kinds, given to ``then``.

    ``masked``: the last of the tensors is a mask, which no function sees. ``dtype``: of the scan. Raises
    UnsupportedRequest, which names the operation and its line.
    """
    return fusion_of(_trace(map, then, row, kinds, masked, dtype, sums).text)


def _trace(
    map: Any,
    then: Any,
    row: Operator | FieldOperator,
    kinds: Kinds,
    masked: bool,
    dtype: torch.dtype | None,
    sums: Sums,
) -> Fusion:
    if dtype is not None and not dtype_named(dtype).stored:
        raise UnsupportedRequest(
            "scan: dtype is of tensors alone, not of results",
            allowed=", ".join(row.name for row in DTYPES.values() if row.stored and row.kind != "complex"),
            value=f"dtype={dtype}",
            hint="leave dtype out, or pass torch.float32",
        )
    import_late("torch._dynamo")  # which torch itself imports at the first operation on tensors of the meta device
    graph = Graph()
    names = [dtype_named(each).name for each, _ in kinds]
    metas = [torch.empty(() if single else (1,), dtype=each, device="meta") for each, single in kinds]
    items = [
        Traced(graph.operand(place, name), meta) for place, (name, meta) in enumerate(zip(names, metas, strict=True))
    ]
    seen, flags = (items[:-1], items[-1]._term) if sums.flagged else (items, None)
    seen, mask = (seen[:-1], seen[-1]._term) if masked else (seen, None)
    if isinstance(row, FieldOperator):
        scan = row.trace(values_of("map", map, seen, graph) if map else seen, graph, mask, dtype)
    else:
        made = values_of("map", map, seen, graph) if map else seen[:2] if row.gated else seen[:1]
        scan = _find_elements(row, made, graph, mask, dtype, "map" if map else "x")
        if flags is not None:
            scan = _begin_segments(scan, flags, exclusive=sums.exclusive)
    result = scan.results[0] if len(scan.results) == 1 else tuple(scan.results)
    outputs = values_of("then", then, [result, *seen], graph) if then else scan.results
    if not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise make_count_error("then" if then else "project", f"1 to {MOST_OUTPUTS} values", len(outputs))
    if sums.summed:
        outputs = _sum_lines(outputs, seen, graph, sums.finish)
    stored = [result_dtype_of(dtype_named(each.dtype)).name for each in outputs]
    last = [each._term.cast(wide(name)) for each, name in zip(outputs, stored, strict=True)]
    return Fusion(
        nodes=tuple(graph.nodes),
        operands=tuple(Operand(name) for name in names),
        elements=tuple(each.at for each in scan.elements),
        scanned=scan.dtype,
        outputs=tuple(Output(each.at, name) for each, name in zip(last, stored, strict=True)),
        fields=scan.fields,
        combine=scan.combine,
        append=scan.append,
    )


def _sum_lines(values: list[Traced], seen: list[Traced], graph: Graph, finish: Any) -> list[Traced]:
    """What ``finish`` makes of the sums of values over lines, or these themselves."""
    for each in values:
        if not each.dtype.is_floating_point:
            raise UnsupportedRequest(
                "scan: sum adds up floats, which then must return",
                allowed="results of then of a floating dtype",
                value=f"a result of {each.dtype}",
                hint="convert it in then: y.float()",
            )
    terms = [each._term.cast(wide(dtype_named(each.dtype).name)) for each in values]
    totals = [
        Traced(graph.add(SUM, term.dtype, term.at), torch.empty(1, dtype=each.dtype, device="meta"))
        for each, term in zip(values, terms, strict=True)
    ]
    if finish is None:
        return totals
    outputs = values_of("finish", finish, [totals[0] if len(totals) == 1 else tuple(totals), *seen], graph)
    if not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise make_count_error("finish", f"1 to {MOST_OUTPUTS} values", len(outputs))
    return outputs


def _begin_segments(scan: Scanned, flags: Term, *, exclusive: bool) -> Scanned:
    """A recurrence that starts again from 0 at head flags: whatever stands before one is not read."""
    element, gate = scan.elements
    (result,) = scan.results
    if exclusive:
        result = Traced(flags.select(0.0, result._term), result._meta)
    return scan._replace(elements=[element, flags.select(0.0, gate)], results=[result])


def trace_dtypes(function: Function, dtypes: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """Return the dtypes of what a function gives for items of these dtypes."""
    graph = Graph()
    items = [
        Traced(graph.operand(place, dtype_named(each).name), torch.empty(1, dtype=each, device="meta"))
        for place, each in enumerate(dtypes)
    ]
    return tuple([each.dtype for each in values_of("combine", function, items, graph)])


def _find_elements(row: Operator, made: list[Traced], graph: Graph, mask: Any, dtype: Any, role: str) -> Scanned:
    """What an operator of the table scans: an element, and a gate if it has one."""
    if len(made) != 1 + row.gated:
        what = "a pair of a gate and a value" if row.gated else "one value"
        raise make_count_error(role, f"{what} for {row.name!r}", len(made))
    gate, element = made if row.gated else (None, made[0])
    term = element.dtype if gate is None else torch.result_type(element._meta, gate._meta)
    scanned = dtype_named(dtype or default_result(row.gives, dtype_named(term)).name)
    terms = [each._term.cast(wide(scanned.name)) for each in (element, gate) if each is not None]
    if mask is not None:
        starts = [number if isinstance(number, int | float) else 0 for number in [row.start_of(scanned), 1]]
        terms = [mask.select(each, start) for each, start in zip(terms, starts, strict=False)]
    meta = torch.empty(1, dtype=getattr(torch, scanned.name), device="meta")
    return Scanned(terms, [Traced(graph.add("result", wide(scanned.name), 0), meta)], scanned.name)


# ---- the same under torch.compile: Dynamo runs functions, and so guards whatever they see

# Dynamo knows an item by a name only. What is done to items is noted, and done again to those of `tracing`.
_Step = tuple[Any, tuple[str, ...], tuple[Any, ...]]  # function, names of keywords, and values
_NOTES: dict[str, tuple[int, list[_Step]]] = {}  # by the name of a function that is followed; the number of its items
_MOST_FOLLOWED = 64  # functions: Dynamo abandons some
_numbers = itertools.count()


def raise_while_tracing(function: Callable[..., str]) -> Callable[..., str]:
    """Let Dynamo call a function of constants while it traces, and raise what that raises."""

    @at_tracing
    def attempt(*given: Any) -> str:
        try:
            return function(*given)
        except UnsupportedRequest as problem:
            return "\0".join(("", problem.asked, problem.allowed, str(problem.value), problem.hint))

    def call(*given: Any) -> str:
        found = attempt(*given)
        if found.startswith("\0"):
            _, asked, allowed, value, hint = found.split("\0")
            raise UnsupportedRequest(asked, allowed=allowed, value=value, hint=hint)
        return found

    return call


class _Followed(Traced):
    """An item by its name: "item", the function that is followed, and the place among its items."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def _apply(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        values = []
        for each in (*arguments, *keywords.values()):
            if isinstance(each, torch.Tensor):
                raise make_capture_error()
            values.append(each._name if isinstance(each, _Followed) else _constant(each))
        return _Followed(_noted(function, tuple(keywords), *values))

    @property
    def dtype(self) -> torch.dtype:
        """Refused: the dtype follows from the scan, of which only the text is known here."""
        raise make_refusal(
            "the dtype of an item under torch.compile", "casts: x.type_as(y), x.float()", "name the dtype"
        )


@at_tracing
def _begun(count: int) -> str:
    while len(_NOTES) >= _MOST_FOLLOWED:
        _NOTES.pop(next(iter(_NOTES)), None)
    name = str(next(_numbers))
    _NOTES[name] = (count, [])
    private.read_numbers_as_constants()  # Dynamo compares items with symbols itself, and gets it wrong
    return name


@at_tracing
def _finished() -> str:
    private.read_numbers_as_before()
    return ""


def _constant(value: Any) -> Any:
    """A number as a constant: of sizes, and of what has been read before the function, there are symbols."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return private.constant_of(value) if is_number else value


@at_tracing
def _noted(function: Any, keys: tuple[str, ...], *values: Any) -> str:
    of = next(each.split()[1] for each in values if _place_of(each) is not None)
    count, steps = _NOTES[of]
    steps.append((function, keys, values))
    return f"item {of} {count + len(steps) - 1}"


def _place_of(value: Any) -> int | None:
    """The place of an item among those of its function, by its name; None for any other value."""
    return int(value.rpartition(" ")[2]) if isinstance(value, str) and value.startswith("item ") else None


def follow(function: Function | None, count: int, together: int = 1) -> tuple[str, tuple[Any, ...]]:
    """Run a function on so many items. Return its name, and what it returns, items by their names.

    ``together``: the number of items in its first argument, a tuple if there are several.
    """
    if function is None:
        return "", ()
    name = _begun(count)
    items = [_Followed(f"item {name} {place}") for place in range(count)]
    found = function(items[0] if together == 1 else tuple(items[:together]), *items[together:])
    _finished()
    values = found if isinstance(found, tuple | list) else (found,)
    return name, tuple([each._name if isinstance(each, _Followed) else _constant(each) for each in values])


def repeat_followed(name: str, values: tuple[Any, ...], apply: Callable[..., Any] = apply_operation) -> Function:
    """Return the function that was followed, for items of ``tracing``, or for those that ``apply`` knows."""

    def function(*given: Any) -> tuple[Any, ...]:
        items: list[Any] = []
        for each in given:
            items += each if isinstance(each, tuple) else [each]

        def found(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(items[place] if (place := _place_of(each)) is not None else each for each in values)

        for operation, keys, read in _NOTES[name][1]:
            arguments = found(read)
            count = len(arguments) - len(keys)
            items.append(apply(operation, arguments[:count], dict(zip(keys, arguments[count:], strict=True))))
        return found(values)

    return function


def _again(name: str, values: tuple[Any, ...]) -> Function | None:
    return repeat_followed(name, values) if name else None


def text_of(
    map: Function | None,
    then: Function | None,
    op: Any,
    kinds: Kinds,
    masked: bool,
    dtype: Any,
    finish: Function | None = None,
    summed: bool = False,
    flags: tuple[bool, bool] = (False, False),
) -> str:
    """Return the text of the fusion that ``trace_fusion`` returns, by code that Dynamo can follow.

    ``flags``: the last two fields of ``Sums``.
    """
    count = len(kinds) - masked - flags[0]
    followed = follow(then, count + 1)
    together = 1 if then is None else len(followed[1])
    last = follow(finish, together + count, together)
    return _text(follow(map, count), followed, last, op, kinds, masked, dtype, summed, flags)


@raise_while_tracing
def _text(
    map: tuple[Any, ...],
    then: tuple[Any, ...],
    finish: tuple[Any, ...],
    op: Any,
    kinds: Kinds,
    masked: bool,
    dtype: Any,
    summed: bool,
    flags: tuple[bool, bool],
) -> str:
    row = operator_named(op) if isinstance(op, str) else op.operator  # of expressions: by its handle
    sums = Sums(summed, _again(*finish), *flags)
    text: str = trace_fusion(_again(*map), _again(*then), row, kinds, masked, dtype, sums).text
    return text


@at_tracing
def carry_of(text: str) -> str:
    """The dtype of the carries of the fusion with this text, by code that Dynamo calls while it traces."""
    return str(carry_dtype_of(fusion_of(text)))[6:]
