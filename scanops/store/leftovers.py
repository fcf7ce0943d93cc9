"""What processes that died have left in a store: builds under way, and drafts of files that come in one step."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from scanops.store.lock import is_free
from scanops.store.usage import PRUNED

__all__ = ["sweep"]

_STALE_SECONDS = 3600.0
_DRAFTS = ("index/*/.*.tmp", ".parts/.*.tmp")


def sweep(root: Path) -> None:
    """Remove what is older than an hour; of a build, if nobody holds its lock."""
    for stage in (root / ".staging").glob("*"):
        if _is_old(stage) and (stage.name.startswith(PRUNED) or is_free(root / ".locks", stage.name[:16])):
            shutil.rmtree(stage, ignore_errors=True)
    for pattern in _DRAFTS:
        for draft in root.glob(pattern):
            if _is_old(draft):
                with contextlib.suppress(OSError):
                    draft.unlink()


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _STALE_SECONDS
    except OSError:
        return False
