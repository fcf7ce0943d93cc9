"""``scanops bench``: the benchmarks of a checkout, what they refuse and how; with a GPU, a few cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scanops.cli import tune
from tests.cli.conftest import Ask, Call


@pytest.mark.parametrize(
    ("words", "code", "kind", "named"),
    [
        ((), 1, "MissingRequirement", "GPU"),
        (("--groups", "table,everything"), 2, "UnsupportedRequest", "everything"),
        (("--filter", "no such cell"), 2, "UnsupportedRequest", "no such cell"),
        (("--into", "earlier.json"), 2, "UnsupportedRequest", "earlier.json"),
        (("-o", "/no/such/folder/x.json"), 1, "UnusableFile", "/no/such/folder/x.json"),
        (("--picture", "/no/such/folder/x.svg"), 1, "UnusableFile", "/no/such/folder/x.svg"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_measured(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, kind: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "earlier.json").write_text('{"cells": []}', encoding="utf-8")
    error = ask("bench", *words, code=code)["error"]
    assert error["kind"] == kind and named in " ".join(error.values())
    assert (tmp_path / "earlier.json").read_text(encoding="utf-8") == '{"cells": []}'


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
