"""What is in the store and in the packs below it, for people to look through. Nothing here writes or loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scanops import environment
from scanops.errors import ScanopsError
from scanops.sizes import size_of
from scanops.store.entry import MANIFEST, Entry, read_entry
from scanops.store.root import check_root

__all__ = ["Place", "Row", "entries_of", "places", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a look-up goes, in the order it does."""

    kind: str  # store or pack
    root: Path
    problem: ScanopsError | None  # why it cannot be used
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel, unverified."""

    place: Place
    entry: Entry
    size: int  # bytes of its files

    @property
    def slug(self) -> str:
        return str(self.entry.manifest.get("name", self.entry.directory.name))

    @property
    def target(self) -> str:
        return str(self.entry.manifest.get("target", "?"))


def places() -> tuple[Place, ...]:
    """The user's store, then the packs of SCANOPS_PACKS, then those that are installed."""
    from scanops.store.packs import installed

    packs = dict.fromkeys((*environment.pack_roots(), *installed()))
    return (_place("store", environment.store_root()), *(_place("pack", root) for root in packs))


def rows() -> list[Row]:
    """Every kernel of every place that can be used, in the order of look-ups, then by name."""
    found = []
    for place in places():
        if place.exists and place.problem is None:
            found += [Row(place=place, entry=entry, size=size_of(entry.directory)) for entry in entries_of(place.root)]
    return found


def entries_of(root: Path) -> Iterator[Entry]:
    """The entries below a root whose manifest can be read, by name."""
    for path in sorted(root.iterdir()):
        if not path.name.startswith(".") and (path / MANIFEST).is_file():
            try:
                yield read_entry(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue


def _place(kind: str, root: Path) -> Place:
    try:
        exists = check_root(root, system=kind == "pack")
        if exists and environment.require_signed() is not None:
            _check_trust(kind, root)
        return Place(kind=kind, root=root, problem=None, exists=exists)
    except ScanopsError as problem:
        return Place(kind=kind, root=root, problem=problem, exists=True)


def _check_trust(kind: str, root: Path) -> None:
    from scanops.store import trust

    if kind == "store":
        raise trust.local(root)
    trust.vouched(root)
