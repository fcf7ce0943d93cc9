"""Packs as layers below the user's store: searched when the store has no answer, read and never written.

A pack is a folder laid out as the store is. What lies in it is loaded into the process, so root and entries may be
written by their owner only, who is this user or the administrator, and nothing in them may be a symbolic link.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from pathlib import Path

from scanops import environment
from scanops.errors import BadStoreEntry
from scanops.storage import index
from scanops.storage.entry import FILES, MANIFEST, Entry, entry_problem, read_entry
from scanops.storage.root import check_root

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

    def __repr__(self) -> str:
        return f"Layer({str(self.root)!r})"

    @functools.cached_property
    def _folders(self) -> dict[str, str]:
        # A pack does not change, so one listing serves the process.
        with os.scandir(self.root) as listing:
            return {item.name[-16:]: item.name for item in listing if item.name[-17:-16] == "-"}

    def find(self, identity: str, name: str | None = None) -> Entry | None:
        """The verified entry, or None. ``name`` is its folder where the caller knows it."""
        name = self._folders.get(identity[:16]) if name is None else name
        if name is None:
            return None
        directory = self.root / name
        problem = unsafe(directory) or entry_problem(directory, identity)
        if problem is None:
            return read_entry(directory)
        if name not in self._refused:
            self._refused.add(name)
            _LOG.warning("pack entry %s is not used: %s; `scanops verify %s` checks all", directory, problem, self.root)
        return None

    def alias(self, key: str) -> tuple[str, str] | None:
        """(identity, folder name) that the pack's index has for ``key``."""
        return index.read(self.root, key)


def layers() -> tuple[Layer, ...]:
    """The packs of ``SCANOPS_PACKS``, in its order, then the installed ones."""
    return _layers(environment.pack_roots())


@functools.lru_cache(maxsize=8)
def _layers(chosen: tuple[Path, ...]) -> tuple[Layer, ...]:
    from scanops.packs.installed import installed  # 10 ms once, and only where neither store nor memory answered

    return tuple(Layer(root) for root in dict.fromkeys((*chosen, *installed())))


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
