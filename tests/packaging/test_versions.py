"""What was tested with which torch and Python: docs/versions.md says what was recorded, and doctor where it ends."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from scanops._version import TESTED, untested
from tools import against


def test_the_table_is_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first and last versions are those that doctor does not warn of; a row replaces that of the same versions."""
    rows = json.loads(against.RESULTS.read_text(encoding="utf-8"))
    assert against.table() == against.PAGE.read_text(encoding="utf-8").split(against.BEGIN)[1].split(against.END)[0]
    for name, key in (("torch", "torch"), ("Python", "python")):
        found = sorted({tuple(map(int, row[key].split(".")[:2])) for row in rows})
        assert tuple(".".join(map(str, each)) for each in (found[0], found[-1])) == TESTED[name]
    for place in ("RESULTS", "PAGE"):
        copy = tmp_path / getattr(against, place).name
        copy.write_bytes(getattr(against, place).read_bytes())
        monkeypatch.setattr(against, place, copy)
    against.record({**rows[0], "failed": 7})
    assert "7 failed" in against.PAGE.read_text(encoding="utf-8")
    again = json.loads(against.RESULTS.read_text(encoding="utf-8"))
    assert len(again) == len(rows) and again[0]["failed"] == 7


@pytest.mark.parametrize(("name", "version"), [("torch", "2.16.0a0+git12"), ("torch", "2.10.1"), ("Python", "3.15.0")])
def test_an_untested_version_is_named(name: str, version: str) -> None:
    assert f"{version} was not tested" in untested(name, version)
    assert untested(name, f"{TESTED[name][1]}.99+cpu") == ""


def test_all_sources_are_of_the_first_python() -> None:
    number = tuple(map(int, TESTED["Python"][0].split(".")))
    for folder in ("scanops", "codegen", "tools", "benchmarks", "examples", "tests"):
        for path in (against.ROOT / folder).rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=number)
