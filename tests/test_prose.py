"""Pages from the operator table are current; texts have no phrases that nobody would search for, and true examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen.operators import OPERATORS
from tests.scripts import ROOT, Forked
from tools import against
from tools.pages import EXAMPLES, docs_files, main

FOLDERS = ("scanops", "codegen", "tools", "benchmarks", "templates", "generated", "docs", "examples")
ENDINGS = (".py", ".cpp", ".h", ".j2", ".cu", ".md")
TEXTS = [
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in ENDINGS),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
]
BANNED = (
    "go on from",
    "goes on from",
    "going on from",
    "of another kind",
    "none of theirs",
    "with a sign and without",
    "on their way",
    "dear to join",
    "what blocks tell",
    "what there is",
    "whoever",
    "turned round",
    "walked back",
    "told twice",
    "told once",
    "past the first cache",
    "what a stretch",
    "in c++'s words",
    "which bound them",
    "the same curve",
    "that there is not",
    "for what is no",
)


def test_no_private_dialect() -> None:
    found = []
    for path in TEXTS:
        text = " ".join(path.read_text(encoding="utf-8", errors="ignore").lower().split())
        found += [(path.relative_to(ROOT).as_posix(), phrase) for phrase in BANNED if phrase in text]
    assert found == []


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


def test_examples_of_docstrings_are_true(forked: Forked, tmp_path: Path) -> None:
    forked(tmp_path, ("docstrings", PROGRAM))


# ---- the pages of docs/ that tools/pages.py renders


def test_docs_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    """The pages of operators, and the table of docs/versions.md."""
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert against.table() in against.PAGE.read_text(encoding="utf-8")


def test_adding_an_operator_leaves_none_behind() -> None:
    known = dict(OPERATORS)
    text = docs_files({name: "" for name in EXAMPLES})["adding-an-operator.md"]
    assert known == OPERATORS
    assert "+__device__ __forceinline__ State combine(State older, State newer) { return ~(older ^ newer); }" in text
    assert "-__device__ __forceinline__ State combine(State older, State newer) { return older ^ newer; }" in text
    assert text.count("```diff") == 3 and "+// spec     bitwise_xnor-i32-n4" in text
