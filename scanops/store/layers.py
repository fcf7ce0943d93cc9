"""Packs as layers below the user's store, and what is in all of them.

A pack is a folder laid out as a store is. It is searched when the store has no answer, read and never written. The same
checks of owner, mode and links hold as for the store (scanops/files.py), except that root may own the folder. Where
SCANOPS_REQUIRE_SIGNED is set, a pack must be signed, too (store/trust.py).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry, ScanopsError
from scanops.files import size_of
from scanops.store import index
from scanops.store.entry import MANIFEST, Entry, checked, read_entry
from scanops.store.packs import installed
from scanops.store.root import check_root

__all__ = ["Layer", "Place", "Row", "entries_of", "layers", "places", "rows"]

_LOG = logging.getLogger("scanops")


class Layer:
    """One pack. Raises BadStoreEntry where its root is missing or not safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not check_root(root, system=True):
            raise BadStoreEntry(
                f"use the pack {root}",
                allowed="a folder that `scanops unpack` has made, or `scanops precompile`",
                value="no such folder",
                hint="correct SCANOPS_PACKS, or unset it",
            )
        self._refused: set[str] = set()  # folders that were refused: logged once each
        self._folders: dict[str, str] | None = None  # first 16 digits of an identity -> its folder

    def __repr__(self) -> str:
        return f"Layer({str(self.root)!r})"

    def _folder(self, identity: str) -> str | None:
        if self._folders is None:  # a pack does not change, so one listing serves the process
            with os.scandir(self.root) as listing:
                self._folders = {item.name[-16:]: item.name for item in listing if item.name[-17:-16] == "-"}
        return self._folders.get(identity[:16])

    def find(self, identity: str, name: str | None = None) -> Entry | None:
        """Return the verified entry, or None. ``name`` is its folder where the caller knows it."""
        name = self._folder(identity) if name is None else name
        if name is None:
            return None
        directory = self.root / name
        found = checked(directory, identity)
        if isinstance(found, Entry):
            try:
                return self._trusted(found)
            except (BadSignature, BadStoreEntry) as untrusted:
                found = str(untrusted.value)
        self.refuse(name, f"pack entry {directory} is not used: {found}")
        return None

    def alias(self, key: str) -> tuple[str, str] | None:
        """Return (identity, folder name) that the pack's index has for ``key``, or None."""
        if environment.require_signed() is None:
            return index.read(self.root, key)
        from scanops.store import trust

        trust.keys()
        try:
            return index.read(self.root, key, trust.vouched(self.root).index)
        except (BadSignature, BadStoreEntry) as untrusted:
            self.refuse("", f"pack {self.root} is not used: {untrusted.value}")
            return None

    def refuse(self, name: str, words: str) -> None:
        """Log once why the folder ``name`` of this pack is not used."""
        if name not in self._refused:
            self._refused.add(name)
            _LOG.warning(
                "%s; `scanops store verify %s` checks all (others may write it? chmod -R go-w)", words, self.root
            )

    def _trusted(self, entry: Entry) -> Entry:
        if environment.require_signed() is None:
            return entry
        from scanops.store import trust

        return trust.signed_entry(self.root, entry.directory, entry.identity)


def layers() -> Iterator[Layer]:
    """Yield the packs of ``SCANOPS_PACKS``, in its order, then the installed ones.

    Installed packs are looked for when it is their turn: asking every distribution takes longer than the rest of a
    lookup.
    """
    chosen = environment.pack_roots()
    yield from _layers(chosen)
    yield from _layers(tuple(root for root in installed() if root not in chosen))


@functools.lru_cache(maxsize=8)
def _layers(roots: tuple[Path, ...]) -> tuple[Layer, ...]:
    return tuple(Layer(root) for root in dict.fromkeys(roots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store or a pack that lookups search."""

    kind: str  # store or pack
    root: Path
    problem: ScanopsError | None  # why it cannot be used
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel of a place, unverified."""

    place: Place
    entry: Entry
    size: int  # bytes of its files

    @property
    def slug(self) -> str:
        """Name of the spec, as the manifest states it."""
        return str(self.entry.manifest.get("name", self.entry.directory.name))

    @property
    def target(self) -> str:
        """Target of the build, as the manifest states it."""
        return str(self.entry.manifest.get("target", "?"))


def places() -> tuple[Place, ...]:
    """Return where lookups search, in this order: the user's store, SCANOPS_PACKS, the installed packs."""
    packs = dict.fromkeys((*environment.pack_roots(), *installed()))
    return (_place("store", environment.store_root()), *(_place("pack", root) for root in packs))


def rows() -> list[Row]:
    """Return every kernel of every place that can be used, in the order of lookups, then by name."""
    found = []
    for place in places():
        if place.exists and place.problem is None:
            found += [Row(place=place, entry=entry, size=size_of(entry.directory)) for entry in entries_of(place.root)]
    return found


def entries_of(root: Path) -> Iterator[Entry]:
    """Yield the entries below a root whose manifest can be read, unverified, by name."""
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
