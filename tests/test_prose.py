"""Pages from the operator table are current; texts have no phrases that nobody would search for, and true examples."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanops
from scanops.codegen.operators import BUILT_IN, OPERATORS
from tests.scripts import ROOT, ran
from tools import against, pages
from tools.pages import EXAMPLES, docs_files, main

FOLDERS = ("scanops", "codegen", "tools", "benchmarks", "templates", "generated", "docs", "examples")
ENDINGS = (".py", ".cpp", ".h", ".j2", ".cu", ".md")
TEXTS = [
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in ENDINGS),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
]
BANNED = (
    "go on from", "goes on from", "going on from", "of another kind", "none of theirs", "with a sign and without",
    "on their way", "dear to join", "what blocks tell", "what there is", "whoever", "turned round", "walked back",
    "told twice", "told once", "past the first cache", "what a stretch", "in c++'s words", "which bound them",
    "the same curve", "that there is not", "for what is no",
)  # fmt: skip


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


def test_examples_of_docstrings_are_true() -> None:
    ran(sys.executable, "-c", PROGRAM)


# ---- the pages of docs/ that tools/pages.py renders

CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_docs_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_every_operator_has_its_page() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "operators").glob("*.md"))
    assert set(BUILT_IN) == set(re.findall(r"^## `(\w+)`$", text, re.MULTILINE))


def test_contributing_shows_the_same_row_as_the_page() -> None:
    """CONTRIBUTING.md and docs/adding-an-operator.md add one operator, with comments in the former."""
    block = CODE.findall((ROOT / "CONTRIBUTING.md").read_text())[0]
    row = ast.parse(block).body[-1]
    assert isinstance(row, ast.Assign)
    added = ast.parse(pages.ADDED.strip().rstrip(","), mode="eval").body
    assert ast.dump(row.value) == ast.dump(added)


def test_adding_an_operator_leaves_none_behind() -> None:
    known = dict(OPERATORS)
    text = docs_files({name: "" for name in EXAMPLES})["adding-an-operator.md"]
    assert known == OPERATORS
    assert "+    return ~(older ^ newer);" in text and "-    return older ^ newer;" in text
    assert text.count("```diff") == 3 and "+// spec     bitwise_xnor-i32-n4" in text


def test_the_page_on_adding_one_is_unchanged_by_following_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "adding-an-operator.md"
    examples = {name: "" for name in EXAMPLES}
    before = docs_files(examples)[page]
    row = eval(pages.ADDED.strip().rstrip(","), {"Operator": scanops.Operator})
    rows = Path(pages.bits.__file__).read_text()
    (tmp_path / "bits.py").write_text(rows.removesuffix(")\n") + pages.ADDED + ")\n")
    monkeypatch.setattr(pages, "bits", SimpleNamespace(__file__=str(tmp_path / "bits.py")))
    monkeypatch.setitem(OPERATORS, row.name, row)
    assert docs_files(examples)[page] == before
    assert OPERATORS[row.name] is row, "rendering the page took an operator of the table away"


# ---- the table of docs/versions.md: a cell holds what was run, and nothing else


def test_the_table_has_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last run of the same versions, device and builder counts; versions are in the order of their numbers."""
    page, text = tmp_path / "versions.md", against.PAGE.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(against, "RESULTS", tmp_path / "versions.json")
    monkeypatch.setattr(against, "PAGE", page)
    run: dict[str, Any] = {"torch": "2.15.0+cu132", "python": "3.9.1", "device": "CPU", "builder": "emulated"}
    run |= {"builds": ["nvrtc"], "passed": 7, "failed": 2, "date": ""}
    gpu = {**run, "python": "3.11.7", "device": "a GPU", "builder": "nvcc", "builds": [], "failed": 0}
    for row in (gpu, {**run, "passed": 1}, run):
        against.record(row)
    first, second = against.table().splitlines()[2:]
    assert first == "| 2.15.0+cu132 | 3.9.1 | 7 passed, 2 failed | not run | builds, not run | not run |"
    assert second == "| 2.15.0+cu132 | 3.11.7 | not run | not run | not run | 7 passed on a GPU |"
    assert page.read_text(encoding="utf-8").count(first) == 1


def test_the_page_is_current() -> None:
    assert against.table() in against.PAGE.read_text(encoding="utf-8")
