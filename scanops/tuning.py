"""Tuning files: JSON with one measured plan for each spec and target.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.codegen.former_names import translate_plan
from scanops.codegen.kernel_key import KernelKey
from scanops.errors import BadTuning, UnsupportedRequest
from scanops.files import parse_object, read_file, require_form, write_text, writing
from scanops.forks import import_late

if TYPE_CHECKING:
    from scanops.codegen.planner import Plan

SCHEMA = 1
MAX_BYTES = 2**24  # of a file: some 40,000 entries
GREATEST = 1e18  # a measured number; a time or count beyond it is a mistake, and may overflow
EntryKey = tuple[str, str, bool]  # target, spec, whether lines are few
_FORM = {
    **dict.fromkeys(("target", "gpu", "spec", "kind", "strategy"), str),
    "plan": dict,
    "measured": dict,
    "few": bool,
}  # of an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement behind an entry: median times of the planner's plan and of the tuned one."""

    lines: int  # scanned lines
    default_us: float  # median microseconds of the planner's plan
    tuned_us: float  # median microseconds of the tuned plan, interleaved with the planner's
    rounds: int  # runs of each

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < GREATEST:
                raise ValueError(f"{name} is {value!r:.80}, which is no positive number")

    @property
    def gain(self) -> float:
        """The speedup over the planner's plan: 1.05 is five percent more items per second."""
        return self.default_us / self.tuned_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningEntry:
    """A plan that was measured to be faster than the planner's."""

    target: str  # "sm_90"
    gpu: str  # the driver's name of the one that was measured
    spec: str  # its slug
    few: bool = False  # measured on few lines
    kind: str = ""  # the planner's class of the spec, by which its own table is looked up
    strategy: str
    plan: dict[str, object]  # the plan's numbers by name
    measured: Measured

    @classmethod
    def of(cls, plan: Plan, gpu: str, measured: Measured) -> TuningEntry:
        """Return the entry of a plan."""
        return cls(
            target=plan.target.name,
            gpu=gpu,
            spec=plan.spec.slug,
            few=plan.key.is_few,
            kind=import_late("scanops.codegen.planner").class_of(plan.key),
            strategy=plan.strategy,
            plan=plan.numbers(),
            measured=measured,
        )

    @property
    def key(self) -> EntryKey:
        """Target, spec and situation of the entry; a file has at most one entry for each key."""
        return self.target, self.spec, self.few

    @property
    def digest(self) -> str:
        """The plan as text: entries with equal digests give the same kernel."""
        return json.dumps([self.strategy, self.plan], sort_keys=True)


def read(path: Path) -> dict[EntryKey, TuningEntry]:
    """Return the entries of a file by key; none if the file does not exist.

    Raises BadTuning for a file that cannot be read or is not a tuning file.
    """
    try:
        if str(path) == os.devnull or not path.exists():
            return {}
        return _parse(path, read_file(os.path.realpath(path), MAX_BYTES, trusted=False))
    except OSError as problem:
        raise _bad(path, "a file that this user can read", problem.strerror or str(problem)) from problem


def write(path: Path, entries: Iterable[TuningEntry]) -> None:
    """Replace a file atomically. Raises UnusableFile if it cannot be written."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    text = json.dumps({"schema": SCHEMA, "entries": [asdict(entry) for entry in ordered]}, indent=1) + "\n"
    with writing(f"measured plans to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text, f"measured plans to {path}")


@functools.lru_cache(maxsize=8)
def _parse(path: Path, data: bytes) -> dict[EntryKey, TuningEntry]:
    """Return the entries of a file that holds ``data``. Raises BadTuning, which names the entry, for any other."""
    where, found = "the file", dict[EntryKey, TuningEntry]()
    try:
        document = parse_object(data)
        require_form(document, {"schema": int, "entries": [dict]}, where)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']} instead of {SCHEMA}")
        for number, row in enumerate(document["entries"]):
            where = f"entry {number}"
            require_form(row := {"few": False, "kind": "", **row}, _FORM, where)
            row = translate_plan(row)
            entry = TuningEntry(**{**row, "measured": Measured(**row["measured"])})
            if found.setdefault(entry.key, entry) is not entry:
                raise ValueError(f"{' '.join(map(str, entry.key))} again")
    except (ValueError, TypeError) as problem:
        raise _bad(path, "entries as `scanops tune` writes them", f"{where}: {problem}") from problem
    return found


def _bad(path: Path, allowed: str, value: str) -> BadTuning:
    return BadTuning(
        f"cannot use the tuning file {path}",
        allowed=allowed,
        value=value,
        hint="repair or delete the file, or remove it from SCANOPS_TUNING; scanops tune writes a new one",
    )


_LOG = logging.getLogger("scanops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The entry that applies to a spec, and the file it is from."""

    entry: TuningEntry
    path: Path


def entry_for(key: KernelKey) -> Choice | None:
    """Return the entry for a kernel from the first tuning file that has one.

    Its plan is not checked: see ``usable`` and ``plan_of``. Raises BadTuning for a file that cannot be read.
    """
    for path in environment.tuning_files():
        found = read(path)
        entry = found.get((key.target, key.spec.slug, key.is_few)) if found else None
        if entry is not None:
            return Choice(entry=entry, path=path)
    return None


def usable(choice: Choice, key: KernelKey) -> bool:
    """Whether the plan of an entry is a candidate of this version. A refusal is logged once per entry.

    An upgrade may remove candidates: programs then go on with the planner's plan.
    """
    try:
        plan_of(choice, key)
    except BadTuning as problem:
        _warn(choice.path, choice.entry.digest, str(problem))
        return False
    return True


@functools.cache
def _warn(path: Path, digest: str, words: str) -> None:
    _LOG.warning("%s", words)  # once for each entry


def plan_of(choice: Choice, key: KernelKey) -> Plan:
    """Return the plan of an entry, checked. Raises BadTuning if it is not a candidate of this version."""
    entry, candidates = choice.entry, import_late("scanops.codegen.candidates")
    try:
        plan: Plan = candidates.restore_plan(key, entry.strategy, entry.plan)
        return plan
    except UnsupportedRequest as problem:
        raise BadTuning(
            f"invalid plan for {entry.spec} on {entry.target}, {entry.gpu}, in {choice.path}",
            allowed=problem.allowed,
            value=str(problem.value),
            hint=f"measure again with `scanops tune {entry.spec}`, or delete the entry; the planner's plan is used",
        ) from problem
