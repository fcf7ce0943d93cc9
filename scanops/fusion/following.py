"""The functions of a scan as ``torch.compile`` follows them: Dynamo runs them, and so guards whatever they see.

Dynamo knows an item by a name only. What is done to items is noted, and done again to those of ``tracing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from scanops.codegen.operators import operator_named
from scanops.errors import UnsupportedRequest
from scanops.fusion.functions import Kinds, traced
from scanops.fusion.tracing import Traced, applied, captured, refused
from scanops.torch_private import at_tracing

Function = Callable[..., Any]


_Step = tuple[str, Any, tuple[str, ...], tuple[Any, ...]]  # operation, names of keywords, and values
_NOTES: dict[str, tuple[int, list[_Step]]] = {}  # by the name of a function that is followed; the number of its items
_MOST = 64  # functions: Dynamo abandons some
_numbers = itertools.count()


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
        """Refused: the dtype follows from the scan, of which only the text is known here."""
        raise refused("the dtype of an item under torch.compile", "casts: x.type_as(y), x.float()", "name the dtype")


@at_tracing
def _begun(count: int) -> str:
    while len(_NOTES) >= _MOST:
        _NOTES.pop(next(iter(_NOTES)), None)
    name = str(next(_numbers))
    _NOTES[name] = (count, [])
    return name


@at_tracing
def _noted(name: str, function: Any, keys: tuple[str, ...], *values: Any) -> str:
    of = next(each.split()[1] for each in values if _place_of(each) is not None)
    count, steps = _NOTES[of]
    steps.append((name, function, keys, values))
    return f"item {of} {count + len(steps) - 1}"


def _place_of(value: Any) -> int | None:
    """The place of an item among those of its function, by its name; None for any other value."""
    return int(value.rpartition(" ")[2]) if isinstance(value, str) and value.startswith("item ") else None


def _follow(function: Function | None, count: int) -> tuple[str, tuple[Any, ...]]:
    """Run a function on so many items. Return its name, and what it returns, items by their names."""
    if function is None:
        return "", ()
    name = _begun(count)
    found = function(*[_Followed(f"item {name} {place}") for place in range(count)])
    values = found if isinstance(found, tuple | list) else (found,)
    return name, tuple([each._name if isinstance(each, _Followed) else each for each in values])


def _again(name: str, values: tuple[Any, ...]) -> Function | None:
    """The function that was followed under this name, for items of ``tracing``."""

    def function(*given: Traced) -> tuple[Any, ...]:
        items: list[Any] = [*given]

        def found(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(items[place] if (place := _place_of(each)) is not None else each for each in values)

        for operation, does, keys, read in _NOTES[name][1]:
            arguments = found(read)
            count = len(arguments) - len(keys)
            items.append(applied(operation, does, arguments[:count], dict(zip(keys, arguments[count:], strict=True))))
        return found(values)

    return function if name else None


def text_of(map: Function | None, then: Function | None, op: Any, kinds: Kinds, masked: bool, dtype: Any) -> str:
    """Return the text of the fusion that ``functions.traced`` returns, by code that Dynamo can follow."""
    count = len(kinds) - masked
    return _text(_follow(map, count), _follow(then, count + 1), op, kinds, masked, dtype)


@handed_on
def _text(map: tuple[Any, ...], then: tuple[Any, ...], op: Any, kinds: Kinds, masked: bool, dtype: Any) -> str:
    row = operator_named(op) if isinstance(op, str) else op.operator  # of expressions: by its handle
    text: str = traced(_again(*map), _again(*then), row, kinds, masked, dtype, None).text
    return text
