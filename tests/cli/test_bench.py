"""``scanops bench``: the benchmarks of a checkout; with a GPU, a few cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scanops.cli import tune
from tests.cli.conftest import Ask, Call


def test_without_a_checkout(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel has no benchmarks."""
    monkeypatch.setattr(tune, "__file__", str(tmp_path / "scanops" / "cli" / "tune.py"))
    assert ask("bench", "--quick", code=1)["error"]["kind"] == "MissingRequirement"


@pytest.mark.gpu
@pytest.mark.slow
def test_a_few_cells_on_a_gpu(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = call("bench", "--filter", "small inputs", "--no-peers", "-o", str(path))
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text(encoding="utf-8"))
    assert len(document["cells"]) == 7
    assert all(cell["ok"] and cell["fraction"] > 0 for cell in document["cells"])
