"""The operator rows of kernels around expressions. This module needs no torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scanops.codegen.dtypes import DTYPES, literal
from scanops.codegen.fusion.graph import Printer, indent
from scanops.codegen.operator import Operator

_FIELD = {"bool": "index", "uint8": "index", "int8": "index", "int16": "index", "uint16": "index", "int32": "int32"}


class Field(NamedTuple):
    """A field of the state of an operator of expressions, the dtype it is computed in, and its identity."""

    name: str
    dtype: str
    identity: float


# Names with a meaning in expressions, which no field may have: fields are members of a generated struct.
GENERATED = frozenset(("older", "newer", "state", "lowest", "highest", "is_nan", "infinity"))
_WORDS = (
    "alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char char8_t char16_t char32_t "
    "class co_await co_return co_yield compl concept const consteval constexpr constinit const_cast continue decltype "
    "default delete do double dynamic_cast else enum errno explicit export extern false float for friend goto if "
    "inline int linux long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public register reinterpret_cast requires return short signed sizeof static static_assert static_cast stderr "
    "stdin stdout struct switch template this thread_local throw true try typedef typeid typename typeof union unix "
    "unsigned using virtual void volatile wchar_t while xor xor_eq "
)
KEYWORDS = frozenset(_WORDS.split())
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OWN = re.compile(r"own\d+")  # fields of fused kernels, for what outputs take of an item


def is_field_name(name: object) -> bool:
    """Whether a field of a state may have this name, in C++20 and among the names of kernels."""
    legal = isinstance(name, str) and _NAME.fullmatch(name) is not None and not _OWN.fullmatch(name)
    return legal and name not in KEYWORDS | GENERATED


def of_states(fields: Sequence[Field], role: str, state: str) -> dict[tuple[str, Any], str]:
    """C++ of the fields of a state, by the leaves of expressions that they are."""
    texts = (f"({state}.{name} != 0)" if dtype == "bool" else f"{state}.{name}" for name, dtype, _ in fields)
    return {(role, place): text for place, text in enumerate(texts)}


def _join_states(fusion: Any, roots: Sequence[int]) -> str:
    """The C++ expression of ``combine`` or ``append``; the newer state's own fields are the result's."""
    leaves = of_states(fusion.fields, "older", "older") | of_states(fusion.fields, "newer", "newer")
    lines, texts = Printer(fusion.nodes, leaves, False).statements(*roots)
    made = [f"s.{each.name} = {text};" for each, text in zip(fusion.fields, texts, strict=True)]
    return f"[&] {{\n{indent('State s = newer;', *lines, *made, 'return s;')}    }}()"


def _with_fields(row: Operator, text: str) -> str:
    """An expression over states of a row, whose state may be a plain number, with the field named."""
    if row.field_types != ("value",):
        return text
    return re.sub(r"\b(older|newer|state)\b", rf"\1.{row.fields[0]}", text)


@functools.lru_cache(maxsize=256)
def row_with(fusion: Any, row: Operator) -> Operator:
    """Return ``row``, or that of expressions, with what outputs take of an item in further fields."""
    names = tuple(f"own{number}" for number in range(len(fusion.held)))
    named = functools.partial(_with_fields, row) if names else str
    kinds = tuple(_FIELD.get(dtype := fusion.nodes[at][1], dtype) for at in fusion.held)
    newer, none = tuple(f"newer.{name}" for name in names), ("0",) * len(names)
    if fusion.fields:
        return replace(
            row,
            fields=(*(each.name for each in fusion.fields), *names),
            types=(*(_FIELD.get(each.dtype, each.dtype) for each in fusion.fields), *kinds),
            own=names,
            lift=("0",) * (len(fusion.fields) + len(names)),
            combine=(_join_states(fusion, fusion.combine),),
            append=(_join_states(fusion, fusion.append or fusion.combine),),
            identity=(*(literal(each.identity, DTYPES[each.dtype]) for each in fusion.fields), *none),
            project="then0(state)",
            carried=f"state.{fusion.fields[0].name}",
        )

    def joined(texts: tuple[str, ...]) -> tuple[str, ...]:
        if len(texts) < len(row.fields):  # one expression for the whole state
            parts = "".join(f" s.{name} = newer.{name};" for name in names)
            return tuple(f"[&] {{ State s = {text};{parts} return s; }}()" for text in texts)
        return (*map(named, texts), *newer)

    return replace(
        row,
        name=f"{row.name}_fused",
        fields=(*row.fields, *names),
        types=(*row.field_types, *kinds),
        own=names,
        lift=(*row.lift, *none),
        combine=joined(row.combine),
        append=joined(row.append) if row.append else (),
        extend=(),
        holds=(),
        settle=(),
        behind=(),
        quick=(),
        loss="",
        identity=(*row.identity, *none),
        project=f"then0(({DTYPES[fusion.scanned].value})({named(row.project)}), state)",
        resume=(*row.resumes, *none) if row.resumes else (),
        resumed=lambda y: y,
        output=lambda h: h,
        carried=named(row.carried or row.project),
        kinds=("int", "float", "complex", "bool"),
        forms={},
        gradient=None,
        derivative=None,
        join=None,
    )
