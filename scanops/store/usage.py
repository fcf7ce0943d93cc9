"""When kernels were used, and pruning of those that were not for long.

The time of the last use is the modification time of manifest.json, renewed by lookups now and then. It decides what to
remove and nothing else. A kernel counts as in use for an hour after its last use, which covers processes that have
looked it up and not yet loaded it. Processes that have loaded it keep its library when it is removed.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
import uuid
from pathlib import Path

from scanops.errors import UnsupportedRequest
from scanops.files import size_of
from scanops.store.entry import MANIFEST
from scanops.store.root import read_record

_IDLE_SECONDS = 3600.0  # longer than clocks of machines differ
_RENEW_SECONDS = 600.0  # a lookup writes at most this often


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


def prune(root: Path, days: float, *, dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove the kernels and failed builds that were not used for ``days``, and return their folders and bytes.

    None that was used within the hour goes. A time of use in the future is that of a clock that was wrong, and counts
    by its distance. Raises UnsupportedRequest for ``days`` that is no finite number of at least 0, OSError where the
    root cannot be read, or a kernel cannot be removed.
    """
    if not 0 <= days < math.inf:  # NaN compares with nothing
        raise UnsupportedRequest(
            "prune: days must be a number of at least 0",
            allowed="a finite number of days: 30, or 0.5",
            value=f"days={days}",
            hint="name the days since the last use of the kernels to remove; --dry-run lists these",
        )
    removed, seconds = [], max(86400 * days, _IDLE_SECONDS)
    for path in sorted((*root.iterdir(), *root.glob(".failed/*"))):
        failed = path.parent.name == ".failed"
        with contextlib.suppress(
            FileNotFoundError, NotADirectoryError
        ):  # no entry, or one that another process removed
            if abs(time.time() - (path if failed else path / MANIFEST).stat().st_mtime) > seconds:
                removed.append((path, size_of(path)))
                if not dry_run:
                    _remove(root, path)
    for record in () if dry_run else (root / "index").glob("*/*"):
        if read_record(root, record.name) is None:
            record.unlink(missing_ok=True)
    return removed


def _remove(root: Path, path: Path) -> None:
    """Remove an entry, renamed first so that no lookup meets half of it."""
    aside = root / ".staging" / f"pruned-{uuid.uuid4().hex}"
    aside.parent.mkdir(mode=0o700, exist_ok=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
