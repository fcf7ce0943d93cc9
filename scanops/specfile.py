"""Spec files: the kernels to build, in TOML, written by hand or by a recording; ``scanops precompile`` reads them.

targets = ["sm_80", "sm_90"]          # for every spec that names no target
specs = ["sum-f32-n32768"]            # short names

[[scan]]                              # written by a recording
spec = "last-f32-n100"
target = "sm_90"
count = 12                            # calls
map = '[[["operand", ...'             # only where the short name has a digest of expressions: their text
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSpecFile, UnsupportedRequest
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
_TABLE = ("spec", "target", "count", "map")
_TOP = ("scan", "specs", "targets")


# By name: what a value may be, in words and as a form
_FORMS: dict[str, tuple[str, Any]] = {
    "scan": ("tables: [[scan]], with two brackets", [dict]),
    "specs": ('short names of specs: ["sum-f32-n32768"]', [str]),
    "targets": ('names of targets: ["sm_90"]', [str]),
    "spec": ('the short name of a spec: "sum-f32-n32768"', str),
    "target": ('the name of a target: "sm_90"', str),
    "map": ("the text of expressions, as a recording has it", str),
    "count": ("a number of 0 or more", range(2**63)),
}


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The content of a spec file."""

    path: Path
    # (spec, target) -> recorded calls, in the file's order; the target is None where the file leaves it out
    wanted: dict[tuple[ScanSpec, str | None], int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """The calls that the file counts."""
        return sum(self.wanted.values())


def load(path: Path) -> SpecFile:
    """Read a spec file. Its texts of expressions are known from here on, by the short names that stand for them.

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
        spec = _parse(path, where, table["spec"], table.get("map", ""))
        for each in [table["target"]] if "target" in table else targets:
            wanted[spec, each] += table.get("count", 0)
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
            text = "".join(_text({(spec.slug, target, spec.map): n for (spec, target), n in found.items()}))
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


def _text(total: Mapping[_Key, int]) -> Iterator[str]:
    yield "# Which kernels a program asked for: scanops precompile builds them.\n"
    for (slug, target, text), count in sorted(total.items(), key=lambda item: [str(each) for each in item[0]]):
        named = f"target = {_quote(target)}\n" if target is not None else ""
        expressions = f"map = {_quote(text)}\n" if text else ""
        yield f"\n[[scan]]\nspec = {_quote(slug)}\n{named}count = {min(count, _MAX_COUNT)}\n{expressions}"


def _quote(text: str) -> str:
    """Return a text as a TOML string: as it is between single quotes where it has double ones, or else escaped."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one escape in which TOML differs


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
