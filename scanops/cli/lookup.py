"""Why a lookup hits or misses: place by place, and field by field where another kernel is near."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from scanops.artifact import ABI, LINK_FLAGS, SCHEMA, BuildRequest
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.store.entry import Entry
from scanops.store.identity import request_of, sources_key
from scanops.store.layers import Place, entries_of, places, usable_entry
from scanops.store.root import read_index
from scanops.tuning import entry_for, usable

__all__ = ["look_up"]

_NEAREST = 3
Facts = dict[str, Any]


def look_up(spec: ScanSpec, target: str) -> Facts:
    """Look for the kernel of ``spec`` as ``scanops.compile`` does and return what each place has. Builds nothing.

    The result is for --json: the ``identity``; its ``key`` in the index, or None; the folder ``found``, None on
    a miss; and ``searches``, one for each place in the order of lookups.
    """
    measured = entry_for(spec, target)
    if measured is not None and not usable(measured, spec):
        measured = None
    request = request_of(spec, target, measured)
    key = sources_key(spec, target, measured)
    searches = [_search(place, spec, request, key) for place in places()]
    found = next((search["entry"] for search in searches if search["hit"]), None)
    return {"identity": request.identity, "key": key, "found": found, "searches": searches}


def _search(place: Place, spec: ScanSpec, request: BuildRequest, key: str | None) -> Facts:
    """Return whether a place has the kernel, why it is not used, and where it is absent the nearest ones."""
    facts: Facts = {"kind": place.kind, "root": str(place.root), "hit": False, "indexed": False}
    facts |= {"entry": None, "problem": None, "nearest": []}
    if place.problem is not None or not place.exists:
        words = f"{place.problem.value}; {place.problem.hint}" if place.problem else "no such folder"
        return {**facts, "problem": words}
    entry = next(place.root.glob(f"*-{request.identity[:16]}"), None)
    if entry is None:
        near = sorted((_near(each, spec, request) for each in entries_of(place.root)), key=_distance)
        return {**facts, "nearest": near[:_NEAREST]}
    indexed = bool(key and read_index(place.root, key))  # then nothing is rendered
    verdict = usable_entry(entry, request.identity)
    problem = verdict if isinstance(verdict, str) else None
    return {**facts, "hit": not problem, "indexed": indexed, "entry": str(entry), "problem": problem}


def _distance(near: Facts) -> tuple[object, ...]:
    """Return a sort key: few differences first; last the kernels of operators that this process does not know."""
    names = [each["field"] for each in near["differences"]]
    return "spec" in names, len(names), "target" in names, near["slug"], near["target"]


def _near(entry: Entry, spec: ScanSpec, request: BuildRequest) -> Facts:
    """Return the fields in which a kernel of a place differs from the requested one."""
    manifest = entry.manifest
    slug, target = str(manifest.get("name")), str(manifest.get("target"))
    pairs: list[tuple[str, object, object]] = []
    try:
        other = ScanSpec.parse(slug)
    except UnsupportedRequest:
        pairs.append(("spec", spec.slug, slug))
    else:
        pairs += [(field.name, getattr(spec, field.name), getattr(other, field.name)) for field in fields(spec)]
    pairs.append(("target", request.target, target))
    if all(asked == there for _, asked, there in pairs):  # the rest follows from these
        asked_for = {"schema": SCHEMA, "abi": ABI, "flags": list(request.flags), "link_flags": list(LINK_FLAGS)}
        pairs += [(name, asked, manifest.get(name)) for name, asked in asked_for.items()]
        pairs.append(("text", *_texts(request.source, entry)))
    differing = [
        {"field": name, "asked": str(asked), "there": str(there)} for name, asked, there in pairs if asked != there
    ]
    return {"directory": str(entry.directory), "slug": slug, "target": target, "differences": differing}


def _texts(source: str, entry: Entry) -> tuple[str, str]:
    """Return a summary of the text that is rendered now and of the text that was built; equal for equal texts."""
    try:
        other = entry.source_path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "a source", "none that can be read"
    if other == source:
        return "the same", "the same"
    lines = [line for line in difflib.unified_diff(other.splitlines(), source.splitlines(), n=0, lineterm="")][2:]
    ours = [line[1:].strip() for line in lines if line.startswith("+")]
    theirs = [line[1:].strip() for line in lines if line.startswith("-")]
    return _words(ours), _words(theirs)


def _words(lines: list[str]) -> str:
    return f"{len(lines)} lines of its own, first {lines[0]!r}" if lines else "no line of its own"
