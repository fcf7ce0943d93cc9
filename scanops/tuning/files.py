"""Files of measured plans: plain JSON, one entry for each spec, architecture and GPU.

    {"schema": 1, "entries": [{"target": "sm_90", "gpu": "NVIDIA H200", "spec": "sum-f32-n1000", "strategy": "block",
                               "plan": {"threads": 128, ...}, "measured": {"lines": 268435, ...}}]}

Entries name a plan's numbers and hold no code: a file can be shared, shipped and merged, and what no kernel of this
version has is refused where it is used.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from scanops.errors import BadTuning
from scanops.files import replaced, writing

__all__ = ["SCHEMA", "Entry", "Measured", "merged", "read", "write"]

SCHEMA = 1
Key = tuple[str, str, str]
_KINDS: dict[str, type] = {"target": str, "gpu": str, "spec": str, "strategy": str, "plan": dict, "measured": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an entry rests on."""

    lines: int  # of the tensor that was scanned
    default_us: float  # microseconds of the planner's own plan, median
    tuned_us: float  # of this one, taken in turns with it
    rounds: int  # runs of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plan that was measured to be better than the planner's own."""

    target: str  # "sm_90"
    gpu: str  # as the driver names it
    spec: str  # slug
    strategy: str
    plan: dict[str, object]  # the strategy's numbers by name
    measured: Measured

    @property
    def key(self) -> Key:
        """What an entry is for; a file has one of each."""
        return self.target, self.gpu, self.spec

    @property
    def digest(self) -> str:
        """The plan as text: two entries with the same one give the same kernel."""
        return json.dumps([self.strategy, self.plan], sort_keys=True)


def read(path: Path) -> dict[Key, Entry]:
    """The entries of a file by what they are for; none when it does not exist. Raises BadTuning for a bad one."""
    try:
        facts = path.stat()
        return _read(path, facts.st_mtime_ns, facts.st_size)
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise _bad(path, "a file this user can read", problem.strerror or str(problem)) from problem


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Replace a file, in one step. Raises UnusableFile where it cannot be written."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    text = json.dumps({"schema": SCHEMA, "entries": [asdict(entry) for entry in ordered]}, indent=1) + "\n"
    with writing(f"measured plans to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as draft:
            draft.write_text(text, encoding="utf-8")


def merged(paths: Iterable[Path]) -> list[Entry]:
    """The entries of several files; where two are for the same, the one that gained more. Raises BadTuning."""
    best: dict[Key, Entry] = {}
    for path in paths:
        if not path.exists():
            raise _bad(path, "a file that exists", "none of that name")
        for key, entry in read(path).items():
            if key not in best or _gain(entry) > _gain(best[key]):
                best[key] = entry
    return list(best.values())


def _gain(entry: Entry) -> float:
    return entry.measured.default_us / entry.measured.tuned_us


@functools.lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int) -> dict[Key, Entry]:
    del mtime_ns, size  # so that a file that changed is read again
    data = path.read_bytes()
    if str(path) == os.devnull:
        return {}
    try:
        document = json.loads(data)
    except ValueError as problem:
        raise _bad(path, "one JSON document", f"{problem}") from problem
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list) or "schema" not in document:
        raise _bad(path, '{"schema": ..., "entries": [...]}', "another kind of document")
    if document["schema"] != SCHEMA:
        raise _bad(path, f"schema {SCHEMA}", f"schema {document['schema']!r}")
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
        raise _bad(path, "objects as entries", f"{where}: {row!r}")
    where = f"{where} ({row.get('spec', 'no spec')})"
    if row.keys() != _KINDS.keys():
        wrong = ", ".join(sorted(map(str, row.keys() ^ _KINDS.keys())))
        raise _bad(path, f"entries of {', '.join(_KINDS)}", f"{where}: {wrong} unknown or left out")
    for name, kind in _KINDS.items():
        if not isinstance(row[name], kind):
            raise _bad(path, f"{name} as {kind.__name__}", f"{where}: {row[name]!r}")
    measured: dict[str, Any] = row["measured"]
    names = {field.name for field in fields(Measured)}
    sound = measured.keys() == names and all(_is_number(value) and value > 0 for value in measured.values())
    if not sound:
        raise _bad(path, f"positive {', '.join(sorted(names))} under measured", f"{where}: {measured!r}")
    return Entry(**{**row, "measured": Measured(**measured)})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad(path: Path, allowed: str, value: str) -> BadTuning:
    return BadTuning(
        f"use the measured plans in {path}",
        allowed=allowed,
        value=value,
        hint="repair or delete the file, or leave it out of SCANOPS_TUNING; scanops tune makes a new one",
    )
