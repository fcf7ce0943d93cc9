"""What the laboratory of a GPU does before there is one: kernels of many plans, several at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen.candidates import candidates
from scanops.codegen.spec import ScanSpec
from scanops.errors import MissingCompiler
from scanops.measure import entries_of
from scanops.store.entry import Entry
from tests.store.sources import needs_nvcc, script

PLANS = list(candidates(ScanSpec(op="sum", dtype="float32", length=1000), "sm_90"))[:4]


@needs_nvcc
def test_kernels_of_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    heard: list[tuple[int, int]] = []
    entries = entries_of(PLANS, 2, lambda done, of: heard.append((done, of)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(isinstance(entry, Entry) and entry.resources for entry in entries)
    assert len({entry.identity for entry in entries if isinstance(entry, Entry)}) == 4
    # What is there needs no compiler.
    monkeypatch.setenv("SCANOPS_NVCC", str(script(tmp_path / "nvcc", "exit 1")))
    assert entries_of(PLANS, 1, lambda done, of: None) == entries


def test_a_plan_that_is_not_built_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "no-such-nvcc"))
    assert [type(entry) for entry in entries_of(PLANS, 2, lambda done, of: None)] == [MissingCompiler] * 4
