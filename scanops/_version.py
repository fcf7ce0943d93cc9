"""The version of the package and those it was tested with, importable without importing anything else."""

from __future__ import annotations

__version__ = "0.1.0"
# First and last version tested, of torch and of Python; docs/versions.md has the results.
TESTED = {"torch": ("2.11", "2.15"), "Python": ("3.10", "3.14")}
