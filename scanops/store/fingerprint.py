"""What a kernel's text and binary follow from besides its spec, as one digest.

With it a new process finds its kernel without rendering anything: it is part of the key that the indexes of store and
packs know a kernel by. An edited template, table row or flag gives another digest, and so a miss.

To read all sources takes longer than all else a look-up does. A wheel carries their digests, made when it was built
(setup.py); nobody edits what pip installed, and where somebody did, nothing is written under the wheel's digest.

In a checkout the store keeps each digest beside a stamp of every file and folder: size, inode, and both times. The time
of the last change is the kernel's own: an editor, ``touch``, ``cp -p`` and git all leave it later than it was; a file
that came or went leaves its folder so. What changed within the resolution of clocks may change again unseen, so nothing
is kept of it, as git does with its index.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time

import scanops.codegen
import scanops.templates
from scanops import environment, sources
from scanops.artifact import ABI, CPU, EMULATOR, LINK_FLAGS, SCHEMA, BuildRequest, platform
from scanops.store import parts

try:
    from scanops.built import DIGESTS
except ImportError:  # a checkout has no such file
    DIGESTS = {}

__all__ = ["DIGESTS", "fingerprint", "is_true"]

_TREES = {
    "codegen": scanops.codegen.__path__[0],
    "templates": scanops.templates.__path__[0],
    "emulator": str(EMULATOR),
}
_SETTLED_NS = 2 * 10**9  # the coarsest times that a file system keeps


@functools.cache
def fingerprint(target: str) -> str:
    """64 hex digits for ``target``."""
    flags = BuildRequest(name="any", source="", target=target).flags
    rest = f"{SCHEMA} {ABI} {platform()} {target} {flags} {LINK_FLAGS}"
    return _sha256(f"{rest} {' '.join(DIGESTS.get(name) or _kept(name) for name in _trees(target))}")


@functools.cache
def is_true(target: str) -> bool:
    """Whether the sources are those of the fingerprint: in a checkout always, in a wheel unless they were edited."""
    return all(name not in DIGESTS or DIGESTS[name] == sources.digest(_TREES[name]) for name in _trees(target))


def _trees(target: str) -> tuple[str, ...]:
    # A text for the emulator includes its headers, and is linked with the rest of it.
    return ("codegen", "templates", "emulator") if target == CPU else ("codegen", "templates")


def _kept(name: str) -> str:
    """The digest of a tree: as the store has it while every stamp is the same, else of what is read."""
    folder, root = _TREES[name], environment.store_root()
    if not root.is_dir():  # whoever only reads from packs needs no store
        return sources.digest(folder)
    part = f"sources-{_sha256(folder)[:32]}"
    kept = parts.read(root, part)
    if kept is not None:
        digest, _, stamps = kept.decode().partition("\n")
        if stamps == _stamps([line.rpartition("\t")[0] for line in stamps.split("\n")]):
            return digest
    paths = sources.paths(folder)
    stamps = _stamps(paths)
    digest = sources.digest(folder)
    if _settled(paths):
        parts.write(root, part, f"{digest}\n{stamps}".encode())
    return digest


def _stamps(paths: list[str]) -> str:
    """A line for each path; none where one is gone."""
    try:
        facts = [(path, os.stat(path)) for path in paths]  # noqa: PTH116
    except OSError:
        return ""
    return "\n".join(f"{path}\t{at.st_size} {at.st_ino} {at.st_mtime_ns} {at.st_ctime_ns}" for path, at in facts)


def _settled(paths: list[str]) -> bool:
    return time.time_ns() - max(os.stat(path).st_ctime_ns for path in paths) > _SETTLED_NS  # noqa: PTH116


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
