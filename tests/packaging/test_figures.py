"""The figures of structure that tools/figures.py prints: what is counted is what is there."""

from __future__ import annotations

import json
import shutil

import pytest

from tools import figures

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (figures.ROOT / ".git").exists() or shutil.which("cc") is None,
    reason="needs a git checkout and a C compiler",
)


@pytest.fixture(scope="module")
def found() -> dict[str, figures.Figure]:
    """Every figure of structure by name."""
    return {figure.name: figure for figure in figures.structure()}


def test_docstrings_have_five_words(found: dict[str, figures.Figure]) -> None:
    short = found["docstrings of fewer than five words"]
    assert (short.value, short.note) == (0, "")


def test_a_first_call_is_counted(found: dict[str, figures.Figure]) -> None:
    functions, files = figures.first_call()
    assert any(name.startswith("scanops/api.py:") and name.endswith(" cumsum") for name in functions)
    assert {"scanops/api.py", "scanops/store/__init__.py", "codegen/plan.py"} <= files
    assert found["functions of a first call, with codegen"].value == len(functions)


def test_figures_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        figures, "structure", lambda: [figures.Figure("lines of a", 2_000), figures.Figure("b", 1, "x")]
    )
    figures.main(["--structure", "--json"])
    assert [figure["value"] for figure in json.loads(capsys.readouterr().out)] == [2_000, 1]
    figures.main(["--structure"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["lines", "of", "a", "2,000"],
        ["b", "1", "x"],
    ]
