"""Checks of an operator row when it is constructed, so that a mistake is not reported by a C++ compiler instead.

A compiler checks the expressions themselves. Checked here is what it could not attribute to the row: the number of
expressions, names of fields, words that have a meaning in one expression and none in another.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, get_args

from scanops.codegen.dtypes import Kind
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.codegen.operators import Operator

__all__ = ["check_row"]

MAX_NAME = 48  # characters: a name is part of file names
# Names with a meaning in expressions, which no field may have: fields are members of a generated struct.
GENERATED = frozenset(("older", "newer", "state", "lowest", "highest", "is_nan", "infinity"))
_WORDS = (
    "alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char class co_await co_return "
    "co_yield compl concept const consteval constexpr constinit const_cast continue decltype default delete do "
    "double dynamic_cast else enum errno explicit export extern false float for friend goto if inline int linux "
    "long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast stderr stdin stdout "
    "struct switch template this thread_local throw true try typedef typeid typename typeof union unix unsigned "
    "using virtual void volatile wchar_t while xor xor_eq "
)
KEYWORDS = frozenset(_WORDS.split())
TORCH_SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
BRACKETS = {")": "(", "]": "[", "}": "{"}
PER_FIELD = ("lift", "combine", "append", "extend", "holds", "settle", "behind", "identity", "resume")


def check_row(row: Operator, results: Collection[str], words: Collection[str], types: Collection[str]) -> None:
    """Raise UnsupportedRequest for the first mistake in a row.

    ``results`` are the legal values of ``gives``, ``words`` those of ``start``, ``types`` the types of fields besides
    "value".
    """
    _check_texts(row)
    _check_fields(row, types)
    one, all_ = 1, len(row.fields)
    extended = bool(row.extend)
    counts: dict[str, tuple[int, ...]] = {
        "lift": (all_,),
        "identity": (all_,),
        "combine": (one, all_),
        "append": (0, one, all_),
        "extend": (0, all_),
        "holds": (2,) if extended else (0,),
        "settle": (all_,) if extended else (0,),
        "behind": (0, all_) if extended else (0,),
        "resume": (0, all_),
    }
    for name, allowed in counts.items():
        _check_count(row, name, tuple(sorted(set(allowed))))
    _check_tuple(row, "before", "('prod', 'g')")
    texts = [(name, text) for name in PER_FIELD for text in getattr(row, name)]
    texts += [
        (name, getattr(row, name)) for name in ("loss", "indices", "carried", "second") if getattr(row, name) != ""
    ]
    for name, text in [*texts, ("project", row.project), *(("before", text) for text in row.before[1:])]:
        _check_expression(row, name, text)
    if row.loss and (row.fields[1:] or not row.of_elements):
        _refuse(
            row,
            "loss",
            "empty, unless a state is an element: what rounding loses is added to it",
            "make the rounding error a field of the state, as the compensated sum in codegen/table.py",
        )
    if row.project == "state" and row.field_types != ("value",):
        _refuse(
            row,
            "project",
            "a numeric expression; the state itself is one only if it has one field, of type 'value'",
            f"for example project='state.{row.fields[0]}'",
        )
    _check_scalar(row)
    _check_tuple(row, "own", "('keep',)")
    if row.own and (len(row.own) >= len(row.fields) or row.own != row.fields[-len(row.own) :]):
        _refuse(row, "own", f"the last of the fields {row.fields}, not all of them", "put them last among the fields")
    if row.indices and row.second:
        _refuse(row, "second", "one second output: indices or second", "leave one of them out")
    _check_tuple(row, "kinds", "('float',)")
    known = get_args(Kind)
    if not row.kinds or not set(row.kinds) <= set(known):
        _refuse(row, "kinds", f"one or more of {', '.join(map(repr, known))}", "name the kinds of legal dtypes")
    _check_among(row, "gives", results)
    if row.gives == "index" and (row.indices or row.resume):
        name = "indices" if row.indices else "resume"
        _refuse(
            row, name, "nothing with gives='index': an index is the only output, and no carry-in", f"leave {name} out"
        )
    _check_among(row, "torch_name", (None, *TORCH_SCANS))
    _check_among(row, "saved", ("", "value", "place"))
    for name in ("ordered", "costly", "masked", "commutative"):
        _check_among(row, name, (True, False))
    _check_reference(row, words)


def _refuse(row: Operator, name: str, allowed: str, hint: str, value: object = None) -> None:
    offending = f"{name}={(getattr(row, name) if value is None else value)!r}"
    raise UnsupportedRequest(f"Operator {row.name!r}: invalid {name}", allowed=allowed, value=offending, hint=hint)


def _check_texts(row: Operator) -> None:
    """The name, which becomes part of file names, and the formula, which becomes a comment."""
    if not (isinstance(row.name, str) and re.fullmatch(rf"[a-z][a-z0-9_]{{0,{MAX_NAME - 1}}}", row.name)):
        raise UnsupportedRequest(
            "Operator: invalid name",
            allowed=f"a lower-case letter, then lower-case letters, digits and _: at most {MAX_NAME} characters",
            value=f"name={row.name!r}",
            hint="the name becomes part of file names: pass for example name='last_valid'",
        )
    text = row.formula
    if not (isinstance(text, str) and text.strip() and text.isprintable() and not text.endswith("\\")):
        _refuse(
            row,
            "formula",
            "one line of printable text that does not end in a backslash: it becomes a comment of the kernel",
            "give the output in terms of the input, for example 'y[i] = x[0] + ... + x[i]'",
            text,
        )


def _check_tuple(row: Operator, name: str, example: str) -> None:
    value = getattr(row, name)
    if not (isinstance(value, tuple) and all(isinstance(part, str) for part in value)):
        _refuse(row, name, "a tuple of strings", f"write {name}={example}", value)


def _check_fields(row: Operator, types: Collection[str]) -> None:
    for name, example in (("fields", "('value',)"), ("types", "('value', 'index')"), ("places", "('index',)")):
        _check_tuple(row, name, example)
    bad = [
        name
        for name in row.fields
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in KEYWORDS or name in GENERATED
    ]
    if bad or not row.fields or len(set(row.fields)) < len(row.fields):
        _refuse(
            row,
            "fields",
            "distinct names of lower-case letters, digits and _, starting with a letter; no C++ keyword and none of "
            + ", ".join(sorted(GENERATED)),
            "name each field by what it holds",
        )
    known = ("value", *types)
    if row.types and (len(row.types) != len(row.fields) or not set(row.types) <= set(known)):
        _refuse(
            row,
            "types",
            f"one type for each field of {row.fields}: {', '.join(map(repr, known))}",
            "'value' is the accumulator's type; declare fields that hold i as 'index'",
        )
    if not set(row.places) <= set(row.fields) or (row.types and row.places):
        _refuse(
            row,
            "places",
            f"some of the fields {row.fields}, and nothing where types is given",
            "name the fields that hold an index along the line, or give types='index' for them",
        )


def _check_scalar(row: Operator) -> None:
    """Refuse ``older.value`` and the like where the state has one field of type "value": it is then a plain number."""
    if row.field_types != ("value",):
        return
    for name in ("combine", "append", "project", "carried", "second", "resume"):
        value = getattr(row, name)
        for text in value if isinstance(value, tuple) else (value,):
            if member := re.search(rf"\b(older|newer|state)\s*\.\s*{row.fields[0]}\b", text):
                _refuse(
                    row,
                    name,
                    "older, newer and state without a member: a state of one field of type 'value' is a plain number",
                    f"write {member[1]} for {member[0]}",
                    value,
                )


def _check_count(row: Operator, name: str, allowed: tuple[int, ...]) -> None:
    _check_tuple(row, name, "('...',)")
    found = getattr(row, name)
    if len(found) not in allowed:
        _refuse(
            row,
            name,
            f"{' or '.join(map(str, allowed))} expressions: one per field of {row.fields}"
            + (", or one for the whole state" if name == "combine" else ""),
            f"there are {len(found)}; a tuple of one is written ('x',), with a comma",
        )


def _check_expression(row: Operator, name: str, text: object) -> None:
    if not (isinstance(text, str) and text.strip()):
        _refuse(row, name, "C++ expressions as strings, none of them empty", "write the expression out", text)
    assert isinstance(text, str)
    found = re.search(r"//|/\*|#|\\\n", text)
    if found or not _is_closed(text):
        _refuse(
            row,
            name,
            "C++ expressions: every bracket closed; no comments, no directives, no semicolon outside braces",
            "write one expression, without a semicolon at its end",
            text,
        )
    if name != "identity" and (word := re.search(r"\b(lowest|highest)\b", text)):
        _refuse(
            row,
            name,
            "the words lowest and highest in identity only",
            f"give the state a field for {word[0]}, or leave it out",
            text,
        )


def _is_closed(text: str) -> bool:
    """Whether all brackets of an expression match and it has no semicolon outside braces."""
    opened: list[str] = []
    for letter in text:
        if letter in BRACKETS.values():
            opened.append(letter)
        elif letter in BRACKETS and (not opened or opened.pop() != BRACKETS[letter]):
            return False
        if letter == ";" and "{" not in opened:
            return False
    return not opened


def _check_among(row: Operator, name: str, choices: Collection[Any]) -> None:
    value = getattr(row, name)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        _refuse(row, name, " or ".join(map(repr, choices)), f"pass one of these as {name}")


def _check_reference(row: Operator, words: Collection[str]) -> None:
    parts = row.start if isinstance(row.start, tuple) else (row.start,)
    if not parts or not all(isinstance(part, int | float | complex) or part in words for part in parts):
        _refuse(
            row,
            "start",
            f"a number or one of {', '.join(map(repr, words))}; a tuple of these where h has several parts",
            "give h before the first element",
        )
    for name in ("step", "resumed", "output"):
        function = getattr(row, name)
        if not callable(function) and (function is not None or name == "step"):
            _refuse(row, name, "a function", "write the recurrence in Python, for example lambda h, x: h + x")
    if row.resumed is None and isinstance(row.start, tuple) and row.resume:
        _refuse(
            row,
            "resumed",
            "a function of the carry-in, because h is a tuple and resume is given",
            "return h after a carry-in, for example resumed=lambda y: (y, 0)",
        )
    if row.output is None and isinstance(row.start, tuple) and not row.indices:
        _refuse(
            row,
            "output",
            "a function of h, because h is a tuple",
            "select the part that is the result, for example output=lambda h: h[0]",
        )
