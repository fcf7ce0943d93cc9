"""The pages rendered from the operator table are current."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import scanops
from scanops.codegen.operators import BUILT_IN, OPERATORS
from tools import pages
from tools.pages import EXAMPLES, docs_files, main

DIRECTORY = Path(__file__).parents[2] / "docs"
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_docs_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_every_operator_has_its_page() -> None:
    text = "".join(page.read_text() for page in (DIRECTORY / "operators").glob("*.md"))
    assert set(BUILT_IN) == set(re.findall(r"^## `(\w+)`$", text, re.MULTILINE))


def test_contributing_shows_the_same_row_as_the_page() -> None:
    """CONTRIBUTING.md and docs/adding-an-operator.md add one operator, with comments in the former."""
    block = CODE.findall((DIRECTORY.parent / "CONTRIBUTING.md").read_text())[0]
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
