"""Whether a row of the operator table is well formed, told when it is made and not by a compiler.

Expressions are C++, which a compiler reads; here is checked what a compiler would not understand as the row's mistake:
how many there are, what they are called, words that mean something in one place and nothing in another.
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
# Fields stand in a struct, whose type names the kernels use, and names the expressions give other meanings to.
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


def check_row(row: Operator, results: Collection[str], words: Collection[str]) -> None:
    """Raise UnsupportedRequest for the first thing that is wrong with a row.

    ``results`` are the values that ``gives`` may have, ``words`` those that ``start`` may name.
    """
    _check_name(row)
    _check_line(row, "formula")
    _check_fields(row)
    for name in ("lift", "identity"):
        _check_count(row, name, (len(row.fields),))
    _check_count(row, "combine", tuple(sorted({1, len(row.fields)})))
    _check_count(row, "append", tuple(sorted({0, 1, len(row.fields)})))
    _check_count(row, "extend", tuple(sorted({0, len(row.fields)})))
    _check_count(row, "holds", (2,) if row.extend else (0,))
    _check_count(row, "settle", (len(row.fields),) if row.extend else (0,))
    _check_count(row, "behind", tuple(sorted({0, len(row.fields)})) if row.extend else (0,))
    _check_count(row, "resume", (0, len(row.fields)))
    for name in ("lift", "combine", "append", "extend", "holds", "settle", "behind", "identity", "resume"):
        for text in getattr(row, name):
            _check_expression(row, name, text)
    _check_expression(row, "project", row.project)
    _check_loss(row)
    if row.indices != "":
        _check_expression(row, "indices", row.indices)
    if row.project == "state" and row.fields[1:]:
        _refuse(
            row,
            "project",
            "an expression of type Value: the state itself only where it has one field",
            f"for example project='state.{row.fields[0]}'",
        )
    for name in ("carried", "second"):
        if getattr(row, name) != "":
            _check_expression(row, name, getattr(row, name))
    _check_scalar(row)
    _check_tuple(row, "before", "('prod', 'g')")
    for text in row.before[1:]:
        _check_expression(row, "before", text)
    _check_own(row)
    _check_kinds(row)
    _check_among(row, "gives", results)
    _check_among(row, "torch_name", (None, *TORCH_SCANS))
    _check_among(row, "saved", ("", "value", "place"))
    for name in ("ordered", "costly", "masked", "commutative"):
        _check_among(row, name, (True, False))
    _check_reference(row, words)


def _check_scalar(row: Operator) -> None:
    """A state of one field is the value itself, which has no members."""
    if row.fields[1:]:
        return
    for name in ("combine", "append", "project", "carried", "second", "resume"):
        value = getattr(row, name)
        for text in value if isinstance(value, tuple) else (value,):
            if member := re.search(rf"\b(older|newer|state)\s*\.\s*{row.fields[0]}\b", text):
                _refuse(
                    row,
                    name,
                    "older, newer and state as they are where there is one field: they are its value",
                    f"write {member[1]} for {member[0]}",
                    value,
                )


def _check_loss(row: Operator) -> None:
    if row.loss == "":
        return
    _check_expression(row, "loss", row.loss)
    if row.fields[1:] or not row.of_elements:
        _refuse(
            row,
            "loss",
            "empty, save where a state is an element: what is lost is then added to it",
            "keep what rounding loses as a field of the state: see the compensated sum in codegen/table.py",
        )


def _refuse(row: Operator, name: str, allowed: str, hint: str, value: object = None) -> None:
    offending = getattr(row, name) if value is None else value
    raise UnsupportedRequest(
        f"the operator {row.name!r} with this {name}",
        allowed=allowed,
        value=f"{name}={offending!r}",
        hint=hint,
    )


def _check_name(row: Operator) -> None:
    if not (isinstance(row.name, str) and re.fullmatch(rf"[a-z][a-z0-9_]{{0,{MAX_NAME - 1}}}", row.name)):
        raise UnsupportedRequest(
            "an operator of this name",
            allowed=f"a small letter, then small letters, digits and _: at most {MAX_NAME} characters",
            value=f"name={row.name!r}",
            hint="the name becomes a part of file names: pass name='last_valid' or the like",
        )


def _check_line(row: Operator, name: str) -> None:
    text = getattr(row, name)
    if not (isinstance(text, str) and text.strip() and text.isprintable() and not text.endswith("\\")):
        _refuse(
            row,
            name,
            "one line of printable text that does not end in a backslash: it becomes a comment of the kernel",
            "say the output in terms of the input, for example 'y[i] = x[0] + ... + x[i]'",
            text,
        )


def _check_tuple(row: Operator, name: str, example: str) -> None:
    value = getattr(row, name)
    if not (isinstance(value, tuple) and all(isinstance(part, str) for part in value)):
        _refuse(row, name, "a tuple of strings", f"write {name}={example}", value)


def _check_fields(row: Operator) -> None:
    _check_tuple(row, "fields", "('value',)")
    _check_tuple(row, "places", "('index',)")
    legal = "one or more different names: a small letter, then small letters, digits and _; no word of C++ and none of "
    bad = [
        name
        for name in row.fields
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in KEYWORDS or name in GENERATED
    ]
    if bad or not row.fields or len(set(row.fields)) < len(row.fields):
        _refuse(row, "fields", legal + ", ".join(sorted(GENERATED)), "name each field by what it holds")
    if not set(row.places) <= set(row.fields):
        _refuse(row, "places", f"some of the fields {row.fields}", "name those fields that hold an index in the line")


def _check_count(row: Operator, name: str, allowed: tuple[int, ...]) -> None:
    _check_tuple(row, name, "('...',)")
    found = getattr(row, name)
    if len(found) not in allowed:
        _refuse(
            row,
            name,
            f"{' or '.join(map(str, allowed))} expressions: one a field of {row.fields}"
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
            "C++ expressions: every bracket closed; no comments, no directives, no semicolon outside of braces",
            "write one expression, without a semicolon at its end",
            text,
        )
    if name != "identity" and (word := re.search(r"\b(lowest|highest)\b", text)):
        _refuse(
            row,
            name,
            "the words lowest and highest in identity only: they are constants of the output's dtype",
            f"give the state a field for {word[0]}, or leave it out",
            text,
        )


def _is_closed(text: str) -> bool:
    """Whether the brackets of an expression close, with no semicolon between them but in braces."""
    opened: list[str] = []
    for letter in text:
        if letter in BRACKETS.values():
            opened.append(letter)
        elif letter in BRACKETS and (not opened or opened.pop() != BRACKETS[letter]):
            return False
        if letter == ";" and "{" not in opened:
            return False
    return not opened


def _check_own(row: Operator) -> None:
    _check_tuple(row, "own", "('keep',)")
    if row.own and (len(row.own) >= len(row.fields) or row.own != row.fields[-len(row.own) :]):
        _refuse(row, "own", f"the last of the fields {row.fields}, not all of them", "put them last among the fields")
    if row.indices and row.second:
        _refuse(row, "second", "one second output: indices or second", "leave one of them out")


def _check_kinds(row: Operator) -> None:
    _check_tuple(row, "kinds", "('float',)")
    known = get_args(Kind)
    if not row.kinds or not set(row.kinds) <= set(known):
        _refuse(row, "kinds", f"one or more of {', '.join(map(repr, known))}", "name the kinds of legal output dtypes")


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
            "give h as it is before the first element",
        )
    _check_callable(row, "step", row.step)
    if row.resumed is not None:
        _check_callable(row, "resumed", row.resumed)
    elif isinstance(row.start, tuple) and row.resume:
        _refuse(
            row,
            "resumed",
            "a function of a result, where h is a tuple and resume says the state of one",
            "give h after a result that is carried in, for example resumed=lambda y: (y, 0)",
        )
    if row.output is not None:
        _check_callable(row, "output", row.output)
    elif isinstance(row.start, tuple) and not row.indices:
        _refuse(
            row,
            "output",
            "a function of h, where h is a tuple",
            "say which part is the result, for example output=lambda h: h[0]",
        )


def _check_callable(row: Operator, name: str, value: object) -> None:
    if not callable(value):
        _refuse(row, name, "a function", "write the recurrence in Python, for example lambda h, x: h + x")
