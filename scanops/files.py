"""Files that people name: written whole or not at all, and one error where the system refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from scanops.errors import UnusableFile

__all__ = ["reading", "replaced", "write_text", "writing"]


def reading(what: str) -> AbstractContextManager[None]:
    """Raises UnusableFile, asked to read ``what``, for whatever the system refuses in the block."""
    return _asked(
        f"read {what}", "a file that this user may read", "name another file, or let its owner make it readable"
    )


def writing(what: str) -> AbstractContextManager[None]:
    """Likewise for writing ``what``."""
    allowed = "a file in a folder that exists and that this user may write, with room left"
    return _asked(f"write {what}", allowed, "name another file")


@contextmanager
def _asked(asked: str, allowed: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UnusableFile(asked, allowed=allowed, value=problem.strerror or str(problem), hint=hint) from problem


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """The name of a draft, which becomes ``path`` in one step at the end of the block. Raises OSError.

    What a link leads to is replaced, and not the link. What is no plain file, /dev/stdout for one, is the draft itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield draft
        with contextlib.suppress(FileNotFoundError):  # there is none yet
            shutil.copymode(place, draft)
        draft.replace(place)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, what: str) -> None:
    """Write a text to a file. Raises UnusableFile."""
    with writing(what), replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")
