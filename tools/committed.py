"""Committed files that a generator writes: write what is stale, or report it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "differences", "run"]

ROOT = Path(__file__).resolve().parent.parent
DIFF_LINES = 20  # of one stale file, in a report

Rendered = Callable[[Path], Mapping[str, str]]  # folder -> text of every file that belongs there, by path within it
Owned = Callable[[Path], Iterable[str]]  # folder -> the files there that this generator may remove


def run(
    document: str | None, folder: str, render: Rendered, owned: Owned, arguments: Sequence[str] | None = None
) -> int:
    """Write the rendered files below ``folder`` and remove owned ones that are no longer rendered.

    With ``--check`` write nothing, print what differs, and return 1 if anything does. ``--directory`` names another
    folder.
    """
    parser = argparse.ArgumentParser(description=(document or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("--directory", type=Path, default=ROOT / folder, help="where the files are")
    given = parser.parse_args(arguments)
    directory: Path = given.directory
    wanted = render(directory)
    names = {name for name in {*wanted, *owned(directory)} if (directory / name).is_file()}
    found = {name: (directory / name).read_text(encoding="utf-8") for name in names}
    stale = differences(wanted, found)
    if given.check:
        print(
            *stale.values(),
            *([f"{len(stale)} files in {directory} are stale; run make {folder}"] * bool(stale)),
            sep="\n",
        )
        return int(bool(stale))
    for name in stale:
        if name in wanted:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(wanted[name], encoding="utf-8", newline="\n")
        else:
            (directory / name).unlink()
        print(f"{'wrote' if name in wanted else 'removed'} {name}")
    print(f"{len(wanted)} files in {directory} are current")
    return 0


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with each file that differs, by name; empty where ``found`` is what is ``wanted``."""
    messages = {name: f"{name}: nothing generates it" for name in sorted(found.keys() - wanted.keys())}
    messages |= {name: f"{name}: missing" for name in sorted(wanted.keys() - found.keys())}
    for name in sorted(wanted.keys() & found.keys()):
        if found[name] != wanted[name]:
            messages[name] = f"{name}: stale\n{_diff(found[name], wanted[name])}"
    return messages


def _diff(old: str, new: str) -> str:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "rendered", lineterm="", n=1))
    more = [f"... {len(lines) - DIFF_LINES} lines more"] if len(lines) > DIFF_LINES else []
    return "\n".join(f"    {line}" for line in [*lines[:DIFF_LINES], *more])
