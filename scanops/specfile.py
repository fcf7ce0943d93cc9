"""Spec files: the kernels to build, in TOML, written by hand or by a recording; ``scanops precompile`` reads them.

    targets = ["sm_80", "sm_90"]          # for every spec that names no target
    specs = ["sum-f32-n32768"]            # short names

    [[scan]]                              # written by a recording
    spec = "last-f32-n100"
    target = "sm_90"
    count = 12                            # calls
    operator = "last"                     # only for an operator that the program registers at run time
    map = '[[["operand", ...'             # only where the short name has a digest of expressions: their text

A spec of an operator registered at run time is readable only where that operator is registered. ``load`` returns such
specs apart, under the operator's name, and never refuses the file because of them; ``import_modules`` imports the
modules that define the operators, after which ``load`` returns their specs like all others.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.operators import OPERATORS, Operator, is_built_in, operator_named, register_operator
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSpecFile, MissingRequirement, UnsupportedRequest
from scanops.files import reading, require_form, write_text, writing
from scanops.store.locks import hold_lock

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_LOCK_SECONDS = 10.0
MAX_BYTES = 2**22  # of a file: some 30,000 specs
_MAX_COUNT = 2**63 - 1
# tomllib takes minutes for long dotted keys, which spec files have none of. Strings and comments are left out of a line
# to count its dots; strings of several lines could hide them.
_OUTSIDE = re.compile(r"""'[^'\n]*(?:'|$)|"(?:[^"\\\n]|\\.)*(?:"|\\?$)|#[^\n]*""", re.MULTILINE)
_MANY_LINES = re.compile("'{3}|\"{3}")
_MAX_DOTS = 4  # of a line
_Key = tuple[str, "str | None", str]  # the short name of a spec, target, the text of expressions
_TABLE = ("spec", "target", "count", "operator", "map")
_TOP = ("scan", "specs", "targets")


# By name: what a value may be, in words and as a form
_FORMS: dict[str, tuple[str, Any]] = {
    "scan": ("tables: [[scan]], with two brackets", [dict]),
    "specs": ('short names of specs: ["sum-f32-n32768"]', [str]),
    "targets": ('names of targets: ["sm_90"]', [str]),
    "spec": ('the short name of a spec: "sum-f32-n32768"', str),
    "target": ('the name of a target: "sm_90"', str),
    "operator": ("the name of an operator", str),
    "map": ("the text of expressions, as a recording has it", str),
    "count": ("a number of 0 or more", range(2**63)),
}


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The content of a spec file."""

    path: Path
    # (spec, target) -> recorded calls, in the file's order; the target is None where the file leaves it out
    wanted: dict[tuple[ScanSpec, str | None], int] = field(default_factory=dict)
    # (short name of a spec, target, text of expressions), operator -> calls, for operators not registered here
    unknown: Counter[tuple[_Key, str]] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """The calls that the file counts, of operators that are known here and of others."""
        return sum(self.wanted.values()) + sum(self.unknown.values())

    @property
    def remark(self) -> str:
        """What a user who builds this file's specs should know, in a sentence; empty where there is nothing to say."""
        if not self.unknown:
            return ""
        operators = ", ".join(dict.fromkeys(operator for _, operator in self.unknown))
        are = "1 spec in {0} is" if len(self.unknown) == 1 else f"{len(self.unknown)} specs in {{0}} are"
        what = f"{are.format(self.path)} left out: their operators ({operators}) are registered"
        return f"{what} by the program at run time; pass --import MODULE with the module that defines them"


def load(path: Path) -> SpecFile:
    """Read a spec file. Specs of operators that are not registered here are returned apart, as ``unknown``.

    Raises BadSpecFile, which names the file and the table, and UnusableFile for a file that cannot be read.
    """
    document = _check(path, "the top level", _document(path), _TOP)
    found = SpecFile(path)
    targets = document.get("targets") or [None]
    wanted: Counter[tuple[ScanSpec, str | None]] = Counter()
    for slug in document.get("specs", []):
        wanted.update({(_parse(path, "specs", slug), target): 0 for target in targets})
    for number, table in enumerate(document.get("scan", []), 1):
        where = f"[[scan]] number {number}"
        if "spec" not in _check(path, where, table, _TABLE):
            raise _bad(path, where, "a spec", "no spec")
        slug, count, operator, text = table["spec"], table.get("count", 0), table.get("operator"), table.get("map", "")
        for each in [table["target"]] if "target" in table else targets:
            if operator is None or operator in OPERATORS:
                wanted[_parse(path, where, slug, text), each] += count
            else:
                found.unknown[(slug, each, text), operator] += count
    found.wanted.update(wanted)
    return found


def add(path: Path, counts: Mapping[KernelKey, int]) -> None:
    """Add counts to a spec file, which is created if it is absent. Processes may add to one file at the same time.

    The file does not say whether lines were few, which depends on the GPU. One that was written by hand keeps its
    meaning and loses its comments: each spec becomes a table. Raises BadSpecFile when the file is no spec file,
    UnusableFile when it cannot be written.
    """
    path = Path(os.path.realpath(path))  # one lock for a file, whatever links lead to it
    with writing(f"the spec file {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a lock, or with one that hangs, a count may be lost.
        lock = path.with_name(f".{path.name}.lock")
        with hold_lock(lock, f"write {path.name}", _LOCK_SECONDS, "writing without"):
            old = _load_or_create(path)
            found = Counter(old.wanted)
            for key, count in counts.items():
                found[key.spec, key.target] += count
            total = {(spec.slug, target, spec.map): (n, _operator(spec)) for (spec, target), n in found.items()}
            total.update({key: (count, operator) for (key, operator), count in old.unknown.items()})
            text = "".join(_text(total))
            if (size := len(text.encode())) > MAX_BYTES:
                raise _bad(path, "the text", f"at most {MAX_BYTES} bytes", f"{size} bytes", "record into another file")
            write_text(path, text, f"the spec file {path}")


def check_writable(path: Path) -> None:
    """Raise what ``add`` would raise. Creates the file's folder, as ``add`` does, and no file."""
    path = Path(os.path.realpath(path))
    with writing(f"the spec file {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    _load_or_create(path)


def import_modules(names: Iterable[str]) -> list[Operator]:
    """Import modules that define operators, and register every ``scanops.Operator`` among their names.

    A name that ends in .toml is a spec file, whose expressions are read. The current directory is searched after
    ``sys.path``. Raises MissingRequirement for a module that cannot be imported, whatever its code raises.
    """
    found: list[Operator] = []
    for name in names:
        if name.endswith(".toml"):
            load(Path(name))
            continue
        sys.path.append(str(Path.cwd()))
        try:
            module = importlib.import_module(name)
        except Exception as problem:
            raise MissingRequirement(
                f"import {name}: {type(problem).__name__}",
                allowed="a module that defines operators, importable from sys.path or the current directory",
                value=str(problem),
                hint=f"try `python -c 'import {name}'` in {Path.cwd()}",
            ) from problem
        finally:
            sys.path.pop()
        found += [register_operator(each) for each in vars(module).values() if isinstance(each, Operator)]
    return found


def _text(total: Mapping[_Key, tuple[int, str | None]]) -> Iterator[str]:
    yield "# Which kernels a program asked for: scanops precompile builds them.\n"
    for (slug, target, text), (count, operator) in sorted(
        total.items(), key=lambda item: [str(each) for each in item[0]]
    ):
        named = f"target = {_quote(target)}\n" if target is not None else ""
        of_program = f"operator = {_quote(operator)}\n" if operator is not None else ""
        of_program += f"map = {_quote(text)}\n" if text else ""
        yield f"\n[[scan]]\nspec = {_quote(slug)}\n{named}count = {min(count, _MAX_COUNT)}\n{of_program}"


def _quote(text: str) -> str:
    """Return a text as a TOML string: as it is between single quotes where it has double ones, or else escaped."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one escape in which TOML differs


def _operator(spec: ScanSpec) -> str | None:
    """Return the name of a spec's operator if the program registered it at run time."""
    return None if is_built_in(operator_named(spec.op)) else spec.op


def _load_or_create(path: Path) -> SpecFile:
    """Return the content of a file to add to; empty where there is none yet."""
    if path.exists() and not path.is_file():  # to be replaced, or waited for
        raise _bad(path, "the text", "a plain file, which is added to", "a folder, a device or a pipe")
    return load(path) if path.exists() else SpecFile(path)


def _document(path: Path) -> dict[str, Any]:
    try:
        with reading(f"the spec file {path}"), path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _bad(path, "the text", f"at most {MAX_BYTES} bytes", "more", "split it into several files")
        text = data.decode()
        if (found := _MANY_LINES.search(text)) or any(line.count(".") > _MAX_DOTS for line in _lines(text)):
            what = "a string of several lines" if found else "a key of many parts"
            raise _bad(path, "the text", "the tables, names and strings that a recording has", what)
        return tomllib.loads(text)
    except UnicodeDecodeError as problem:
        raise _bad(path, "the text", "text in UTF-8", str(problem)) from problem
    except BadSpecFile:
        raise
    except (ValueError, RecursionError) as problem:  # no TOML; a number of more digits than Python converts
        raise _bad(path, "the text", "TOML", str(problem)) from problem


def _lines(text: str) -> list[str]:
    """Return the lines of a text without their strings and comments."""
    return _OUTSIDE.sub("", text).split("\n")


def _check(path: Path, where: str, table: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return ``table`` if all its names are among ``names`` and its values have their forms."""
    for name, value in table.items():
        if name not in names:
            raise _bad(path, where, ", ".join(names), name)
        allowed, form = _FORMS[name]
        try:
            require_form(value, form, name)
        except ValueError as problem:
            raise _bad(path, f"{name} in {where}", allowed, str(problem)) from None
    return table


def _parse(path: Path, where: str, slug: str, map: str = "") -> ScanSpec:
    try:
        return ScanSpec.parse(slug, map)
    except UnsupportedRequest as problem:
        value = f"{slug:.80}: {problem.asked:.300}, {problem.value!s:.300}"
        raise _bad(path, where, problem.allowed, value, problem.hint) from problem


def _bad(path: Path, where: str, allowed: str, value: str, hint: str = "correct that place of the file") -> BadSpecFile:
    return BadSpecFile(f"to read {where} of the spec file {path}", allowed=allowed, value=value, hint=hint)
