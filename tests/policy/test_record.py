"""What is recorded, by blocks and into files, by one process and several, and by one that is killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec
from scanops.workload.specfile import add, read
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

SUM = ScanSpec(op="sum", dtype="float32", length=100)
PROD = ScanSpec(op="prod", dtype="float32", length=60)
X = torch.ones(3, 100)


def test_a_block(tmp_path: Path) -> None:
    with scanops.emulate():
        scanops.cumsum(X, 1)
        with scanops.record() as used:
            for _ in range(3):
                scanops.cumsum(X, 1)
            scanops.cumprod(X[:, :60].contiguous(), 1)
        scanops.cumsum(X, 1)
    assert used.counts == {(SUM, "cpu"): 3, (PROD, "cpu"): 1}
    assert (list(used), len(used)) == ([SUM, PROD], 2)
    for _ in range(2):
        used.write(tmp_path / "specs.toml")
    assert read(tmp_path / "specs.toml") == {(SUM, "cpu"): 6, (PROD, "cpu"): 2}


def test_what_torch_computes_asks_for_no_kernel() -> None:
    with scanops.record() as used:
        scanops.cumsum(X, 1)
        with scanops.emulate():
            scanops.cumsum(X[:0], 1)
    assert not used.counts


def test_a_miss_is_recorded_whatever_serves_it() -> None:
    with scanops.record() as used, scanops.emulate(), scanops.policy("fallback"), pytest.warns(RuntimeWarning):
        scanops.cumsum(X, 1)
    assert list(used) == [SUM]


PROGRAM = """
import os, signal, torch, scanops
with scanops.emulate(), scanops.policy("generic"):
    for _ in range({times}):
        scanops.cumsum(torch.ones(3, {length}), 1)
{end}
"""


def program(file: Path, times: int = 1, length: int = 100, end: str = "") -> subprocess.Popen[bytes]:
    code = PROGRAM.format(times=times, length=length, end=end)
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "SCANOPS_RECORD": str(file)})


def test_processes_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "specs.toml"
    running = [program(file, times, length) for times, length in ((2, 100), (3, 100), (1, 104))]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    other = ScanSpec(op="sum", dtype="float32", length=104)
    assert read(file) == {(SUM, "cpu"): 5, (other, "cpu"): 1}
    assert not [path for path in file.parent.iterdir() if path.name not in (file.name, f".{file.name}.lock")]


def test_a_program_that_is_killed_has_recorded_its_specs(tmp_path: Path) -> None:
    file = tmp_path / "specs.toml"
    assert program(file, 3, end="os.kill(os.getpid(), signal.SIGKILL)").wait(timeout=120) == -9
    assert read(file) == {(SUM, "cpu"): 1}


def test_a_file_that_cannot_be_used_stops_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "specs.toml"
    file.write_text("no TOML", encoding="utf-8")
    monkeypatch.setenv("SCANOPS_RECORD", str(file))
    with caplog.at_level(logging.ERROR, "scanops"), scanops.emulate():
        for _ in range(2):
            scanops.cumsum(X, 1)
        scanops.cumprod(X, 1)
    assert len(caplog.records) == 1 and str(file) in caplog.text
    assert file.read_text(encoding="utf-8") == "no TOML"


def test_a_file_written_by_hand_keeps_its_meaning(tmp_path: Path) -> None:
    file = tmp_path / "specs.toml"
    file.write_text('targets = ["sm_80", "sm_90"]\nspecs = ["prod-f32-n60"]\n', encoding="utf-8")
    add(file, {(SUM, "cpu"): 2})
    assert read(file) == {(PROD, "sm_80"): 0, (PROD, "sm_90"): 0, (SUM, "cpu"): 2}
