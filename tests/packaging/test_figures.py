"""The figures of structure that tools/figures.py prints: what is counted is what is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
    assert {"scanops/api.py", "scanops/store/__init__.py", "codegen/planner.py"} <= files
    assert found["functions of a first call, with codegen"].value == len(functions)


def test_a_fused_call_runs_files_of_fusion(found: dict[str, figures.Figure]) -> None:
    beyond = figures.first_call(figures.FUSED)[1] - figures.first_call()[1]
    assert "scanops/fusion/functions.py" in beyond
    assert found["files of a first fused call beyond a plain one"].value == len(beyond)
    assert found["functions of a repeated sharded call"].value > 0


def test_names_and_tags_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    one, other = tmp_path / "a" / "plan.py", tmp_path / "b" / "plan.py"
    one.parent.mkdir()
    other.parent.mkdir()
    one.write_text("class Work:\n    def kept(self): ...\n    @property\n    def held(self): ...\ndef need(): ...\n")
    other.write_text("Work = int\nKey = str\ndef _parsed(): ...\n")
    files = ["a/plan.py", "b/plan.py"]
    assert figures.find_repeated_names([one, other]) == {
        "classes": {"Work": files},
        "aliases": {},
        "modules": {"plan": files},
    }
    assert figures.participles([one, other]) == ["b/plan.py:3 _parsed", "a/plan.py:2 kept"][::-1]
    template = tmp_path / "a.j2"
    template.write_text('{% if a %}\nx\n{{ "int n = 1;" if b }} {{ name("y") }}\n{% endif %}\n')
    assert figures.tag_percent([template]) == 75.0
    assert figures.find_embedded_statements(template.read_text()) == ["int n = 1;"]


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
