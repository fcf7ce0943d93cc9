"""``scanops bench``: what it refuses and how; with a GPU, a few cells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

Call = Callable[..., Result]
Parsed = Callable[[str], Any]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_no_gpu(call: Call, parsed: Parsed, no_gpu: None) -> None:
    result = call("bench", "--json")
    assert result.exit_code == 1
    error = parsed(result.stdout)["error"]
    assert error["kind"] == "MissingRequirement"
    assert "GPU" in error["allowed"] and "scanops doctor" in error["next"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--groups", "table,everything"], "everything"),
        (["--filter", "no such cell"], "no such cell"),
    ],
)
def test_a_wrong_request(call: Call, parsed: Parsed, no_gpu: None, words: list[str], named: str) -> None:
    result = call("bench", "--json", *words)
    assert result.exit_code == 2
    error = parsed(result.stdout)["error"]
    assert error["kind"] == "UnsupportedRequest"
    assert named in error["value"]


@pytest.mark.parametrize("text", ["", "[]", '{"cells": []}'])
def test_no_earlier_run(call: Call, parsed: Parsed, no_gpu: None, tmp_path: Path, text: str) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(text, encoding="utf-8")
    result = call("bench", "--json", "--into", str(path))
    assert result.exit_code == 2
    assert "benchmarks grid -o" in parsed(result.stdout)["error"]["allowed"]
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("words", [("-o", "/no/such/folder/x.json"), ("--picture", "/no/such/folder/x.svg")])
def test_a_file_that_cannot_be_written_shows_first(
    call: Call, parsed: Parsed, no_gpu: None, words: tuple[str, ...]
) -> None:
    result = call("bench", "--json", *words)
    error = parsed(result.stdout)["error"]
    assert (result.exit_code, error["kind"]) == (1, "UnusableFile")
    assert words[1] in error["asked"] and "No such file" in error["value"]


def test_the_command_line_starts_without_it() -> None:
    code = "import sys, scanops.cli; print([m for m in sys.modules if m.startswith(('benchmarks', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.gpu
@pytest.mark.slow
def test_a_few_cells_on_a_gpu(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = call("bench", "--filter", "small inputs", "--no-peers", "-o", str(path))
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text(encoding="utf-8"))
    assert len(document["cells"]) == 7
    assert all(cell["ok"] and cell["fraction"] > 0 for cell in document["cells"])
