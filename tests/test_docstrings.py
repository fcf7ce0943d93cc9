"""What docstrings show is what Python prints."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: examples register operators, whose names are taken from then on.
PROGRAM = """
import doctest, importlib, importlib.util, pathlib, pkgutil, scanops, scanops.codegen

names = set()
for package in (scanops, scanops.codegen):  # in a checkout the one does not lie in the other
    names |= {found.name for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")}
failed = attempted = 0
for name in sorted(names):
    if ">>> " in pathlib.Path(importlib.util.find_spec(name).origin).read_text():
        outcome = doctest.testmod(importlib.import_module(name))
        failed, attempted = failed + outcome.failed, attempted + outcome.attempted
print(attempted, "examples")
raise SystemExit(failed or attempted < 40)
"""


def test_examples_of_docstrings_are_true() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
