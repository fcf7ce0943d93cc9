"""``scanops demo``: emulated here, at full size on a GPU; and its check against float64 must be able to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from scanops.builders.toolchain import find_nvcc
from scanops.cli import demo
from scanops.errors import BuildFailure
from scanops.fallback import scans

Call = Callable[..., Result]
Parsed = Callable[[str], Any]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_NVCC", "/absent/nvcc")


def test_emulated(call: Call, parsed: Parsed, no_gpu: None, no_nvcc: None) -> None:
    result = call("demo", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = parsed(result.stdout)
    assert answer["ok"] is True and "emulated" in answer["device"]
    assert len(answer["checks"]) == 10
    assert [row["call"] for row in answer["checks"][::2]] == [scan.call for scan in demo.SCANS]
    for row in answer["checks"]:
        assert row["ok"] and 0 <= row["max_error"] <= row["limit"]
        assert row["build_seconds"] > 0 and row["milliseconds"] is None
        assert Path(row["source"]).read_text(encoding="utf-8").splitlines()[2].endswith(row["spec"])
    strategies = {row["plan"].split(":")[0] for row in answer["checks"]}
    assert strategies == {"staged", "block", "columns", "panels", "split"}


def test_registers_of_the_full_size_kernels(no_gpu: None) -> None:
    try:
        known = find_nvcc().targets
    except BuildFailure:
        pytest.skip("no nvcc")
    found = demo._full_size_resources(demo.SCANS[4])
    assert set(found) == set(demo.TARGETS) & set(known)
    assert all(used.registers and used.spill_store_bytes == 0 for used in found.values())


def test_a_wrong_result_fails(
    call: Call, parsed: Parsed, no_gpu: None, no_nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "max_error", lambda *_, **__: float("inf"))
    monkeypatch.setattr(demo, "SCANS", (replace(demo.SCANS[0], small=((8, 1000),)),))
    result = call("demo", "--json")
    answer = parsed(result.stdout)
    assert (result.exit_code, answer["ok"], answer["checks"][0]["max_error"]) == (1, False, None)
    text = call("demo")
    assert (text.exit_code, "WRONG" in text.stdout) == (1, True)
    assert text.stdout.splitlines()[-1].startswith("0 of 1 scans right")


def test_neither_gpu_nor_compiler(call: Call, parsed: Parsed, no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    result = call("demo", "--json")
    error = parsed(result.stdout)["error"]
    assert (result.exit_code, error["kind"]) == (1, "MissingCompiler")


@pytest.mark.gpu
@pytest.mark.slow
def test_full_size_on_a_gpu(call: Call, parsed: Parsed) -> None:
    result = call("demo", "--json")
    assert result.exit_code == 0, result.output
    answer = parsed(result.stdout)
    assert len(answer["checks"]) == len(demo.SCANS)
    assert all(row["ok"] and row["copy_fraction"] > 0 for row in answer["checks"])


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("length", [31, 1000, 4096])
def test_the_limit_passes_rounding_and_stops_an_error_of_one_item(op: str, length: int) -> None:
    x = torch.randn(4, length, generator=torch.Generator().manual_seed(1))
    x = x if op == "sum" else x * 0.01 + 1
    scan = torch.cumsum if op == "sum" else torch.cumprod
    wide, limit, middle = scan(x.double(), 1), scans.limit(op, length), length // 2
    assert scans.max_error(scan(x, 1), x, op, 1) <= limit
    item = x[:, middle : middle + 1].double()
    lost, doubled = (wide - item, wide + item) if op == "sum" else (wide / item, wide * item)
    for wrong in (lost, doubled, wide.roll(1, 1), wide * float("nan")):
        assert scans.max_error(torch.cat([wide[:, :middle], wrong[:, middle:]], 1).float(), x, op, 1) > limit
