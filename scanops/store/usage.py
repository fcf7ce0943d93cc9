"""Pruning: the kernels used longest ago go first, and none that is in use.

The time of the last use is the modification time of manifest.json, renewed by lookups now and then. It decides what to
remove and nothing else. A kernel counts as in use for an hour after its last use, which covers processes that have
looked it up and not yet loaded it. Processes that have loaded it keep its library when it is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from scanops.files import parse_object, read_file, size_of
from scanops.store.entry import MANIFEST

IDLE_SECONDS = 3600.0
_SKEW_SECONDS = 3600.0  # how far clocks of machines may differ
_RENEW_SECONDS = 600.0  # a lookup writes at most this often
_LOG = logging.getLogger("scanops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry or a failed build of a store."""

    path: Path
    size: int  # bytes
    used: float  # time of the last use in seconds since 1970, as the file system has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The kernels that ``prune`` removed and kept."""

    before: int  # bytes
    after: int  # bytes; above the limit where the rest is in use
    removed: tuple[Item, ...]  # in a dry run: what would be removed
    kept: int  # how many should have gone and are in use
    refused: OSError | None = None  # why the first that could not be removed was not


def touch(directory: Path) -> bool:
    """Record that an entry is used, where the store can be written. Return whether the entry is still there."""
    manifest = directory / MANIFEST
    try:
        if abs(time.time() - manifest.stat().st_mtime) > _RENEW_SECONDS:
            os.utime(manifest)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def prune(root: Path, size: float, *, idle: float = IDLE_SECONDS, dry_run: bool = False) -> Pruned:
    """Remove what was used longest ago until at most ``size`` bytes are left, nothing that was used lately.

    ``idle`` is how many seconds after its last use a kernel may go. A time more than an hour in the future, from a
    clock that was wrong, counts as used longest ago. Raises OSError where the root cannot be read.
    """
    found = _items(root)
    before = left = sum(item.size for item in found)
    if before <= size:
        return Pruned(before=before, after=before, removed=(), kept=0)
    now, removed, kept = time.time(), [], 0
    refused: OSError | None = None
    for item in sorted(found, key=lambda item: (-_age(item.used, now), item.path)):
        if left <= size:
            break
        if _age(item.used, now) < idle:
            kept += 1
        elif _last_use(item.path) == item.used:  # else it was looked up, or removed, since the list was made
            problem = None if dry_run else _removal(root, item.path)
            refused = refused or problem
            if problem is None:
                removed.append(item)
                left -= item.size
    if removed and not dry_run:
        for record in (root / "index").glob("*/*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if not (root / parse_object(read_file(record, 4096))["directory"]).is_dir():
                    record.unlink()
    return Pruned(before=before, after=left, removed=tuple(removed), kept=kept, refused=refused)


def _items(root: Path) -> list[Item]:
    paths = [path for path in root.iterdir() if not path.name.startswith(".") and (path / MANIFEST).exists()]
    with contextlib.suppress(OSError):
        paths += (root / ".failed").iterdir()
    stamped = [(path, _last_use(path)) for path in paths]
    return [Item(path=path, size=size_of(path), used=used) for path, used in stamped if used is not None]


def _last_use(path: Path) -> float | None:
    """Return the time of the last use; None for what is gone."""
    for place in (path / MANIFEST, path):
        with contextlib.suppress(OSError):
            return place.stat().st_mtime
    return None


def _age(used: float, now: float) -> float:
    """Return the seconds since ``used``: 0 for a time slightly in the future, infinite for one far in the future."""
    return float("inf") if used > now + _SKEW_SECONDS else max(0.0, now - used)


def _removal(root: Path, path: Path) -> OSError | None:
    """Remove an entry, renamed first so that no lookup meets half of it. Return why that was not possible."""
    aside = root / ".staging" / f"pruned-{uuid.uuid4().hex}"
    try:
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(aside)
    except OSError as problem:
        _LOG.warning("cannot remove %s: %s", path, problem)
        return problem
    shutil.rmtree(aside, ignore_errors=True)
    return None
