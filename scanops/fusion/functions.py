"""Functions to expressions: a function is called once with traced items, and its trace is cached.

The key of a trace is what the function can see: its code, and the constants of its closure, its defaults and its
globals. A function that sees anything else, such as an object with attributes, is traced at every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from scanops.codegen.dtypes import default_result, dtype_named
from scanops.codegen.operators import Operator
from scanops.errors import UnsupportedRequest, shown
from scanops.fusion.expressions import Graph, wide
from scanops.fusion.kernel import MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.fusion.tracing import Traced

Kinds = tuple[tuple[torch.dtype, bool], ...]  # dtype of each tensor, and whether it has no dimension


# ---- what a function can see

_NAMES: dict[CodeType, tuple[str, ...]] = {}  # code -> the names that it may look up among globals
_CONSTANTS = (bool, int, str, bytes, type(None), torch.dtype)


class _Unseen(Exception):
    """Raised for what has no key: it may change between calls."""


def key_of(function: Any) -> tuple[Any, ...] | None:
    """Return a key that is equal as long as all that a function can see is; None where that cannot be told."""
    try:
        return tuple(_seen(function, ()))
    except (_Unseen, ValueError):  # the latter: an empty cell of a closure
        return None


def _seen(value: Any, within: tuple[Any, ...]) -> list[Any]:
    kind = type(value)
    if kind in _CONSTANTS:
        return [kind, value]
    if kind is float:
        return [kind, value.hex()]  # tells 0.0 from -0.0, and nan equals itself
    if kind is tuple:
        return [kind, len(value), *(part for each in value for part in _seen(each, within))]
    if kind is ModuleType:
        if value is math or value.__name__.partition(".")[0] == "torch":
            return [value.__name__]
        raise _Unseen
    if kind is not FunctionType:
        if (kind is BuiltinFunctionType or kind is type(torch.where)) and callable(value):
            return [value]
        raise _Unseen
    if (value.__module__ or "").partition(".")[0] == "torch" or value in within:
        return [value]
    found: list[Any] = [value.__code__]
    for each in (value.__defaults__, *(value.__kwdefaults__ or {}).items()):
        found += _seen(each, within)
    for cell in value.__closure__ or ():
        found += _seen(cell.cell_contents, (*within, value))
    for name in _names(value.__code__):
        if name in value.__globals__:
            found += _seen(value.__globals__[name], (*within, value))
    return found


def _names(code: CodeType) -> tuple[str, ...]:
    names = _NAMES.get(code)
    if names is None:
        inner = (each for each in code.co_consts if isinstance(each, CodeType))
        names = tuple(dict.fromkeys([*code.co_names, *(name for each in inner for name in _names(each))]))
        if len(_NAMES) >= _MOST:
            _NAMES.clear()
        _NAMES[code] = names
    return names


# ---- traces

_MOST = 1024
_TRACES: dict[tuple[Any, ...], Fusion] = {}


def traced(
    map: Callable[..., Any] | None,
    then: Callable[..., Any] | None,
    row: Operator,
    kinds: Kinds,
    masked: bool,
    dtype: torch.dtype | None,
    keys: tuple[Any, ...] | None,
) -> Fusion:
    """Return the fusion of a scan by ``row`` of what ``map`` makes of tensors of these kinds, given to ``then``.

    ``masked``: the last of the tensors is a mask, which neither function sees. ``dtype``: of the scan. ``keys``: those
    of the functions; None: they are traced again. Raises UnsupportedRequest, which names the operation and its line.
    """
    key = None if keys is None else (*keys, row.handle, kinds, masked, dtype, torch.get_default_dtype())
    found = None if key is None else _TRACES.get(key)
    if found is None:
        found = fusion_of(_traced(map, then, row, kinds, masked, dtype).text)
        if key is not None:
            if len(_TRACES) >= _MOST:
                _TRACES.clear()
            _TRACES[key] = found
    return found


def _traced(map: Any, then: Any, row: Operator, kinds: Kinds, masked: bool, dtype: torch.dtype | None) -> Fusion:
    graph = Graph()
    names = [dtype_named(each).name for each, _ in kinds]
    metas = [torch.empty(() if single else (1,), dtype=each, device="meta") for each, single in kinds]
    items = [
        Traced(graph.operand(place, name), meta) for place, (name, meta) in enumerate(zip(names, metas, strict=True))
    ]
    seen, mask = (items[:-1], items[-1]._term) if masked else (items, None)
    made = _values("map", map, seen, graph) if map else seen[:2] if row.gated else seen[:1]
    if len(made) != 1 + row.gated:
        what = "a pair of a gate and a value" if row.gated else "one value"
        raise _miscounted("map" if map else "x", f"{what} for {row.name!r}", len(made))
    gate, element = made if row.gated else (None, made[0])
    term = element.dtype if gate is None else torch.promote_types(element.dtype, gate.dtype)
    scanned = dtype_named(dtype or default_result(row.gives, dtype_named(term)).name)
    terms = [None if each is None else each._term.cast(wide(scanned.name)) for each in (element, gate)]
    if mask is not None:
        starts = [number if isinstance(number, int | float) else 0 for number in [row.start_of(scanned), 1]]
        terms = [None if each is None else mask.select(each, start) for each, start in zip(terms, starts, strict=True)]
    result = Traced(
        graph.add("result", wide(scanned.name)), torch.empty(1, dtype=getattr(torch, scanned.name), device="meta")
    )
    outputs = _values("then", then, [result, *seen], graph) if then else [result]
    if not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise _miscounted("then", f"1 to {MOST_OUTPUTS} values", len(outputs))
    stored = [dtype_named(each.dtype).name for each in outputs]
    last = [each._term.cast(wide(name)) for each, name in zip(outputs, stored, strict=True)]
    assert terms[0] is not None
    return Fusion(
        nodes=tuple(graph.nodes),
        operands=tuple(Operand(name) for name in names),
        element=terms[0].at,
        gate=None if terms[1] is None else terms[1].at,
        scanned=scanned.name,
        outputs=tuple(Output(each.at, name) for each, name in zip(last, stored, strict=True)),
    )


def _values(role: str, function: Any, given: Sequence[Traced], graph: Graph) -> list[Traced]:
    """What a function returns for traced items."""
    try:
        found = function(*given)
    except TypeError as problem:
        if problem.__traceback__ is None or problem.__traceback__.tb_next is not None:
            raise
        raise UnsupportedRequest(
            f"scan: {role} does not take {len(given)} arguments",
            allowed="a function of the tensors" + (", after the result of the scan" if role == "then" else ""),
            value=str(problem),
            hint=f"give {role} a parameter for each tensor" + (", and a first one" if role == "then" else ""),
        ) from None
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
                value=shown(each),
                hint=f"return what torch's operations give for the arguments of {role}",
            )
    return values


def _miscounted(role: str, wanted: str, count: int) -> UnsupportedRequest:
    return UnsupportedRequest(
        f"scan: {role} must give {wanted}", allowed=wanted, value=f"{count} values", hint=f"change what {role} gives"
    )
