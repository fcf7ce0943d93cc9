"""The kernel store: lookup, one build per kernel over all processes, publication in one step.

    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.so, manifest.json}   an entry, complete or absent
    root/index/<aa>/<sha256 of key>.json                                     from a lookup key to an identity
    root/.parts/                                                             what several kernels are linked with
    root/.staging/  .locks/  .quarantine/  .failed/                          builds under way, corrupt entries, logs

Readers take no lock. They write nothing but the time of the last use, now and then, and move a corrupt entry aside.
The user's store has the packs below it (store/layers.py): what it lacks is looked for there.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.files import synced
from scanops.processes import NO_FORK
from scanops.store import index, usage
from scanops.store.entry import Entry, checked, read_entry, write_manifest
from scanops.store.layers import Layer, layers
from scanops.store.lock import building, locked
from scanops.store.root import (
    check_root,
    create_root,
    make_folders,
    read_part,
    require_room,
    unwritable,
    write_part,
)

if TYPE_CHECKING:
    from scanops.artifact import BuildReport, BuildRequest

__all__ = ["Store"]

_LOG = logging.getLogger("scanops")


class Store:
    """The kernels below one folder; without ``root`` the user's own store, with the packs below it and a size limit.

    Making the object touches no disk.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = environment.store_root() if root is None else Path(root).expanduser().absolute()
        self._users = root is None
        self._elsewhere: dict[str, tuple[Layer, str]] = {}  # identity -> pack whose index has it, folder name
        self._names: dict[str, str] = {}  # identity -> folder name, a hint that saves listing the root
        self._checked = False

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def find(self, identity: str, *, spec: str | None = None, target: str | None = None) -> Entry | None:
        """Return the verified entry of the store, or else of a pack; None for a cache miss.

        Args:
            identity: what the kernel is known by, ``BuildRequest.identity``.
            spec: the slug that the entry's manifest must name. An identity from an index is given with ``spec`` and
                ``target``: a record that leads to the kernel of another spec is a miss.
            target: the target that the manifest must name.

        A corrupt entry, or one that others could have written, counts as absent, and is moved aside if it is in the
        store. With SCANOPS_REQUIRE_SIGNED only signed packs are searched.

        Raises:
            BadStoreEntry: others own the root of the store or of a pack, or may write there.
            BadSignature: SCANOPS_REQUIRE_SIGNED names no usable key.
        """
        entry = self._found(identity)
        if entry is None or entry.states(spec, target):
            return entry
        _LOG.warning("an index record of %s for %s leads to %s; it is ignored", spec, target, entry.directory)
        return None

    def lookup(self, key: str, spec: str, target: str) -> Entry | None:
        """Return the verified entry that an index has for ``key``, if it states ``spec`` and ``target``; else None."""
        identity = self.alias(key)
        return self.find(identity, spec=spec, target=target) if identity else None

    def get_or_build(self, request: BuildRequest, *, on_build: Callable[[BuildRequest], object] | None = None) -> Entry:
        """Return the entry of ``request``, built if it is not there: ``find``, then ``build``."""
        self._names.setdefault(request.identity, _folder_name(request.name, request.identity))
        return self.find(request.identity) or self.build(request, on_build=on_build)

    def build(self, request: BuildRequest, *, on_build: Callable[[BuildRequest], object] | None = None) -> Entry:
        """Build ``request``, which ``find`` did not have, unless another process builds it meanwhile.

        ``on_build`` is called before a build starts. Raises what ``scanops.builders.build.build`` raises, BadStoreEntry
        when the store cannot be used or written, and MissingKernel instead of building with SCANOPS_REQUIRE_SIGNED.
        """
        identity = request.identity
        self._names.setdefault(identity, _folder_name(request.name, identity))
        if environment.require_signed() is not None:
            with NO_FORK:
                from scanops.store.trust import refusal

            raise refusal(request.name, request.target, [layer.root for layer in self._layers()])
        self._prepare()
        most = environment.max_store() if self._users else None  # a size that makes no sense is an error before a build
        with NO_FORK:  # all that a build imports: later imports find the modules loaded, and take no lock
            import scanops.builders.build
            import scanops.store.library

        scanops.builders.build.show_lines()
        with building(self.root / ".locks", identity, request.name, environment.lock_seconds()):
            entry = self.find(identity)
            if entry is not None:
                return entry
            if on_build is not None:
                on_build(request)
            entry = self._build(request, identity)
        usage.sweep(self.root)
        usage.limit(self.root, most, keep=entry.directory)
        return entry

    def alias(self, key: str) -> str | None:
        """Return the identity that the index of the store, or else of a pack, has for ``key``; None for a miss.

        The answer is a claim: pass it to ``find`` with the spec and the target that were asked for.
        """
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
            _LOG.debug("no index record for %s: %s", name, problem)

    def _found(self, identity: str) -> Entry | None:
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

    def _layers(self) -> Iterable[Layer]:
        return layers() if self._users else ()

    def _usable(self) -> bool:
        if environment.require_signed() is not None:
            from scanops.store.trust import keys

            keys()  # raises for bad keys even where there is no pack to check with them
            return False
        if not self._checked:
            self._checked = check_root(self.root)
        return self._checked

    def _prepare(self) -> None:
        create_root(self.root)
        self._usable()
        try:
            make_folders(self.root, ".staging", ".locks")
        except OSError as problem:
            raise unwritable(self.root, problem) from problem

    def _candidates(self, identity: str) -> list[str]:
        """Folder names that may hold ``identity``: the slug in front of it is free, so there may be several."""
        hint = self._names.get(identity)
        if hint is not None and (self.root / hint).is_dir():
            return [hint]
        try:
            with os.scandir(self.root) as listing:
                return [item.name for item in listing if item.name.endswith("-" + identity[:16])]
        except OSError:
            return []

    def _verified(self, directory: Path, identity: str) -> Entry | None:
        for _ in range(2):  # another process may prune or replace it meanwhile
            seen = _mark(directory)
            if seen is None:
                return None
            found = checked(directory, identity)
            if isinstance(found, Entry):
                return found
            if _mark(directory) == seen:
                check_root(self.root)  # raises if it was opened to others since: then no entry is to blame
                _LOG.warning(
                    "store entry %s is corrupt (%s); it is moved aside and built again when needed", directory, found
                )
                self._quarantine(directory, seen)
                return None
        return None

    def _quarantine(self, directory: Path, seen: tuple[int, int]) -> None:
        aside = self.root / ".quarantine" / f"{directory.name}.{uuid.uuid4().hex[:8]}"
        try:
            make_folders(self.root, ".quarantine")
            directory.rename(aside)
            if _mark(aside) != seen:  # a good one, which another process has put there meanwhile
                aside.rename(directory)
        except OSError as problem:
            _LOG.warning("cannot move %s aside: %s", directory, problem)

    def _build(self, request: BuildRequest, identity: str) -> Entry:
        from scanops.builders.build import build, build_folder

        stage = self.root / ".staging" / f"{identity[:16]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        work, ready = stage / "work", stage / _folder_name(request.name, identity)
        entry = None
        try:
            for folder in (stage, work, ready):
                folder.mkdir(mode=0o700)
            with build_folder(work) as folder:
                try:
                    _provide_host_object(request, folder)
                    report = build(request, folder)
                    self._stage(request, identity, report, ready)
                except BuildFailure as failure:
                    for place in (work, folder):
                        require_room(place)
                    raise self._kept(failure, folder, ready.name) from None
            entry = self._publish(ready, identity)
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
        _move(report.library, ready / "kernel.so")
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
                synced(self.root)
                return read_entry(final)
        _LOG.warning("cannot publish %s; using the private copy %s", final, ready)
        return read_entry(ready)

    def _kept(self, failure: BuildFailure, folder: Path, name: str) -> BuildFailure:
        """Keep the source and the log of a failed build where the message says they are."""
        kept = self.root / ".failed" / name
        try:
            shutil.rmtree(kept, ignore_errors=True)
            make_folders(self.root, ".failed")
            kept.mkdir(mode=0o700)
            for path in (folder / "kernel.cu", folder / "build.log"):
                if path.exists():
                    _move(path, kept / path.name)
        except OSError:
            return failure
        value, hint = (text.replace(str(folder), str(kept)) for text in (str(failure.value), failure.hint))
        return type(failure)(failure.asked, allowed=failure.allowed, value=value, hint=hint)


