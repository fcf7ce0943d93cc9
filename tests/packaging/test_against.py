"""The table of docs/versions.md: a cell holds what was run, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import against


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
