"""Spec files: which kernels to build, in TOML, written by hand or by a recording.

targets = ["sm_80", "sm_90"]          # for whatever names none
specs = ["sum-f32-n32768"]            # short names

[[scan]]                              # the fields of a spec; a list stands for each of its values
op = "sum"
dtype = ["float32", "bfloat16"]
length = [64, 128, 4096, "any"]       # "any": the kernel that takes the length as an argument

[[scan]]                              # what a recording writes
spec = "prod-f32-n100"
target = "sm_90"
count = 12
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSpecFile, UnsupportedRequest
from scanops.files import reading, replaced, writing
from scanops.store.lock import locked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ANY", "add", "check_writable", "read"]

ANY = "any"  # TOML has no None
_FIELDS = tuple(field.name for field in fields(ScanSpec))
_RECORDED = ("spec", "target", "count")
_TOP = ("scan", "specs", "targets")
_LOCK_SECONDS = 10.0


def read(path: Path) -> dict[tuple[ScanSpec, str | None], int]:
    """(spec, target): count of each kernel, in the file's order; the target is None where the file names none.

    Raises BadSpecFile, which names the file and the table, and UnusableFile for a file that cannot be read.
    """
    document = _document(path)
    _check_names(path, "the top level", document, _TOP)
    targets = _strings(path, "targets", document.get("targets", [])) or [None]
    found: Counter[tuple[ScanSpec, str | None]] = Counter()
    for slug in _strings(path, "specs", document.get("specs", [])):
        found.update({(_parsed(path, "specs", slug), target): 0 for target in targets})
    tables = document.get("scan", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _bad(path, "scan", "tables", repr(tables), "write [[scan]], with two brackets")
    for number, table in enumerate(tables, 1):
        where = f"[[scan]] number {number}"
        if "spec" in table:
            spec, target, count = _recorded(path, where, table)
            found.update({(spec, each): count for each in ([target] if target else targets)})
        else:
            found.update({(spec, each): 0 for spec in _expanded(path, where, table) for each in targets})
    return dict(found)


def add(path: Path, counts: Mapping[tuple[ScanSpec, str], int]) -> None:
    """Add these counts to a file, which is made if it is not there. Processes may do so at the same time.

    A file that was written by hand keeps its meaning and loses its comments: each spec becomes a table.

    Raises BadSpecFile when the file holds something else, UnusableFile where it cannot be written.
    """
    path = Path(os.path.realpath(path))  # one lock for a file, whatever links lead to it
    with writing(f"the spec file {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Where there is no lock, or one that hangs, a count may be lost.
        lock = path.with_name(f".{path.name}.lock")
        with locked(lock, f"write {path.name}", _LOCK_SECONDS, "writing without"):
            total = Counter(_written(path))
            for key, count in counts.items():
                total[key] += count
            with replaced(path) as draft:
                draft.write_text("".join(_tables(total)), encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raises what ``add`` would raise. Makes the file's folder, as ``add`` does, and no file."""
    path = Path(os.path.realpath(path))
    with writing(f"the spec file {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    _written(path)


def _tables(total: Mapping[tuple[ScanSpec, str | None], int]) -> Iterator[str]:
    yield "# Which kernels a program asked for: scanops precompile builds them.\n"
    for (spec, target), count in sorted(total.items(), key=lambda item: (item[0][0].slug, item[0][1] or "")):
        named = f'target = "{target}"\n' if target else ""
        yield f'\n[[scan]]\nspec = "{spec.slug}"\n{named}count = {count}\n'


def _written(path: Path) -> dict[tuple[ScanSpec, str | None], int]:
    """What a file to add to holds; nothing where there is none yet."""
    if path.exists() and not path.is_file():  # to be replaced, or waited for
        raise _bad(
            path, "the text", "a plain file, which is added to", "a folder, a device or a pipe", "name another file"
        )
    return read(path) if path.exists() else {}


def _document(path: Path) -> dict[str, Any]:
    try:
        with reading(f"the spec file {path}"):
            return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as problem:
        raise _bad(path, "the text", "text in UTF-8", str(problem), "name another file") from problem
    except tomllib.TOMLDecodeError as problem:
        raise _bad(path, "the text", "TOML", str(problem), "correct that place") from problem


def _recorded(path: Path, where: str, table: dict[str, Any]) -> tuple[ScanSpec, str | None, int]:
    _check_names(path, where, table, _RECORDED)
    target, count = table.get("target"), table.get("count", 0)
    if target is not None and not isinstance(target, str):
        raise _bad(path, where, "a target such as sm_90", f"target = {target!r}", "write a name, or leave it out")
    if type(count) is not int or count < 0:
        raise _bad(path, where, "a count of 0 or more", f"count = {count!r}", "leave count out")
    return _parsed(path, where, table["spec"]), target, count


def _expanded(path: Path, where: str, table: dict[str, Any]) -> Iterator[ScanSpec]:
    _check_names(path, where, table, _FIELDS)
    for name in ("op", "dtype", "length"):
        if name not in table:
            raise _bad(path, where, "op, dtype and length, or spec", f"no {name}", f"add a line {name} = ...")
    values = [value if isinstance(value, list) else [value] for value in table.values()]
    for chosen in itertools.product(*values):
        named: dict[str, Any] = dict(zip(table, chosen, strict=True))
        if named["length"] == ANY:
            named["length"] = None
        try:
            yield ScanSpec(**named)
        except (UnsupportedRequest, TypeError, AttributeError) as problem:
            raise _refused(path, where, named, problem) from problem


def _parsed(path: Path, where: str, slug: object) -> ScanSpec:
    if not isinstance(slug, str):
        raise _bad(path, where, "the short name of a spec", repr(slug), 'write it as "sum-f32-n32768"')
    try:
        return ScanSpec.parse(slug)
    except UnsupportedRequest as problem:
        raise _refused(path, where, slug, problem) from problem


def _refused(path: Path, where: str, what: object, problem: Exception) -> BadSpecFile:
    if isinstance(problem, UnsupportedRequest):
        return _bad(path, where, problem.allowed, f"{what}: {problem.asked}, {problem.value}", problem.hint)
    return _bad(path, where, "the values that ScanSpec takes", f"{what}: {problem}", "correct the values of that table")


def _strings(path: Path, name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _bad(path, name, "a list of words", f"{name} = {value!r}", f'write {name} = ["..."]')
    return value


def _check_names(path: Path, where: str, table: Mapping[str, object], allowed: tuple[str, ...]) -> None:
    unknown = [name for name in table if name not in allowed]
    if unknown:
        raise _bad(path, where, ", ".join(allowed), ", ".join(unknown), "correct the spelling, or leave it out")


def _bad(path: Path, where: str, allowed: str, value: str, hint: str) -> BadSpecFile:
    return BadSpecFile(f"to read {where} of the spec file {path}", allowed=allowed, value=value, hint=hint)