def _provide_host_object(request: BuildRequest, folder: Path) -> None:
    """Put the emulator's object into the build folder: from the user's store, or compiled once and kept there."""
    from scanops.builders.host import HOST_OBJECT, compile_host, host_name

    try:
        name = host_name(request)
    except BuildFailure:
        return  # the build says which compiler is missing
    if name is None:
        return
    root = environment.store_root()
    part = read_part(root, name)
    if part is None:
        try:
            create_root(root)
            check_root(root)
            make_folders(root, ".parts", ".locks")
        except (OSError, BadStoreEntry) as problem:
            _LOG.debug("%s is not kept in %s: %s", name, root, problem)
            return  # the build compiles its own
        with locked(root / ".locks" / f"{name}.lock", f"make {name}", environment.lock_seconds(), "making another one"):
            part = read_part(root, name)
            if part is None:
                part = compile_host(request, folder)
                write_part(root, name, part)
    (folder / HOST_OBJECT).write_bytes(part)


def _move(path: Path, place: Path) -> None:
    """Move a file, by a copy where the build folder is on another file system."""
    try:
        path.rename(place)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        shutil.copyfile(path, place)


def _folder_name(name: str, identity: str) -> str:
    return f"{name}-{identity[:16]}"


def _mark(directory: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of its name; None when it is gone. Inode numbers are used again."""
    try:
        facts = directory.lstat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns
