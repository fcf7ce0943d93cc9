"""The kernel store: lookup, one build per kernel over all processes, publication in one step.

    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.so, manifest.json}   an entry, complete or absent: a library,
    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.cubin, manifest.json}   or a cubin
    root/index/                                                              see store/root.py
    root/.staging/  .locks/  .failed/                                        builds under way, logs of failed ones

Readers take no lock, and write nothing but the time of the last use, now and then. A corrupt entry is a miss, and the
build that follows replaces it.
The user's store has the packs below it: what it lacks is looked for there.

``root`` has the checks of a folder, its index and build locks, ``entry`` a kernel in it; ``library`` loads a kernel,
``driver`` launches cubins, ``usage`` removes entries. ``layers`` are the packs, ``packs`` their contents,
``signatures`` their signatures; ``packing`` and ``archive`` make them.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scanops import environment
from scanops.artifact import CUBIN
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.files import secure
from scanops.processes import NO_FORK
from scanops.store import usage
from scanops.store.entry import FILES, Entry, checked, write_manifest
from scanops.store.layers import keys, refusal, searched
from scanops.store.library import load
from scanops.store.root import (
    building,
    check_root,
    create_root,
    make_folders,
    read_index,
    sweep,
    unwritable,
    write_index,
)

if TYPE_CHECKING:
    from scanops.artifact import BuildReport, BuildRequest


_LOG = logging.getLogger("scanops")


class Store:
    """The kernels below one folder; without ``root`` the user's own store, with the packs below it.

    Making the object touches no disk.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = environment.store_root() if root is None else Path(root).expanduser().absolute()
        self._users = root is None
        self._checked = False

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def find(self, *identities: str) -> Entry | None:
        """Return the verified entry of the store, or else of a pack; None for a cache miss.

        ``identities`` are those of a ``BuildRequest``: of several forms, the first that there is serves. A corrupt
        entry, or one that others could have written, counts as absent. With SCANOPS_REQUIRE_SIGNED only signed packs
        are searched.

        Raises:
            BadStoreEntry: others own the root of the store or of a pack, or may write there.
            BadSignature: SCANOPS_REQUIRE_SIGNED names no usable key.
        """
        entry = self._own(identities) if self._usable() else None
        below = searched() if entry is None and self._users else ()
        return entry or next(filter(None, (layer.find(each) for layer in below for each in identities)), None)

    def lookup(self, spec: str, target: str, *keys: str) -> Entry | None:
        """Return the verified entry that an index has for one of ``keys``, if it states ``spec`` and ``target``.

        The keys are those of the forms of a kernel: the first that leads to an entry counts. None is a cache miss. The
        index is a claim: a record that leads to the kernel of another spec is a miss, too.
        """
        entry = next(filter(None, self._indexed(keys)), None) if keys else None
        if entry is None or (entry.slug, entry.target) == (spec, target):
            return entry
        _LOG.warning("an index record of %s for %s leads to %s; it is ignored", spec, target, entry.directory)
        return None

    def _indexed(self, keys: Sequence[str]) -> Iterator[Entry | None]:
        """Yield what the index of each place has for each of ``keys``, in the order of lookups."""
        for key in keys if self._usable() else ():
            found = read_index(self.root, key)
            yield self._own(found[:1], found[1]) if found else None
        for layer in searched() if self._users else ():
            for key in keys:
                found = layer.indexed(key)
                yield layer.find(*found) if found else None

    def remember(self, key: str, entry: Entry) -> None:
        """Let the index lead from ``key`` to ``entry``, unless a pack has it. Does nothing in a read-only store."""
        if self._usable() and entry.directory.parent == self.root and entry.directory.is_dir():
            try:
                write_index(self.root, key, entry.identity, entry.directory.name)
            except OSError as problem:
                _LOG.debug("no index record for %s: %s", entry.directory, problem)

    def get_or_build(self, request: BuildRequest) -> Entry:
        """Return the entry of ``request`` in one of its forms, built if it is not there: ``find``, then ``build``."""
        return self.find(*request.identities.values()) or self.build(request)

    def build(self, request: BuildRequest) -> Entry:
        """Build ``request``, which ``find`` did not have, unless another process builds it meanwhile.

        Raises what ``scanops.builders.build`` raises, BadStoreEntry when the store cannot be used or written, and
        MissingKernel instead of building with SCANOPS_REQUIRE_SIGNED.
        """
        if environment.require_signed() is not None:
            raise refusal(request.name, request.target, [layer.root for layer in (searched() if self._users else ())])
        create_root(self.root)
        self._usable()
        try:
            make_folders(self.root, ".staging", ".locks")
        except OSError as problem:
            raise unwritable(self.root, problem) from problem
        with NO_FORK:  # all that a build imports: later imports find the modules loaded, and take no lock
            import scanops.builders

        if environment.given("SCANOPS_VERBOSE"):
            scanops.builders.show_lines()
        # One lock for both forms: a call and a build ahead of time that ask for one kernel at once build it once.
        with building(self.root / ".locks", request.identity, request.name, environment.lock_seconds()):
            entry = self.find(*request.identities.values())
            if entry is not None:
                return entry
            sweep(self.root)
            return self._built(request)

    def _usable(self) -> bool:
        if environment.require_signed() is not None:
            keys()  # raises for bad keys even where there is no pack to check with them
            return False
        self._checked = self._checked or check_root(self.root)
        return self._checked

    def _own(self, identities: Sequence[str], name: str | None = None) -> Entry | None:
        """Return the verified entry of this store. ``name`` is a folder that probably has it: no listing then.

        The slug in front of an identity is free: there may be several.
        """
        names = [name] if name and (self.root / name).is_dir() else []
        if not names:
            try:
                with os.scandir(self.root) as listing:
                    ends = tuple(f"-{identity[:16]}" for identity in identities)
                    names = [item.name for item in listing if item.name.endswith(ends)]
            except OSError:
                return None
        for identity in identities if names else ():
            for each in names:
                entry = self._verified(self.root / each, identity) if each.endswith(identity[:16]) else None
                if entry is not None and usage.touch(entry.directory):
                    return entry
        return None

    def _verified(self, directory: Path, identity: str) -> Entry | None:
        found = checked(directory, identity)
        if isinstance(found, Entry):
            return found
        if os.path.lexists(directory):  # not pruned meanwhile
            check_root(self.root)  # raises if it was opened to others since: then no entry is to blame
            _LOG.warning("store entry %s is corrupt (%s); the next build of its kernel replaces it", directory, found)
        return None

    def _built(self, request: BuildRequest) -> Entry:
        from scanops.builders import build

        stage = self.root / ".staging" / f"{request.identity[:16]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        work, entry = stage / "work", None
        try:
            for folder in (stage, work):
                folder.mkdir(mode=0o700)
            try:
                entry = self._published(_complete(request, build(request, work), stage))
            except BuildFailure as failure:
                raise self._kept(failure, work, f"{request.name}-{request.identity[:16]}") from None
        except OSError as problem:
            raise unwritable(self.root, problem) from problem
        finally:
            # A copy that could not be published stays, for this process to use, until it is swept.
            private = entry is not None and entry.directory.parent == stage
            shutil.rmtree(work if private else stage, ignore_errors=True)
        return entry

    def _published(self, entry: Entry) -> Entry:
        ready, final = entry.directory, self.root / entry.directory.name
        for _ in range(2):
            try:
                ready.rename(final)
            except OSError:
                theirs = self._verified(final, entry.identity)
                if theirs is not None:
                    return theirs
                with suppress(OSError):  # a corrupt one goes with the folder of this build
                    final.rename(ready.parent / "replaced")
            else:
                secure(self.root)
                return replace(entry, directory=final)
        _LOG.warning("cannot publish %s; using the private copy %s", final, ready)
        return entry

    def _kept(self, failure: BuildFailure, work: Path, name: str) -> BuildFailure:
        """Keep the source and the log of a failed build where the message says they are."""
        from scanops.builders import moved

        try:
            shutil.rmtree(self.root / ".failed" / name, ignore_errors=True)
            make_folders(self.root, ".failed", f".failed/{name}")
            return moved(failure, work, self.root / ".failed" / name)
        except OSError:
            return failure


def _complete(request: BuildRequest, report: BuildReport, stage: Path) -> Entry:
    """Put an entry together, on disk to the last byte, and load a library once: a cubin takes a GPU to load."""
    ready = stage / f"{request.name}-{request.identities[report.form][:16]}"
    ready.mkdir(mode=0o700)
    (ready / "kernel.cu").write_text(request.source, encoding="utf-8")
    report.file.rename(ready / FILES[report.form][1])
    entry = write_manifest(ready, request, report)
    try:
        if report.form != CUBIN:
            load(entry)
    except BadStoreEntry as problem:
        source = report.file.with_name("kernel.cu")
        raise BuildFailure(
            f"load {request.name} for {request.target} once after building it",
            allowed=problem.allowed,
            value=problem.value,
            hint=f"read {source}; if that is in order: {problem.hint}",
        ) from problem
    return entry
