"""Tuning files: JSON with one measured plan for each spec, target and GPU.

    {"schema": 1, "entries": [{"target": "sm_90", "gpu": "NVIDIA H200", "spec": "sum-f32-n1000", "strategy": "block",
                               "plan": {"threads": 128, ...}, "measured": {"lines": 268435, ...}}]}

An entry names a plan by its numbers and holds no code, so files can be shared, shipped and merged. This module checks
the document; ``plan_of`` checks each plan before it is used.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops import environment
from scanops.artifact import CPU
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET, target_of_capability
from scanops.errors import BadTuning, UnsupportedRequest, shown
from scanops.files import replaced, writing
from scanops.processes import NO_FORK

if TYPE_CHECKING:
    from scanops.codegen.plan import Plan

SCHEMA = 1
MAX_BYTES = 2**24  # of a file: some 40,000 entries
GREATEST = 1e18  # a measured number; a time or count beyond it is a mistake, and may overflow
Key = tuple[str, str, str]  # target, GPU, spec
_KINDS: dict[str, type] = {"target": str, "gpu": str, "spec": str, "strategy": str, "plan": dict, "measured": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement behind an entry: median times of the planner's plan and of the tuned one."""

    lines: int  # scanned lines
    default_us: float  # median microseconds of the planner's plan
    tuned_us: float  # median microseconds of the tuned plan, interleaved with the planner's
    rounds: int  # runs of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plan that was measured to be faster than the planner's."""

    target: str  # "sm_90"
    gpu: str  # the driver's name of it
    spec: str  # its slug
    strategy: str
    plan: dict[str, object]  # the plan's numbers by name
    measured: Measured

    @property
    def key(self) -> Key:
        """Target, GPU and spec of the entry; a file has at most one entry for each key."""
        return self.target, self.gpu, self.spec

    @property
    def gain(self) -> float:
        """The speedup over the planner's plan that was measured."""
        return self.measured.default_us / self.measured.tuned_us

    @property
    def digest(self) -> str:
        """The plan as text: entries with equal digests give the same kernel."""
        return json.dumps([self.strategy, self.plan], sort_keys=True)


def read(path: Path) -> dict[Key, Entry]:
    """Return the entries of a file by key; none if the file does not exist.

    Raises BadTuning for a file that cannot be read or is not a tuning file.
    """
    if str(path) == os.devnull:
        return {}
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):  # opening a FIFO would wait for a writer
            raise _bad(path, "a regular file", "a folder, a pipe or a device")
        if facts.st_size > MAX_BYTES:
            raise _bad(path, f"at most {MAX_BYTES} bytes", f"{facts.st_size} bytes")
        return _read(path, facts.st_mtime_ns, facts.st_size)
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise _bad(path, "a file this user can read", problem.strerror or str(problem)) from problem


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Replace a file atomically. Raises UnusableFile if it cannot be written."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    text = json.dumps({"schema": SCHEMA, "entries": [asdict(entry) for entry in ordered]}, indent=1) + "\n"
    with writing(f"measured plans to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as draft:
            draft.write_text(text, encoding="utf-8")


def merged(paths: Iterable[Path]) -> list[Entry]:
    """Return the entries of several files; of entries with one key, that with the larger speed-up.

    Raises BadTuning for a file that is missing, cannot be read or is not a tuning file.
    """
    best: dict[Key, Entry] = {}
    for path in paths:
        if not path.exists():
            raise _bad(path, "a file that exists", "there is no such file")
        for key, entry in read(path).items():
            if key not in best or entry.gain > best[key].gain:
                best[key] = entry
    return list(best.values())


@functools.lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int) -> dict[Key, Entry]:
    del mtime_ns, size  # part of the cache key, so that a modified file is read again
    with path.open("rb") as file:
        data = file.read(MAX_BYTES)  # a file that grows meanwhile is no valid JSON
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise _bad(path, "one JSON document", str(problem) or type(problem).__name__) from problem
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list) or "schema" not in document:
        raise _bad(path, '{"schema": ..., "entries": [...]}', "another kind of document")
    if document["schema"] != SCHEMA:
        raise _bad(path, f"schema {SCHEMA}", f"schema {shown(document['schema'])}")
    found: dict[Key, Entry] = {}
    for place, row in enumerate(document["entries"]):
        entry = _entry(path, place, row)
        if entry.key in found:
            raise _bad(path, "one entry for each spec, target and GPU", f"entry {place}: {' '.join(entry.key)} again")
        found[entry.key] = entry
    return found


def _entry(path: Path, place: int, row: object) -> Entry:
    where = f"entry {place}"
    if not isinstance(row, dict):
        raise _bad(path, "objects as entries", f"{where}: {shown(row)}")
    where = f"{where} ({row.get('spec', 'no spec')})"
    if row.keys() != _KINDS.keys():
        wrong = ", ".join(sorted(map(str, row.keys() ^ _KINDS.keys())))
        raise _bad(path, f"entries of {', '.join(_KINDS)}", f"{where}: {wrong} unknown or left out")
    for name, kind in _KINDS.items():
        if not isinstance(row[name], kind):
            raise _bad(path, f"{name} as {kind.__name__}", f"{where}: {shown(row[name])}")
    measured: dict[str, Any] = row["measured"]
    names = {field.name for field in fields(Measured)}
    sound = measured.keys() == names and all(_is_number(value) and 0 < value < GREATEST for value in measured.values())
    if not sound:
        raise _bad(path, f"positive {', '.join(sorted(names))} under measured", f"{where}: {shown(measured)}")
    return Entry(**{**row, "measured": Measured(**measured)})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad(path: Path, allowed: str, value: str) -> BadTuning:
    return BadTuning(
        f"cannot use the tuning file {path}",
        allowed=allowed,
        value=value,
        hint="repair or delete the file, or remove it from SCANOPS_TUNING; scanops tune writes a new one",
    )


_LOG = logging.getLogger("scanops")
_WARNED: set[tuple[Path, str]] = set()  # (file, digest) of entries whose refusal has been logged


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The entry that applies to a spec, and the file it is from."""

    entry: Entry
    path: Path


def tuned_plan(spec: ScanSpec, target: str, gpu: str | None = None) -> tuple[Plan, Choice | None]:
    """Return the plan for ``spec`` on ``target``, and the entry it is from; None for the planner's plan.

    ``gpu`` is the driver's name of the GPU, by default the current one. Raises BadTuning for a file that cannot be
    read and for an entry whose plan is not a candidate of this version.
    """
    from scanops.codegen.plan import make_plan

    choice = entry_for(spec, target, gpu)
    if choice is None:
        return make_plan(spec, planned(target)), None
    return plan_of(choice, spec), choice


def entry_for(spec: ScanSpec, target: str, gpu: str | None = None) -> Choice | None:
    """Return the entry for ``spec`` from the first tuning file that has one for this target and GPU.

    Its plan is not checked: see ``usable`` and ``plan_of``. Raises BadTuning for a file that cannot be read.
    """
    if target == CPU:
        return None  # the emulator runs the planner's plan
    for path in environment.tuning_files():
        found = read(path)
        if not any(key[0] == target and key[2] == spec.slug for key in found):
            continue
        gpu = gpu_name(target) if gpu is None else gpu
        entry = found.get((target, gpu, spec.slug))
        if entry is not None:
            return Choice(entry=entry, path=path)
    return None


def usable(choice: Choice, spec: ScanSpec) -> bool:
    """Whether the plan of an entry is a candidate of this version. A refusal is logged once per entry.

    An upgrade may remove candidates: programs then go on with the planner's plan.
    """
    try:
        plan_of(choice, spec)
    except BadTuning as problem:
        said = (choice.path, choice.entry.digest)
        if said not in _WARNED:
            _WARNED.add(said)
            _LOG.warning("%s", problem)
        return False
    return True


def plan_of(choice: Choice, spec: ScanSpec) -> Plan:
    """Return the plan of an entry, checked. Raises BadTuning if it is not a candidate of this version."""
    with NO_FORK:
        from scanops.codegen.candidates import restored

    entry = choice.entry
    try:
        return restored(spec, entry.target, entry.strategy, entry.plan)
    except UnsupportedRequest as problem:
        raise BadTuning(
            f"invalid plan for {entry.spec} on {entry.target}, {entry.gpu}, in {choice.path}",
            allowed=problem.allowed,
            value=str(problem.value),
            hint=f"measure again with `scanops tune {entry.spec}`, or delete the entry; the planner's plan is used",
        ) from problem


def planned(target: str) -> str:
    """The architecture whose plan a target uses: the emulator uses that of the default architecture."""
    return DEFAULT_TARGET if target == CPU else target


def gpu_name(target: str) -> str:
    """The driver's name of the current GPU if it is of architecture ``target``; else an empty string."""
    try:
        import torch
    except ModuleNotFoundError:
        return ""
    if not torch.cuda.is_available():
        return ""
    try:
        fits = target_of_capability(torch.cuda.get_device_capability()) == target
    except UnsupportedRequest:
        return ""
    return str(torch.cuda.get_device_name()) if fits else ""
