"""Where built kernels live: look-up, one build per kernel over all processes, publication in one step.

    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.so, manifest.json}   an entry, complete or absent
    root/index/<aa>/<sha256 of key>.json                                     from a caller's key to an identity
    root/.parts/                                                             what several kernels are linked with
    root/.staging/  .locks/  .quarantine/  .failed/                          builds under way and bad ends

Readers take no lock. They write nothing but the time of the last use, now and then, and move a corrupt entry aside.
The user's store has the packs below it (store/layers.py): what it lacks is looked for there.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.forks import NO_FORK
from scanops.store import index, usage
from scanops.store.entry import Entry, checked, read_entry, write_manifest
from scanops.store.layers import Layer, layers
from scanops.store.root import check_root, create_root, require_room, unwritable

if TYPE_CHECKING:
    from scanops.artifact import BuildReport, BuildRequest

__all__ = ["Store"]

_LOG = logging.getLogger("scanops")


class Store:
    """The kernels below one folder; without ``root`` the user's own, with the packs below it and a limit of size.

    Making the object touches no disk.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = environment.store_root() if root is None else Path(root).expanduser().absolute()
        self._users = root is None
        self._elsewhere: dict[str, tuple[Layer, str]] = {}  # identity -> the pack its alias was found in, the folder
        self._names: dict[str, str] = {}  # identity -> folder name, a hint that saves listing the root
        self._checked = False

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def find(self, identity: str) -> Entry | None:
        """The verified entry, of the store or else of a pack, or None.

        A corrupt one counts as absent, and is moved aside if it is in the store. Raises BadStoreEntry when the root of
        the store or of a pack may be written by others, or belongs to somebody else.

        With SCANOPS_REQUIRE_SIGNED no store has anything, and only signed packs do. Raises BadSignature for its keys.
        """
        if identity in self._elsewhere:
            layer, name = self._elsewhere[identity]
            entry = layer.find(identity, name)
            if entry is not None:
                return entry
        for name in self._candidates(identity) if self._usable() else ():
            entry = self._verified(self.root / name, identity)
            if entry is not None and usage.touch(entry.directory):
                self._names[identity] = name
                return entry
        found = (layer.find(identity) for layer in self._layers())
        return next((entry for entry in found if entry is not None), None)

    def get_or_build(self, request: BuildRequest, *, on_build: Callable[[BuildRequest], object] | None = None) -> Entry:
        """The entry of ``request``, built if it is not there. ``on_build`` is called once, before a build starts.

        Raises what ``scanops.builders.build.build`` raises, BadStoreEntry when the store cannot be used or written, and
        MissingKernel instead of building with SCANOPS_REQUIRE_SIGNED.
        """
        identity = request.identity
        self._names.setdefault(identity, _folder_name(request.name, identity))
        entry = self.find(identity)
        if entry is not None:
            return entry
        if environment.require_signed() is not None:
            with NO_FORK:
                from scanops.store.trust import refusal

            raise refusal(request.name, request.target, [layer.root for layer in self._layers()])
        self._prepare()
        with NO_FORK:
            from scanops.builders.build import show_lines
            from scanops.store.leftovers import sweep
            from scanops.store.lock import building

        show_lines()
        most = environment.max_store() if self._users else None  # what makes no sense shows before anything is built
        with building(self.root / ".locks", identity, request.name, environment.lock_seconds()):
            entry = self.find(identity)
            if entry is not None:
                return entry
            if on_build is not None:
                on_build(request)
            entry = self._build(request, identity)
        sweep(self.root)
        usage.limit(self.root, most, keep=entry.directory)
        return entry

    def alias(self, key: str) -> str | None:
        """The identity that the store, or else a pack, has for ``key``, if the entry is still there."""
        found = index.read(self.root, key) if self._usable() else None
        if found is not None:
            self._names[found[0]] = found[1]
            return found[0]
        for layer in self._layers():
            found = layer.alias(key)
            if found is not None:
                self._elsewhere[found[0]] = (layer, found[1])
                return found[0]
        return None

    def remember(self, key: str, identity: str) -> None:
        """Let ``alias(key)`` answer ``identity``, whose entry exists. Does nothing in a store that is read-only."""
        name = self._names.get(identity) or next(iter(self._candidates(identity)), None)
        if name is None or not self._usable() or not (self.root / name).is_dir():
            return  # read-only, or found in a pack
        try:
            index.write(self.root, key, identity, name)
        except OSError as problem:
            _LOG.debug("no index entry for %s: %s", name, problem)

    def _layers(self) -> Iterable[Layer]:
        return layers() if self._users else ()

    def _usable(self) -> bool:
        if environment.require_signed() is not None:
            from scanops.store.trust import keys

            keys()  # said even where there is no pack to check by them
            return False
        if not self._checked:
            self._checked = check_root(self.root)
        return self._checked

    def _prepare(self) -> None:
        create_root(self.root)
        self._usable()
        try:
            for name in (".staging", ".locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise unwritable(self.root, problem) from problem

    def _candidates(self, identity: str) -> list[str]:
        """Folder names that may hold ``identity``; the name for people in front is free, so others may occur."""
        hint = self._names.get(identity)
        if hint is not None and (self.root / hint).is_dir():
            return [hint]
        try:
            with os.scandir(self.root) as listing:
                return [item.name for item in listing if item.name.endswith("-" + identity[:16])]
        except OSError:
            return []

    def _verified(self, directory: Path, identity: str) -> Entry | None:
        for _ in range(2):  # another process may prune or replace it while we look
            seen = _mark(directory)
            if seen is None:
                return None
            found = checked(directory, identity)
            if isinstance(found, Entry):
                return found
            if _mark(directory) == seen:
                _LOG.warning(
                    "store entry %s is corrupt (%s); it is moved aside and built again when needed", directory, found
                )
                self._quarantine(directory, seen)
                return None
        return None

    def _quarantine(self, directory: Path, seen: tuple[int, int]) -> None:
        aside = self.root / ".quarantine" / f"{directory.name}.{uuid.uuid4().hex[:8]}"
        try:
            aside.parent.mkdir(mode=0o700, exist_ok=True)
            directory.rename(aside)
            if _mark(aside) != seen:  # a good one, which another process has put there since we looked
                aside.rename(directory)
        except OSError as problem:
            _LOG.warning("cannot move %s aside: %s", directory, problem)

    def _build(self, request: BuildRequest, identity: str) -> Entry:
        with NO_FORK:
            from scanops.builders.build import build

        stage = self.root / ".staging" / f"{identity[:16]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        work, ready = stage / "work", stage / _folder_name(request.name, identity)
        entry = None
        try:
            work.mkdir(mode=0o700, parents=True)
            ready.mkdir(mode=0o700)
            report = build(request, work)
            self._stage(request, identity, report, ready)
            entry = self._publish(ready, identity)
        except BuildFailure as failure:
            try:
                require_room(work)
            except OSError as problem:
                raise unwritable(self.root, problem) from failure
            raise self._kept(failure, work, ready.name) from None
        except OSError as problem:
            raise unwritable(self.root, problem) from problem
        finally:
            # A copy that could not be published stays, for this process to use, until it is swept.
            private = entry is not None and entry.directory == ready
            shutil.rmtree(work if private else stage, ignore_errors=True)
        return entry

    def _stage(self, request: BuildRequest, identity: str, report: BuildReport, ready: Path) -> None:
        """Put an entry together, on disk to the last byte, and load it once."""
        from scanops.store.library import load

        (ready / "kernel.cu").write_text(request.source, encoding="utf-8")
        # The same inode as what load_inline has loaded: moved, never copied.
        report.library.rename(ready / "kernel.so")
        write_manifest(ready, request, identity, report)
        try:
            load(read_entry(ready))
        except BadStoreEntry as problem:
            source = report.library.with_name("kernel.cu")
            raise BuildFailure(
                f"load {request.name} for {request.target} once after building it",
                allowed=problem.allowed,
                value=problem.value,
                hint=f"read {source}; if that is in order: {problem.hint}",
            ) from problem

    def _publish(self, ready: Path, identity: str) -> Entry:
        final = self.root / ready.name
        for _ in range(2):
            try:
                ready.rename(final)
            except OSError:
                theirs = self._verified(final, identity)
                if theirs is not None:
                    shutil.rmtree(ready, ignore_errors=True)
                    return theirs
            else:
                _sync_folder(self.root)
                return read_entry(final)
        _LOG.warning("cannot publish %s; using the private copy %s", final, ready)
        return read_entry(ready)

    def _kept(self, failure: BuildFailure, work: Path, name: str) -> BuildFailure:
        """Keep the source and the log of a failed build where the message says they are."""
        kept = self.root / ".failed" / name
        try:
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(mode=0o700, parents=True)
            for path in (work / "kernel.cu", work / "build.log"):
                if path.exists():
                    path.rename(kept / path.name)
        except OSError:
            return failure
        value, hint = (text.replace(str(work), str(kept)) for text in (str(failure.value), failure.hint))
        return type(failure)(failure.asked, allowed=failure.allowed, value=value, hint=hint)


def _folder_name(name: str, identity: str) -> str:
    return f"{name}-{identity[:16]}"


def _mark(directory: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of its name; None when it is gone. Inode numbers are used again."""
    try:
        facts = directory.lstat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
