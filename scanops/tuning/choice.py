"""Which plan counts: a measured one where there is an entry for this spec on this GPU, else the planner's own."""

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
_SAID: set[tuple[Path, str]] = set()  # entries that were refused once


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An entry that counts, and the file it is in."""

    entry: Entry
    path: Path


def tuned_plan(spec: ScanSpec, target: str, gpu: str | None = None) -> tuple[Plan, Choice | None]:
    """The plan that counts for ``spec`` on ``target``, and the entry it is from; None for the planner's own.

    ``gpu`` is the driver's name of the GPU, by default that of the current one. Raises BadTuning for a file that
    cannot be read and for an entry that no kernel of this version has.
    """
    from scanops.codegen.plan import make_plan

    choice = entry_for(spec, target, gpu)
    if choice is None:
        return make_plan(spec, planned(target)), None
    return plan_of(choice, spec), choice


def entry_for(spec: ScanSpec, target: str, gpu: str | None = None) -> Choice | None:
    """The entry for ``spec`` in the first file that has one for this target and GPU. Raises BadTuning."""
    if target == CPU:
        return None  # the emulator runs what the planner chose
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
    """The same for whoever only wants a result: an entry that makes no sense any more is told of once and left out.

    An upgrade may take plans away; programs go on with the planner's own.
    """
    choice = entry_for(spec, target)
    return choice if choice is not None and usable(choice, spec) else None


def usable(choice: Choice, spec: ScanSpec) -> bool:
    """Whether this version has the plan of an entry; that it has not is said once."""
    try:
        plan_of(choice, spec)
    except BadTuning as problem:
        said = (choice.path, choice.entry.digest)
        if said not in _SAID:
            _SAID.add(said)
            _LOG.warning("%s", problem)
        return False
    return True


def plan_of(choice: Choice, spec: ScanSpec) -> Plan:
    """The plan of an entry. Raises BadTuning when no kernel of this version has it."""
    with NO_FORK:
        from scanops.codegen.candidates import restored

    entry = choice.entry
    try:
        return restored(spec, entry.target, entry.strategy, entry.plan)
    except UnsupportedRequest as problem:
        raise BadTuning(
            f"use the measured plan for {entry.spec} on {entry.target}, {entry.gpu}, in {choice.path}",
            allowed=problem.allowed,
            value=str(problem.value),
            hint=f"measure again with `scanops tune {entry.spec}`, or delete the entry; the planner's own plan counts",
        ) from problem


def planned(target: str) -> str:
    """The architecture a target's text is written for: the emulator runs the default one's."""
    return DEFAULT_TARGET if target == CPU else target


def gpu_name(target: str) -> str:
    """The driver's name of the current GPU if ``target`` is what it runs; empty where there is none."""
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
