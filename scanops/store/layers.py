"""Packs as layers below the user's store: searched when the store has no answer, read and never written.

A pack is a folder laid out as the store is. What lies in it is loaded into the process, so root and entries may be
written by their owner only, who is this user or the administrator, and nothing in them may be a symbolic link. Where
SCANOPS_REQUIRE_SIGNED is set, a pack must be signed, too (store/trust.py).
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry
from scanops.store import index
from scanops.store.entry import FILES, MANIFEST, Entry, checked
from scanops.store.packs import installed
from scanops.store.root import check_root

__all__ = ["Layer", "layers"]

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
        self._refused: set[str] = set()  # said once
        self._folders: dict[str, str] | None = None  # the start of an identity -> its folder

    def __repr__(self) -> str:
        return f"Layer({str(self.root)!r})"

    def _folder(self, identity: str) -> str | None:
        if self._folders is None:  # a pack does not change, so one listing serves the process
            with os.scandir(self.root) as listing:
                self._folders = {item.name[-16:]: item.name for item in listing if item.name[-17:-16] == "-"}
        return self._folders.get(identity[:16])

    def find(self, identity: str, name: str | None = None) -> Entry | None:
        """The verified entry, or None. ``name`` is its folder where the caller knows it."""
        name = self._folder(identity) if name is None else name
        if name is None:
            return None
        directory = self.root / name
        found: Entry | str = unsafe(directory) or checked(directory, identity)
        if isinstance(found, Entry):
            try:
                return self._trusted(found)
            except (BadSignature, BadStoreEntry) as untrusted:
                found = str(untrusted.value)
        self._refuse(name, f"pack entry {directory} is not used: {found}")
        return None

    def alias(self, key: str) -> tuple[str, str] | None:
        """(identity, folder name) that the pack's index has for ``key``."""
        if environment.require_signed() is None:
            return index.read(self.root, key)
        from scanops.store import trust

        trust.keys()
        try:
            return index.read(self.root, key, trust.vouched(self.root).index)
        except (BadSignature, BadStoreEntry) as untrusted:
            self._refuse("", f"pack {self.root} is not used: {untrusted.value}")
            return None

    def _trusted(self, entry: Entry) -> Entry:
        if environment.require_signed() is None:
            return entry
        from scanops.store import trust

        return trust.signed_entry(self.root, entry.directory, entry.identity)

    def _refuse(self, name: str, words: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            _LOG.warning("%s; `scanops verify %s` checks all", words, self.root)


def layers() -> Iterator[Layer]:
    """The packs of ``SCANOPS_PACKS``, in its order, then the installed ones.

    Those are looked for when it is their turn: to ask every distribution takes longer than all else a look-up does.
    """
    chosen = environment.pack_roots()
    yield from _layers(chosen)
    yield from _layers(tuple(root for root in installed() if root not in chosen))


@functools.lru_cache(maxsize=8)
def _layers(roots: tuple[Path, ...]) -> tuple[Layer, ...]:
    return tuple(Layer(root) for root in dict.fromkeys(roots))


def unsafe(directory: Path) -> str | None:
    """Why others could change what is in an entry; None when its owner alone can."""
    for path in (directory, *(directory / name for name in (*FILES, MANIFEST))):
        try:
            facts = path.lstat()
        except OSError as problem:
            return f"{path.name}: {problem.strerror}"
        expected = stat.S_ISDIR if path is directory else stat.S_ISREG
        if stat.S_ISLNK(facts.st_mode):
            return f"{path.name} is a symbolic link"
        if not expected(facts.st_mode):
            return f"{path.name} is neither a file nor a folder where it should be"
        if facts.st_uid not in (os.geteuid(), 0):
            return f"{path.name} is owned by uid {facts.st_uid}"
        if facts.st_mode & 0o022:
            return f"others may write {path.name} (mode {stat.S_IMODE(facts.st_mode):04o}); chmod -R go-w {directory}"
    return None
