"""The benchmark of sharded scans on two ranks without GPUs: a line of JSON for each cell and each trial."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.scripts import ROOT, ran


def rows_of(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The lines that the benchmark of two ranks writes, without the first, which says on what it ran."""
    first, *rows = written_by(folder, "distributed", "--ranks", "2", *words)
    assert first["ranks"] == 2
    return rows


def written_by(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The lines that a benchmark writes, which are those that it prints."""
    file = folder / "rows.jsonl"
    said = ran(sys.executable, "-m", "benchmarks", *words, "--out", file, folder=ROOT)
    lines = file.read_text().splitlines()
    assert [line for line in said.stdout.splitlines() if line.startswith("{")] == lines
    return [json.loads(line) for line in lines]


def test_cells(tmp_path: Path) -> None:
    forward, backward = rows_of(tmp_path, "--only", "rows 16 x 256 sum")
    assert forward["error"] < 1e-6 and forward["auto"] in ("onepass", "twopass") and backward["backward"]
    for row in (forward, backward):
        assert min(row[f"{name}_{unit}"] for name in ("onepass", "twopass") for unit in ("ms", "host_us")) > 0


def test_cells_that_no_time_is_left_for(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "--only", "columns 2 x 64 x 1024 linear", "--seconds", "-1")
    assert row["skipped"] == "columns 2 x 64 x 1024"


def test_checks_and_calls_that_differ(tmp_path: Path) -> None:
    checks = rows_of(tmp_path, "--checks", "--requests", "20")
    assert [row["check"] for row in checks] == ["graph", "errors", "backward order", "requests"]
    assert checks[-1]["said"].startswith("20 calls")
    (tmp_path / "rows.jsonl").unlink()
    trials = rows_of(tmp_path, "--mismatches", "4")
    assert [(row["method"], row["typed"]) for row in trials] == [("onepass", 2), ("twopass", 2)] * 2


def test_kernels_of_ranks_on_one_gpu(tmp_path: Path) -> None:
    first, row = written_by(tmp_path, "linked_kernels", "--only", "columns 2 x 300 x 64 linear torch.float32")
    assert "emulated" in first["gpu"] and row["cell"] == "columns 2 x 300 x 64"
    ranks = ("one_gpu", "sends", "receives_and_sends", "receives")
    assert all(row[f"{way}{rank}_ms"] > 0 for way in ("", "backward_") for rank in ranks)
