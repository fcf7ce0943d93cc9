"""The functions of a scan as ``torch.compile`` follows them: Dynamo runs them, and so guards whatever they see.

Dynamo knows an item by a name only. What is done to items is noted, and done again to those of ``tracing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from scanops.codegen.dtypes import dtype_named
from scanops.codegen.operators import operator_named
from scanops.errors import UnsupportedRequest
from scanops.fusion.expressions import Graph
from scanops.fusion.functions import Kinds, traced
from scanops.fusion.tracing import Traced, applied, captured
from scanops.torch_private import at_tracing

Function = Callable[..., Any]


class _Notes(NamedTuple):
    """What a function does to items of these kinds."""

    kinds: Kinds
    steps: list[tuple[str, Any, tuple[str, ...], tuple[Any, ...]]]  # operation, its keywords, and values

    def again(self, given: Sequence[Traced]) -> list[Traced]:
        """Return the items of the function, the given ones first."""
        items = list(given)
        for name, function, keys, values in self.steps:
            found = [items[place] if (place := _place_of(each)) is not None else each for each in values]
            count = len(found) - len(keys)
            items.append(applied(name, function, tuple(found[:count]), dict(zip(keys, found[count:], strict=True))))
        return items


_NOTES: dict[str, _Notes] = {}  # by the name of a function that is followed
_MOST = 64  # functions: Dynamo abandons some
_numbers = itertools.count()


def _place_of(value: Any) -> int | None:
    """The place of an item among those of its function, by its name; None for what is no name."""
    return int(value.rpartition(" ")[2]) if isinstance(value, str) and value.startswith("item ") else None


def handed_on(function: Callable[..., str]) -> Callable[..., str]:
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
    def _apply(name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        values = []
        for each in (*arguments, *keywords.values()):
            if isinstance(each, torch.Tensor):
                raise captured()
            values.append(each._name if isinstance(each, _Followed) else each)
        return _Followed(_noted(name, function, tuple(keywords), *values))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that torch gives it."""
        found: torch.dtype = getattr(torch, _dtype_of(self._name))
        return found


@at_tracing
def _begun(kinds: Kinds) -> str:
    while len(_NOTES) >= _MOST:
        _NOTES.pop(next(iter(_NOTES)), None)
    name = str(next(_numbers))
    _NOTES[name] = _Notes(kinds, [])
    return name


@at_tracing
def _noted(name: str, function: Any, keys: tuple[str, ...], *values: Any) -> str:
    of = next(each.split()[1] for each in values if _place_of(each) is not None)
    notes = _NOTES[of]
    notes.steps.append((name, function, keys, values))
    return f"item {of} {len(notes.kinds) + len(notes.steps) - 1}"


@handed_on
def _dtype_of(name: str) -> str:
    notes, graph = _NOTES[name.split()[1]], Graph()
    items = [
        Traced(
            graph.operand(place, dtype_named(dtype).name), torch.empty(() if single else 1, dtype=dtype, device="meta")
        )
        for place, (dtype, single) in enumerate(notes.kinds)
    ]
    return dtype_named(notes.again(items)[_place_of(name) or 0].dtype).name


def _follow(function: Function, kinds: Kinds) -> tuple[str, tuple[Any, ...]]:
    """Run a function on items of these kinds. Return its name, and what it returns, items by their names."""
    name = _begun(kinds)
    found = function(*[_Followed(f"item {name} {place}") for place in range(len(kinds))])
    values = found if isinstance(found, tuple | list) else (found,)
    return name, tuple([each._name if isinstance(each, _Followed) else each for each in values])


def _again(name: str, values: tuple[Any, ...]) -> Function | None:
    """The function that was followed under this name, for items of ``tracing``."""

    def function(*given: Traced) -> tuple[Any, ...]:
        items = _NOTES[name].again(given)
        return tuple(items[place] if (place := _place_of(each)) is not None else each for each in values)

    return function if name else None


def text_of(
    map: Function | None, then: Function | None, op: Any, kinds: Kinds, masked: bool, dtype: torch.dtype | None
) -> str:
    """Return the text of the fusion that ``functions.traced`` returns, by code that Dynamo can follow."""
    seen = kinds[: len(kinds) - masked]
    mapped = ("", ()) if map is None else _follow(map, seen)
    told = (op, kinds, masked, dtype)
    if then is None:
        return _text(mapped, ("", ()), *told)
    result = (getattr(torch, _scanned(mapped, *told)), False)
    return _text(mapped, _follow(then, (result, *seen)), *told)


_Named = tuple[str, tuple[Any, ...]]


def _row(op: Any) -> Any:
    """The operator of a name, or of the handle of one of expressions."""
    return operator_named(op) if isinstance(op, str) else op.operator


@handed_on
def _scanned(mapped: _Named, op: Any, kinds: Kinds, masked: bool, dtype: torch.dtype | None) -> str:
    return traced(_again(*mapped), None, _row(op), kinds, masked, dtype, None).scanned


@handed_on
def _text(mapped: _Named, made: _Named, op: Any, kinds: Kinds, masked: bool, dtype: torch.dtype | None) -> str:
    text: str = traced(_again(*mapped), _again(*made), _row(op), kinds, masked, dtype, None).text
    return text
