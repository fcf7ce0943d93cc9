"""Pages from the operator table are current, and examples in docstrings are true."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen.operators import OPERATORS
from tests.scripts import Forked
from tools import against
from tools.pages import EXAMPLES, docs_files, main

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
