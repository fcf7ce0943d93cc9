"""Why a lookup hits or misses: place by place, and field by field where another kernel is near."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

from scanops.artifact import ABI, LINK_FLAGS, SCHEMA, BuildRequest
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.store.entry import Entry
from scanops.store.identity import request_of, sources_key
from scanops.store.layers import Place, entries_of, places, usable
from scanops.store.root import read_index
from scanops.tuning.files import usable_entry

__all__ = ["Difference", "Lookup", "Near", "Search", "look_up"]

_NEAREST = 3
_BACKGROUND = ("schema", "abi", "flags", "link_flags")  # of a manifest, besides spec, target and text


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which a kernel differs from the requested one."""

    field: str  # of the spec, or target, schema, abi, flags, link_flags, text
    asked: str
    there: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A kernel of a place that is near the requested one."""

    directory: str
    slug: str
    target: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a lookup in one place."""

    kind: str  # store or pack
    root: str
    hit: bool  # whether the kernel is here and can be used
    indexed: bool = False  # whether the place's index has the kernel, so that nothing is rendered
    entry: str | None = None  # the folder of the kernel, whether or not it can be used
    problem: str | None = None  # why the kernel, or the place, is not used
    nearest: tuple[Near, ...] = ()  # where there is no such kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The result of a lookup: each place, in the order in which they are searched."""

    identity: str
    key: str | None  # in the index: slug, target and a fingerprint of the version of scanops; None without one
    found: str | None  # the folder of the kernel that is used; None on a miss
    searches: tuple[Search, ...]


def look_up(spec: ScanSpec, target: str) -> Lookup:
    """Look for the kernel of ``spec`` as ``scanops.compile`` does and return what each place has. Builds nothing."""
    measured = usable_entry(spec, target)
    request = request_of(spec, target, measured)
    key = sources_key(spec, target, measured)
    searches = tuple(_search(place, spec, request, key) for place in places())
    found = next((search.entry for search in searches if search.hit), None)
    return Lookup(identity=request.identity, key=key, found=found, searches=searches)


def _search(place: Place, spec: ScanSpec, request: BuildRequest, key: str | None) -> Search:
    identity, root = request.identity, str(place.root)
    if place.problem is not None or not place.exists:
        words = f"{place.problem.value}; {place.problem.hint}" if place.problem else "no such folder"
        return Search(kind=place.kind, root=root, hit=False, problem=words)
    entry = next(place.root.glob(f"*-{identity[:16]}"), None)
    if entry is not None:
        found = bool(key and read_index(place.root, key))
        verdict = usable(entry, identity)
        problem = verdict if isinstance(verdict, str) else None
        return Search(kind=place.kind, root=root, hit=not problem, indexed=found, entry=str(entry), problem=problem)
    near = sorted((_near(each, spec, request) for each in entries_of(place.root)), key=_distance)
    return Search(kind=place.kind, root=root, hit=False, nearest=tuple(near[:_NEAREST]))


def _distance(near: Near) -> tuple[object, ...]:
    """Return a sort key: few differences first; last the kernels of operators that this process does not know."""
    names = [each.field for each in near.differences]
    return "spec" in names, len(names), "target" in names, near.slug, near.target


def _near(entry: Entry, spec: ScanSpec, request: BuildRequest) -> Near:
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
        pairs += [(name, asked_for[name], manifest.get(name)) for name in _BACKGROUND]
        pairs.append(("text", *_texts(request.source, entry)))
    differing = tuple(
        Difference(field=name, asked=str(asked), there=str(there)) for name, asked, there in pairs if asked != there
    )
    return Near(directory=str(entry.directory), slug=slug, target=target, differences=differing)


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
