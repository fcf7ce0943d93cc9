"""benchmarks/accuracy.py: what it measures, and that docs/accuracy.md is what was measured last."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import accuracy as script


def test_errors_in_units_of_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.5, 2.0, 1000.0, math.inf], dtype=torch.float64)
    y = torch.tensor([1.0, 1.5 + 2**-23, 2.0 - 2**-22, 1000.0 + 2**-14, 0.0])
    found = script.error(y, exact)
    assert found.max == 2**-14 and found.max_ulp == 1.0
    assert found.mean_ulp == 3 / 4 and found.mean == (2**-23 + 2**-22 + 2**-14) / 4
    for wrong in (math.nan, math.inf):  # is no small error
        assert script.error(torch.tensor([wrong, 1.0]), torch.ones(2, dtype=torch.float64)).max == math.inf


def test_the_page_is_current() -> None:
    document = json.loads(script.JSON.read_text())
    assert script.PAGE.read_text() == script.page(document)
    assert {(row["op"], row["dtype"]) for row in document["rows"]} == {
        (data.op, str(data.dtype).removeprefix("torch.")) for data in script.DATA
    }


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error above torch's is said."""
    data = script.Data(name="ones", op="sum", dtype=torch.bfloat16, length=300, draw=torch.ones)
    monkeypatch.setattr(script, "DATA", (data,))
    paths = tmp_path / "a.json", tmp_path / "a.md"
    assert script.main(["--device", "cpu", "--json", str(paths[0]), "--page", str(paths[1])]) == 0
    assert "nowhere above" in paths[1].read_text() and "2 lines, 0 with" in capsys.readouterr().out
    document = json.loads(paths[0].read_text())
    row = document["rows"][0]
    assert row["ours"] == row["torchs"] and row["ours"]["max_ulp"] == 0.5
    row["ours"]["max"] *= 2
    assert "* sum of ones in bfloat16, rows: max\n" in script.page(document)
