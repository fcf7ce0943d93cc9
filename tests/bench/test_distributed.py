"""The benchmark of sharded scans on two ranks without GPUs: a line of JSON for each cell and each trial."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.scripts import ROOT, ran

MEASURE, TRY = ("benchmarks", "distributed"), ("tests.distributed.gpu_trials",)


def rows_of(folder: Path, program: tuple[str, ...], *words: str) -> list[dict[str, Any]]:
    """The lines that a program of two ranks writes, which are those that it prints, but for what it ran on."""
    file = folder / "rows.jsonl"
    said = ran(sys.executable, "-m", *program, "--ranks", "2", *words, "--out", file, folder=ROOT)
    lines = file.read_text().splitlines()
    assert [line for line in said.stdout.splitlines() if line.startswith("{")] == lines
    first, *rows = map(json.loads, lines)
    assert first["ranks"] == 2
    return rows


def test_cells(tmp_path: Path) -> None:
    forward, backward = rows_of(tmp_path, MEASURE, "--only", "rows 16 x 256 sum")
    assert forward["error"] < 1e-6 and forward["auto"] in ("onepass", "twopass") and backward["backward"]
    for row in (forward, backward):
        assert min(row[f"{name}_{unit}"] for name in ("onepass", "twopass") for unit in ("ms", "host_us")) > 0


def test_cells_that_no_time_is_left_for(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, MEASURE, "--only", "columns 2 x 64 x 1024 linear", "--seconds", "-1")
    assert row["skipped"] == "columns 2 x 64 x 1024"


def test_checks_and_calls_that_differ(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, TRY, "--checks", "--requests", "20", "--mismatches", "2")
    checks, trials = rows[:-2], rows[-2:]
    assert [row["check"] for row in checks] == ["graph", "errors", "backward order", "requests"]
    assert checks[-1]["said"].startswith("20 calls")
    assert [(row["method"], row["typed"]) for row in trials] == [("onepass", 2), ("twopass", 2)]
