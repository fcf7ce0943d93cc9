"""Choose the plan of a spec on a GPU: the entry of a tuning file if there is one, else the planner's plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.artifact import CPU
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import DEFAULT_TARGET, target_of_capability
from scanops.errors import BadTuning, UnsupportedRequest
from scanops.forks import NO_FORK
from scanops.tuning.files import Entry, read

if TYPE_CHECKING:
    from scanops.codegen.plan import Plan

__all__ = ["Choice", "entry_for", "gpu_name", "plan_of", "planned", "tuned_plan", "usable", "usable_entry"]

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


def usable_entry(spec: ScanSpec, target: str) -> Choice | None:
    """Return the entry for ``spec`` if its plan is valid; for one that is not, log one warning and return None.

    An upgrade may remove candidates: programs then go on with the planner's plan.
    """
    choice = entry_for(spec, target)
    return choice if choice is not None and usable(choice, spec) else None


def usable(choice: Choice, spec: ScanSpec) -> bool:
    """Whether the plan of an entry is a candidate of this version. A refusal is logged once per entry."""
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
