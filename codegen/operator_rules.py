"""Checks of an operator row when it is constructed, so that a mistake is not reported by a C++ compiler instead.

A compiler checks the expressions themselves. Checked here is what it could not attribute to the row: the number of
expressions, names of fields, words that have a meaning in one expression and none in another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, get_args

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.dtypes import Kind
from scanops.errors import UnsupportedRequest

if TYPE_CHECKING:
    from scanops.codegen.operator import Operator

__all__ = ["check_row", "check_texts"]

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

# Fields that are tuples of strings, with an example.
TUPLES = {
    "fields": "('value',)",
    "types": "('value', 'index')",
    "places": "('index',)",
    "before": "('prod', 'g')",
    "own": "('keep',)",
    "kinds": "('float',)",
    "unsound": "('complex',)",
}
# Fields with one expression for each state field: how many others are legal, and whether an extend is needed.
ONE, NONE = 1, 0
EXPRESSIONS: dict[str, tuple[int, ...]] = {
    "lift": (),
    "identity": (),
    "combine": (ONE,),
    "append": (NONE, ONE),
    "extend": (NONE,),
    "holds": (),  # two of them, with extend
    "settle": (),
    "behind": (NONE,),
    "resume": (NONE,),
}
WITH_EXTEND = ("holds", "settle", "behind")
SINGLE = ("project", "loss", "indices", "carried", "second")  # fields of one expression; all but the first may be empty
SCALAR = ("combine", "append", "project", "carried", "second", "resume")  # read older, newer or state
FLAGS = ("ordered", "costly", "masked", "commutative", "autocast")
FUNCTIONS = ("step", "resumed", "output", "roundings")


def check_texts(row: Operator, types: Collection[str]) -> None:
    """Raise UnsupportedRequest for the first mistake in the name, the fields and the numbers of expressions.

    ``types`` are the types of fields besides "value".
    """
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
        )
    for name, example in (TUPLES | dict.fromkeys(EXPRESSIONS, "('...',)")).items():
        value = getattr(row, name)
        if not (isinstance(value, tuple) and all(isinstance(part, str) for part in value)):
            _refuse(row, name, "a tuple of strings", f"write {name}={example}")
    _check_fields(row, types)
    every = len(row.fields)
    for name, others in EXPRESSIONS.items():
        legal = {NONE} if name in WITH_EXTEND and not row.extend else {2} if name == "holds" else {every, *others}
        if len(getattr(row, name)) not in legal:
            _refuse(
                row,
                name,
                f"{' or '.join(map(str, sorted(legal)))} expressions: one per field of {row.fields}"
                + (", or one for the whole state" if name == "combine" else ""),
                f"there are {len(getattr(row, name))}; a tuple of one is written ('x',), with a comma",
            )
    for name, expression in _expressions(row):
        _check_expression(row, name, expression)


def _check_fields(row: Operator, types: Collection[str]) -> None:
    reserved = KEYWORDS | GENERATED
    bad = [name for name in row.fields if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in reserved]
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


def _expressions(row: Operator) -> Iterator[tuple[str, object]]:
    """Every C++ expression of a row, with the name of its field."""
    yield from ((name, text) for name in EXPRESSIONS for text in getattr(row, name))
    yield from ((name, getattr(row, name)) for name in SINGLE if name == "project" or getattr(row, name) != "")
    yield from (("before", text) for text in row.before[1:])


def _check_expression(row: Operator, name: str, text: object) -> None:
    if not (isinstance(text, str) and text.strip()):
        _refuse(row, name, "C++ expressions as strings, none of them empty", "write the expression out", text)
    assert isinstance(text, str)
    if re.search(r"//|/\*|#|\\\n", text) or not _is_closed(text):
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


def check_row(row: Operator, results: Collection[str], words: Collection[str]) -> None:
    """Raise UnsupportedRequest for the first mistake in what the expressions and the other fields mean.

    ``results`` are the legal values of ``gives``, ``words`` those of ``start``.
    """
    for wrong, name, allowed, hint in _contradictions(row, words):
        if wrong:
            _refuse(row, name, allowed, hint)
    choices: dict[str, Collection[Any]] = {
        "gives": results,
        "torch_name": (None, *TORCH_SCANS),
        "saved": ("", "value", "place"),
        **dict.fromkeys(FLAGS, (True, False)),
    }
    for name, legal in choices.items():
        value = getattr(row, name)
        if not any(type(value) is type(choice) and value == choice for choice in legal):
            _refuse(row, name, " or ".join(map(repr, legal)), f"pass one of these as {name}")
    if row.field_types == ("value",):  # the state is a plain number
        for name in SCALAR:
            text = " ".join(getattr(row, name)) if name in EXPRESSIONS else getattr(row, name)
            if member := re.search(rf"\b(older|newer|state)\s*\.\s*{row.fields[0]}\b", text):
                _refuse(
                    row,
                    name,
                    "older, newer and state without a member: a state of one field of type 'value' is a plain number",
                    f"write {member[1]} for {member[0]}",
                )


def _contradictions(row: Operator, words: Collection[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield (whether it is wrong, the field, what is allowed, a hint) for each rule."""
    yield (
        row.loss and not row.of_elements,
        "loss",
        "empty, unless a state is an element: what rounding loses is added to it",
        "make the rounding error a field of the state, as the compensated sum in codegen/operators/sums.py",
    )
    yield (
        row.project == "state" and row.field_types != ("value",),
        "project",
        "a numeric expression; the state itself is one only if it has one field, of type 'value'",
        f"for example project='state.{row.fields[0]}'",
    )
    yield (
        row.own and (len(row.own) >= len(row.fields) or row.own != row.fields[-len(row.own) :]),
        "own",
        f"the last of the fields {row.fields}, not all of them",
        "put them last among the fields",
    )
    yield row.indices and row.second, "second", "one second output: indices or second", "leave one of them out"
    known = get_args(Kind)
    yield (
        not row.kinds or not set(row.kinds) <= set(known),
        "kinds",
        f"one or more of {', '.join(map(repr, known))}",
        "name the kinds of legal dtypes",
    )
    for name in ("indices", "resume"):
        yield (
            row.gives == "index" and getattr(row, name),
            name,
            "nothing with gives='index': an index is the only output, and no carry-in",
            f"leave {name} out",
        )
    several = isinstance(row.start, tuple)
    parts = row.start if several else (row.start,)
    yield (
        not parts or not all(isinstance(part, int | float | complex) or part in words for part in parts),
        "start",
        f"a number or one of {', '.join(map(repr, words))}; a tuple of these where h has several parts",
        "give h before the first element",
    )
    for name in FUNCTIONS:
        function = getattr(row, name)
        yield (
            not callable(function) and (function is not None or name == "step"),
            name,
            "a function",
            "write the recurrence in Python, for example lambda h, x: h + x",
        )
    yield (
        row.resumed is None and several and row.resume,
        "resumed",
        "a function of the carry-in, because h is a tuple and resume is given",
        "return h after a carry-in, for example resumed=lambda y: (y, 0)",
    )
    yield (
        row.output is None and several and not row.indices,
        "output",
        "a function of h, because h is a tuple",
        "select the part that is the result, for example output=lambda h: h[0]",
    )
    for name, kind in (("gradient", Gradient), ("derivative", Derivative)):
        yield (
            not isinstance(getattr(row, name), kind | None),
            name,
            f"a {kind.__name__} of scanops.codegen.derivatives, or None",
            f"see help(scanops.codegen.derivatives.{kind.__name__})",
        )
    yield (
        row.derivative is not None and (several or row.output is not None),
        "derivative",
        "None, unless h is one number and the result",
        "leave it out: the recurrence is differentiated item by item",
    )


def _refuse(row: Operator, name: str, allowed: str, hint: str, value: object = None) -> None:
    offending = f"{name}={(getattr(row, name) if value is None else value)!r}"
    raise UnsupportedRequest(f"Operator {row.name!r}: invalid {name}", allowed=allowed, value=offending, hint=hint)
