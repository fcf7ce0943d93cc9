"""How large the store may grow: kernels used longest ago go first, and none that is in use.

The time of the last use is that of manifest.json, renewed now and then by look-ups. It decides what to remove and
nothing else. A kernel is in use while a process of this machine has its library mapped, and for an hour after its last
use, which covers processes of other machines that have looked it up and not yet loaded it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from scanops.sizes import format_size, size_of
from scanops.store.entry import MANIFEST

__all__ = ["IDLE_SECONDS", "PRUNED", "Item", "Pruned", "limit", "prune", "touch"]

IDLE_SECONDS = 3600.0
PRUNED = "pruned-"  # what an entry's name in .staging starts with while it is removed; a build's, with its identity
_RENEW_SECONDS = 600.0  # a look-up writes at most this often
_MEASURE_SECONDS = 60.0
# Of a store and its limit: when it was measured, and the bytes that are left, by what this process has added since.
_ROOM: dict[tuple[Path, int], tuple[float, int]] = {}
_HIDDEN = (".quarantine", ".failed")  # count, and go as entries do
_LOG = logging.getLogger("scanops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something of a store that can go."""

    path: Path
    size: int  # bytes
    used: float  # seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What ``prune`` found and did."""

    before: int  # bytes
    after: int  # bytes; above the limit where the rest is in use
    removed: tuple[Item, ...]  # or what would be, of a dry run
    kept: int  # how many were older than something removed, or too many, and in use
    refused: OSError | None = None  # what the system said of the first that it did not let go


def touch(directory: Path) -> bool:
    """Record that an entry is used, where the store can be written. Whether the entry is still there."""
    manifest = directory / MANIFEST
    try:
        if time.time() - manifest.stat().st_mtime > _RENEW_SECONDS:
            os.utime(manifest)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def limit(root: Path, size: int | None, *, keep: Path) -> None:
    """Bring the store below ``size`` after a build; ``keep`` is what was built.

    To measure a store of thousands of kernels takes longer than to plan and render one: a process that builds many does
    so once a minute, or when what it has added since is more than there was room for.
    """
    if size is not None:
        key, now = (root, size), time.monotonic()
        since, room = _ROOM.get(key, (-_MEASURE_SECONDS, 0))
        room -= size_of(keep)
        if room > 0 and now - since < _MEASURE_SECONDS:
            _ROOM[key] = (since, room)
            return
        done = prune(root, size, keep=keep)
        _ROOM[key] = (now, size - done.after)
        if done.removed:
            _LOG.info(
                "the store %s held %s, the limit is %s (SCANOPS_MAX_STORE); %d kernels used longest ago were removed",
                root,
                format_size(done.before),
                format_size(size),
                len(done.removed),
            )


def prune(
    root: Path, size: int, *, idle: float = IDLE_SECONDS, dry_run: bool = False, keep: Path | None = None
) -> Pruned:
    """Remove what was used longest ago until at most ``size`` bytes are left, never what is in use.

    ``idle`` is how many seconds after its last use a kernel may go. Raises OSError where the root cannot be read.
    """
    found = _items(root)
    before = left = sum(item.size for item in found)
    if before <= size:
        return Pruned(before=before, after=before, removed=(), kept=0)
    mapped, now, removed, kept = _mapped(), time.time(), [], 0
    refused: OSError | None = None
    for item in sorted(found, key=lambda item: (item.used, item.path)):
        if left <= size:
            break
        if item.path == keep or now - item.used < idle or not mapped.isdisjoint(_library(item.path)):
            kept += 1
            continue
        if not _untouched(item):
            continue
        problem = None if dry_run else _removal(root, item.path)
        refused = refused or problem
        if problem is None:
            removed.append(item)
            left -= item.size
    if removed and not dry_run:
        _sweep_index(root)
    return Pruned(before=before, after=left, removed=tuple(removed), kept=kept, refused=refused)


def _items(root: Path) -> list[Item]:
    paths = [path for path in root.iterdir() if not path.name.startswith(".") and (path / MANIFEST).exists()]
    for name in _HIDDEN:
        with contextlib.suppress(OSError):
            paths += (root / name).iterdir()
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(Item(path=path, size=size_of(path), used=_stamp(path)))
    return found


def _stamp(path: Path) -> float:
    """The time of the last use. Raises OSError for what is gone."""
    manifest = path / MANIFEST
    return (manifest if manifest.exists() else path).stat().st_mtime


def _untouched(item: Item) -> bool:
    """Whether nobody has looked it up, or taken it away, since the list was made: that may be a while ago."""
    try:
        return _stamp(item.path) == item.used
    except OSError:
        return False


def _library(path: Path) -> tuple[str, ...]:
    """The library of an entry as /proc/*/maps may tell of it: overlays show a device of their own, hence the path."""
    library = path / "kernel.so"
    try:
        facts = library.stat()
    except OSError:
        return ()
    return f"{os.major(facts.st_dev):x}:{os.minor(facts.st_dev):x}:{facts.st_ino}", os.path.realpath(library)


def _mapped() -> set[str]:
    """Device and inode, and path, of every file that a process of this user has mapped; empty without /proc."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError, ValueError):
            for line in maps.read_text(errors="replace").splitlines():
                _, _, _, device, inode, *path = line.split(None, 5)
                if inode != "0":
                    major, minor = (int(part, 16) for part in device.split(":"))
                    found.update((f"{major:x}:{minor:x}:{inode}", *path))
    return found


def _removal(root: Path, path: Path) -> OSError | None:
    """Take an entry away in one step, so that no look-up meets half of it. What keeps it from going."""
    aside = root / ".staging" / f"{PRUNED}{uuid.uuid4().hex}"
    try:
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(aside)
    except OSError as problem:
        _LOG.warning("cannot remove %s: %s", path, problem)
        return problem
    shutil.rmtree(aside, ignore_errors=True)
    return None


def _sweep_index(root: Path) -> None:
    for record in (root / "index").glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if not (root / json.loads(record.read_bytes())["directory"]).is_dir():
                record.unlink()
