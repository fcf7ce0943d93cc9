"""Functions to expressions: a function is called once with traced items, and its trace is cached.

The key of a trace is what the function can see: its code, and the constants of its closure, its defaults and its
globals. A function that sees anything else, such as an object with attributes, is traced at every call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from scanops.codegen.dtypes import default_result, dtype_named
from scanops.codegen.operators import Operator
from scanops.fusion.expressions import Graph, wide
from scanops.fusion.kernel import MOST_OUTPUTS, Fusion, Operand, Output, fusion_of
from scanops.fusion.operators import FieldOperator, Scanned, miscounted, values_of
from scanops.fusion.tracing import Traced

Kinds = tuple[tuple[torch.dtype, bool], ...]  # dtype of each tensor, and whether it has no dimension


# ---- what a function can see

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


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names that code may look up among globals."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for each in inner for name in _names(each))]))


# ---- traces

_MOST = 1024
_TRACES: dict[tuple[Any, ...], Fusion] = {}


def traced(
    map: Callable[..., Any] | None,
    then: Callable[..., Any] | None,
    row: Operator | FieldOperator,
    kinds: Kinds,
    masked: bool,
    dtype: torch.dtype | None,
    keys: tuple[Any, ...] | None,
) -> Fusion:
    """Return the fusion of a scan by ``row`` of what ``map`` makes of tensors of these kinds, given to ``then``.

    ``masked``: the last of the tensors is a mask, which neither function sees. ``dtype``: of the scan. ``keys``: those
    of the functions; None: they are traced again. Raises UnsupportedRequest, which names the operation and its line.
    """
    handle = None if isinstance(row, FieldOperator) else row.handle  # whose functions have keys
    key = None if keys is None else (*keys, handle, kinds, masked, dtype, torch.get_default_dtype())
    found = None if key is None else _TRACES.get(key)
    if found is None:
        found = fusion_of(_traced(map, then, row, kinds, masked, dtype).text)
        if key is not None:
            if len(_TRACES) >= _MOST:
                _TRACES.clear()
            _TRACES[key] = found
    return found


def _traced(
    map: Any, then: Any, row: Operator | FieldOperator, kinds: Kinds, masked: bool, dtype: torch.dtype | None
) -> Fusion:
    graph = Graph()
    names = [dtype_named(each).name for each, _ in kinds]
    metas = [torch.empty(() if single else (1,), dtype=each, device="meta") for each, single in kinds]
    items = [
        Traced(graph.operand(place, name), meta) for place, (name, meta) in enumerate(zip(names, metas, strict=True))
    ]
    seen, mask = (items[:-1], items[-1]._term) if masked else (items, None)
    if isinstance(row, FieldOperator):
        scan = row.scanned(values_of("map", map, seen, graph) if map else seen, graph, mask, dtype)
    else:
        made = values_of("map", map, seen, graph) if map else seen[:2] if row.gated else seen[:1]
        scan = _scanned(row, made, graph, mask, dtype, "map" if map else "x")
    result = scan.results[0] if len(scan.results) == 1 else tuple(scan.results)
    outputs = values_of("then", then, [result, *seen], graph) if then else scan.results
    if not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise miscounted("then" if then else "project", f"1 to {MOST_OUTPUTS} values", len(outputs))
    stored = [dtype_named(each.dtype).name for each in outputs]
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


def _scanned(row: Operator, made: list[Traced], graph: Graph, mask: Any, dtype: Any, role: str) -> Scanned:
    """What an operator of the table scans: an element, and a gate if it has one."""
    if len(made) != 1 + row.gated:
        what = "a pair of a gate and a value" if row.gated else "one value"
        raise miscounted(role, f"{what} for {row.name!r}", len(made))
    gate, element = made if row.gated else (None, made[0])
    term = element.dtype if gate is None else torch.promote_types(element.dtype, gate.dtype)
    scanned = dtype_named(dtype or default_result(row.gives, dtype_named(term)).name)
    terms = [each._term.cast(wide(scanned.name)) for each in (element, gate) if each is not None]
    if mask is not None:
        starts = [number if isinstance(number, int | float) else 0 for number in [row.start_of(scanned), 1]]
        terms = [mask.select(each, start) for each, start in zip(terms, starts, strict=False)]
    meta = torch.empty(1, dtype=getattr(torch, scanned.name), device="meta")
    return Scanned(terms, [Traced(graph.add("result", wide(scanned.name), 0), meta)], scanned.name)
