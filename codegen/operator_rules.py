"""Checks of an operator row when it is constructed, so that a mistake is not reported by a C++ compiler instead.

A compiler checks the expressions themselves. Checked here is what it could not attribute to the row: the number of
expressions, names of fields, words that have a meaning in one expression and none in another. The constructor of
an ``Operator`` runs these checks, so that this module cannot import its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from scanops.codegen.derivatives import Derivative, Gradient
from scanops.codegen.dtypes import BOUNDS, FIELD_TYPES, Kind
from scanops.errors import UnsupportedRequest

MAX_NAME = 48  # characters: a name is part of file names
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
BRACKETS = {")": "(", "]": "[", "}": "{"}
_MARKS = re.compile(r"[]()[{};]")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OWN = re.compile(r"own\d+")  # fields of fused kernels, for what outputs take of an item
_FORBIDDEN = re.compile(r"//|/\*|#|\\\n")
_BOUND = re.compile(r"\b(lowest|highest)\b")

# Fields that are tuples of strings, with an example of each. Those of expressions have one for each state field, or one
# of these numbers; ``holds``, ``settle``, ``behind`` and ``quick`` none without an extend.
TUPLES = {"fields": "('value',)", "types": "('value', 'index')", "before": "('prod', 'g')", "own": "('keep',)"}
TUPLES |= {"kinds": "('float',)", "unsound": "('complex',)"}
COUNTS: dict[str, tuple[int, ...]] = {"lift": (), "identity": (), "combine": (1,), "append": (0, 1), "extend": (0,)}
COUNTS |= {"holds": (), "settle": (), "behind": (0,), "quick": (), "resume": (0,)}
SINGLE = ("project", "loss", "indices", "carried", "second")  # fields of one expression; all but the first may be empty
OF_STATES = ("combine", "append", "project", "carried", "second", "resume")  # read older, newer or state
FUNCTIONS = ("step", "resumed", "output", "roundings")  # all but the first may be None
CHOICES: dict[str, tuple[object, ...]] = {
    "gives": ("widened", "kept", "bool", "index"),
    "saved": ("", "value", "place"),
    "torch_name": (None, "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    **dict.fromkeys(("ordered", "costly", "masked", "integer_masks", "commutative", "autocast"), (True, False)),
}

RowMistake = tuple[Any, ...]  # the field, what is allowed, a hint, and the offending value if it is not the whole field


def is_field_name(name: object) -> bool:
    """Whether a field of a state may have this name, in C++20 and among the names of kernels."""
    return isinstance(name, str) and not _OWN.fullmatch(name) and _is_member_name(name)


def _is_member_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in KEYWORDS | GENERATED


def refuse(row: Any, mistakes: Iterator[RowMistake]) -> None:
    """Raise UnsupportedRequest for the first mistake in a row."""
    for name, allowed, hint, *value in mistakes:
        offending = f"{name}={(value[0] if value else getattr(row, name))!r}"
        raise UnsupportedRequest(f"Operator {row.name!r}: invalid {name}", allowed=allowed, value=offending, hint=hint)


def in_texts(row: Any) -> Iterator[RowMistake]:
    """Yield what is wrong with names, numbers of expressions and their texts."""
    if not (isinstance(row.name, str) and _NAME.fullmatch(row.name) and len(row.name) <= MAX_NAME):
        allowed = f"a lower-case letter, then lower-case letters, digits and _: at most {MAX_NAME} characters"
        yield "name", allowed, "the name becomes part of file names: pass for example name='last_valid'"
    text = row.formula
    if not (isinstance(text, str) and text.strip() and text.isprintable() and not text.endswith("\\")):
        allowed = "one line of printable text that does not end in a backslash: it becomes a comment of the kernel"
        yield "formula", allowed, "give the output in terms of the input, for example 'y[i] = x[0] + ... + x[i]'"
    for name in (*TUPLES, *COUNTS):
        value = getattr(row, name)
        if not (isinstance(value, tuple) and all(isinstance(part, str) for part in value)):
            yield name, "a tuple of strings", "write " + name + "=" + TUPLES.get(name, "('...',)")
    own = {name for name in row.fields if name in row.own and _is_member_name(name)}
    if not all(map(is_field_name, {*row.fields} - own)) or not row.fields or len(set(row.fields)) < len(row.fields):
        allowed = (
            "distinct names of lower-case letters, digits and _, starting with a letter; no reserved word of C++ and "
        )
        yield "fields", f"{allowed}none of {', '.join(sorted(GENERATED))}, own0", "name each field by what it holds"
    known = ("value", *FIELD_TYPES)
    if row.types and (len(row.types) != len(row.fields) or not set(row.types) <= set(known)):
        allowed = f"one type for each field of {row.fields}: {', '.join(map(repr, known))}"
        yield "types", allowed, "'value' is the accumulator's type; declare fields that hold i as 'index'"
    for name, others in COUNTS.items():
        legal = {"holds": {2}, "quick": {0, 2}}.get(name, {len(row.fields), *others})
        legal = {0} if name in ("holds", "settle", "behind", "quick") and not row.extend else legal
        if (count := len(getattr(row, name))) not in legal:
            allowed = f"{' or '.join(map(str, sorted(legal)))} expressions: one per field of {row.fields}"
            allowed += ", or one for the whole state" if name == "combine" else ""
            yield name, allowed, f"there are {count}; a tuple of one is written ('x',), with a comma"
    if len(row.before) > 2:
        allowed = "the name of an operator, and the C++ expression of its item, of a gate g and a mask m"
        yield "before", allowed, "leave the expression out where it reads more: then v is read from memory"
    texts = [(name, text) for name in COUNTS for text in getattr(row, name)]
    texts += [(name, getattr(row, name)) for name in SINGLE if name == "project" or getattr(row, name) != ""]
    for name, text in [*texts, *(("before", text) for text in row.before[1:])]:
        if not (isinstance(text, str) and text.strip()):
            yield name, "C++ expressions as strings, none of them empty", "write the expression out", text
        elif _FORBIDDEN.search(text) or not _is_closed(text):
            allowed = "C++ expressions: every bracket closed; no comments, no directives, no semicolon outside braces"
            yield name, allowed, "write one expression, without a semicolon at its end", text
        elif name != "identity" and (word := _BOUND.search(text)):
            hint = f"give the state a field for {word[0]}, or leave it out"
            yield name, "the words lowest and highest in identity only", hint, text


def _is_closed(text: str) -> bool:
    """Whether all brackets of an expression match and it has no semicolon outside braces."""
    opened: list[str] = []
    for letter in _MARKS.findall(text):
        if letter in BRACKETS.values():
            opened.append(letter)
        elif letter in BRACKETS and (not opened or opened.pop() != BRACKETS[letter]):
            return False
        if letter == ";" and "{" not in opened:
            return False
    return not opened


def in_meaning(row: Any) -> Iterator[RowMistake]:
    """Yield contradictions between fields, and values that are not among the legal ones."""
    if row.loss and not row.of_elements:
        hint = "make the rounding error a field of the state, as the compensated sum in codegen/operators/sums.py"
        yield "loss", "empty, unless a state is an element: what rounding loses is added to it", hint
    plain = row.field_types == ("value",)
    if row.project == "state" and not plain:
        allowed = "a numeric expression; the state itself is one only if it has one field, of type 'value'"
        yield "project", allowed, f"for example project='state.{row.fields[0]}'"
    for name in OF_STATES if plain else ():
        text = " ".join(getattr(row, name)) if name in COUNTS else getattr(row, name)
        if member := re.search(rf"\b(older|newer|state)\s*\.\s*{row.fields[0]}\b", text):
            allowed = "older, newer and state without a member: a state of one field of type 'value' is a plain number"
            yield name, allowed, f"write {member[1]} for {member[0]}"
    if row.own and (len(row.own) >= len(row.fields) or row.own != row.fields[-len(row.own) :]):
        yield "own", f"the last of the fields {row.fields}, not all of them", "put them last among the fields"
    if row.indices and row.second:
        yield "second", "one second output: indices or second", "leave one of them out"
    if not row.kinds or not set(row.kinds) <= set(get_args(Kind)):
        yield "kinds", f"one or more of {', '.join(map(repr, get_args(Kind)))}", "name the kinds of legal dtypes"
    for name, legal in CHOICES.items():
        value = getattr(row, name)
        if not any(type(value) is type(choice) and value == choice for choice in legal):
            yield name, " or ".join(map(repr, legal)), f"pass one of these as {name}"
    for name in ("indices", "resume") if row.gives == "index" else ():
        if getattr(row, name):
            allowed = "nothing with gives='index': an index is the only output, and no carry-in"
            yield name, allowed, f"leave {name} out"
    several = isinstance(row.start, tuple)
    parts = row.start if several else (row.start,)
    if not parts or not all(isinstance(part, int | float | complex) or part in BOUNDS for part in parts):
        allowed = f"a number or one of {', '.join(map(repr, BOUNDS))}; a tuple of these where h has several parts"
        yield "start", allowed, "give h before the first element"
    for name in FUNCTIONS:
        function = getattr(row, name)
        if not callable(function) and (function is not None or name == "step"):
            yield name, "a function", "write the recurrence in Python, for example lambda h, x: h + x"
    if row.resumed is None and several and row.resume:
        allowed = "a function of the carry-in, because h is a tuple and resume is given"
        yield "resumed", allowed, "return h after a carry-in, for example resumed=lambda y: (y, 0)"
    if row.output is None and several and not row.indices:
        hint = "select the part that is the result, for example output=lambda h: h[0]"
        yield "output", "a function of h, because h is a tuple", hint
    for name, kind in (("gradient", Gradient), ("derivative", Derivative)):
        if not isinstance(getattr(row, name), kind | None):
            yield name, f"a {kind.__name__}, or None", f"see help(scanops.codegen.derivatives.{kind.__name__})"
    if row.derivative is not None and (several or row.output is not None):
        yield "derivative", "None, unless h is one number and the result", "PyTorch differentiates the recurrence"
