"""The version of the package, and of what it was tested with; importable without importing anything else."""

from __future__ import annotations

__version__ = "0.1.0"
# First and last version tested, of torch and of Python: docs/versions.md
TESTED = {"torch": ("2.11", "2.15"), "Python": ("3.10", "3.14")}


def note_untested(name: str, version: str) -> str:
    """Return that torch or Python of this version was not tested, in words; an empty string if it was."""
    found, first, last = (tuple(map(int, each.split(".")[:2])) for each in (version, *TESTED[name]))
    return "" if first <= found <= last else f"; {name} {version} was not tested, {' to '.join(TESTED[name])} were"
