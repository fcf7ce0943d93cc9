"""The kernel store: lookup, one build per kernel over all processes, publication in one step.

    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.so, manifest.json}   an entry, complete or absent: a library,
    root/<slug>-<16 hex of identity>/{kernel.cu, kernel.cubin, manifest.json}   or a cubin
    root/index/                                                                 see store/root.py
    root/.staging/  .locks/  .failed/                                        builds under way, logs of failed ones

Readers take no lock, and write nothing but the time of the last use, now and then. A corrupt entry is a miss, and the
build that follows replaces it.
The user's store has the packs below it: what it lacks is looked for there.

``root`` has the checks of a folder and its index, ``locks`` the build locks, ``entry`` a kernel in it; ``library``
loads a kernel, which ``scanops.runtime`` launches; ``usage`` removes entries. ``layers`` are the packs, ``packs`` their
contents, ``signatures`` their signatures, ``archive`` makes one file of them.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from scanops import environment
from scanops.build_request import CUBIN
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.files import secure
from scanops.forks import import_late
from scanops.store import usage
from scanops.store.entry import FILES, Entry, write_manifest
from scanops.store.layers import Layer, iterate_packs, keys, refusal
from scanops.store.library import load
from scanops.store.locks import hold_build_lock, sweep
from scanops.store.root import (
    check_root,
    create_root,
    make_folders,
    unwritable,
    write_index,
)

if TYPE_CHECKING:
    from scanops.build_request import BuildReport, BuildRequest


_LOG = logging.getLogger("scanops")


class Store(Layer):
    """The kernels below one folder; without ``root`` the user's own store, with the packs below it.

    Making the object touches no disk.
    """

    def __init__(self, root: Path | None = None) -> None:
        super().__init__(environment.store_root() if root is None else Path(root).expanduser().absolute())
        self._packs: Callable[[], Iterable[Layer]] = iterate_packs if root is None else tuple
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
        own = super().find(*identities) if self._usable() else None
        return own or next(filter(None, (pack.find(*identities) for pack in self._packs())), None)

    def lookup(self, spec: str, target: str, *keys: str) -> Entry | None:
        """Return the verified entry that an index has for one of ``keys``, if it states ``spec`` and ``target``.

        The keys are those of the forms of a kernel: the first that leads to an entry counts. None is a cache miss. The
        index is a claim: a record that leads to the kernel of another spec is a miss, too.
        """
        if not keys:
            return None
        own = self.find_indexed(*keys) if self._usable() else None
        entry = own or next(filter(None, (pack.find_indexed(*keys) for pack in self._packs())), None)
        if entry is None or (entry.slug, entry.target) == (spec, target):
            return entry
        _LOG.warning("an index record of %s for %s leads to %s; it is ignored", spec, target, entry.directory)
        return None

    def remember(self, key: str, entry: Entry) -> None:
        """Let the index lead from ``key`` to ``entry``, unless a pack has it. Does nothing in a read-only store."""
        if self._usable() and entry.directory.parent == self.root and entry.directory.is_dir():
            try:
                write_index(self.root, key, entry.directory.name)
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
            raise refusal(request.name, request.target)
        create_root(self.root, ".staging", ".locks")
        import_late("scanops.builders")  # before the wait for a lock, so that what is missing shows
        # One lock for both forms: a call and a build ahead of time that ask for one kernel at once build it once.
        with hold_build_lock(self.root / ".locks", request.identity, request.name, environment.lock_seconds()):
            entry = self.find(*request.identities.values())
            if entry is not None:
                return entry
            sweep(self.root)
            return self._build(request)

    def _usable(self) -> bool:
        if environment.require_signed() is not None:
            keys()  # raises for bad keys even where there is no pack to check with them
            return False
        self._checked = self._checked or check_root(self.root)
        return self._checked

    def _verify(self, name: str, identity: str) -> Entry | None:
        entry = super()._verify(name, identity)
        return entry if entry and usage.touch(entry.directory) else None

    def _refuse(self, directory: Path, why: str) -> None:
        if os.path.lexists(directory):  # not pruned meanwhile
            check_root(self.root)  # raises if it was opened to others since: then no entry is to blame
            _LOG.warning("store entry %s is corrupt (%s); the next build of its kernel replaces it", directory, why)

    def _build(self, request: BuildRequest) -> Entry:
        stage = self.root / ".staging" / f"{request.identity[:16]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        work = stage / "work"
        try:
            for folder in (stage, work):
                folder.mkdir(mode=0o700)
            try:
                return self._publish(_complete(request, import_late("scanops.builders").build(request, work), stage))
            except BuildFailure as failure:
                raise self._keep(failure, work, f"{request.name}-{request.identity[:16]}") from None
        except OSError as problem:
            raise unwritable(self.root, problem) from problem
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def _publish(self, entry: Entry) -> Entry:
        """Rename an entry into place. A sound one that is there already serves; a corrupt one is replaced."""
        ready, final = entry.directory, self.root / entry.directory.name
        try:
            ready.rename(final)
        except OSError:
            if theirs := self._verify(final.name, entry.identity):
                return theirs
            with suppress(FileNotFoundError):  # else it goes with the folder of this build
                final.rename(ready.parent / "replaced")
            ready.rename(final)
        try:  # the kernel is published: what fails from here on fails no call
            secure(self.root, follow=True)
        except OSError as problem:
            _LOG.debug("%s is not known to be on disk: %s", final, problem)
        return replace(entry, directory=final)

    def _keep(self, failure: BuildFailure, work: Path, name: str) -> BuildFailure:
        """Keep the source and the log of a failed build where the message says they are."""
        try:
            shutil.rmtree(self.root / ".failed" / name, ignore_errors=True)
            make_folders(self.root, ".failed", f".failed/{name}")
            move_failure = import_late("scanops.builders").move_failure
            return cast(BuildFailure, move_failure(failure, work, self.root / ".failed" / name))
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
