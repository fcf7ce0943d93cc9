"""``scanops demo`` and examples/demo.py: right here, and able to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples import demo
from scanops.builders.toolchain import find_nvcc
from scanops.fallback import scans
from tests.cli.conftest import Ask, Call, parse_json
from tests.store.sources import needs_nvcc


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither GPU nor nvcc, and one shape of each scan."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SCANOPS_NVCC", "/absent/nvcc")
    monkeypatch.setattr(demo, "SCANS", tuple(replace(scan, small=scan.small[:1]) for scan in demo.SCANS))


def test_five_scans(ask: Ask, emulated: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--json"]) == 0
    full = parse_json(capsys.readouterr().out)
    for answer in (full, ask("demo")):
        assert answer["ok"] is True and "emulated" in answer["device"] and len(answer["checks"]) == 5
        assert all(row["ok"] and 0 <= row["max_error"] <= row["limit"] for row in answer["checks"])
    for scan, row in zip(demo.SCANS, full["checks"], strict=True):
        assert (row["call"], row["build_seconds"] > 0, row["milliseconds"]) == (scan.call, True, None)
        assert Path(row["source"]).read_text(encoding="utf-8").splitlines()[2].endswith(row["spec"])


def test_a_wrong_result_fails(
    call: Call, emulated: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scans, "max_error", lambda *_, **__: float("inf"))
    assert demo.main([]) == 1
    printed = capsys.readouterr().out
    assert "WRONG" in printed and printed.splitlines()[-1].startswith("0 of 5 scans right")
    text = call("demo")
    assert (text.exit_code, text.stdout.count("WRONG")) == (1, 5)
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    assert (demo.main([]), "no-such-compiler" in capsys.readouterr().err) == (1, True)


@needs_nvcc
def test_registers_of_the_full_size_kernels() -> None:
    known = find_nvcc().targets
    found = demo._full_size_resources(demo.SCANS[4])
    assert set(found) == set(demo.TARGETS) & set(known)
    assert all(used.registers and used.spill_store_bytes == 0 for used in found.values())


@pytest.mark.gpu
@pytest.mark.slow
def test_full_size_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--json"]) == 0
    answer = parse_json(capsys.readouterr().out)
    assert all(row["ok"] and row["copy_fraction"] > 0 for row in answer["checks"])


@pytest.mark.parametrize(("op", "length"), [("sum", 31), ("sum", 4096), ("prod", 31), ("prod", 4096)])
def test_the_limit_passes_rounding_and_stops_an_error_of_one_item(op: str, length: int) -> None:
    x = torch.randn(4, length, generator=torch.Generator().manual_seed(1))
    x = x if op == "sum" else x * 0.01 + 1
    scan = torch.cumsum if op == "sum" else torch.cumprod
    wide, limit, middle = scan(x.double(), 1), scans.limit(op, length), length // 2
    assert scans.max_error(scan(x, 1), x, op, 1) <= limit
    operands = wide.clone(), x.double()  # which no conversion keeps from being changed
    assert scans.max_error(*operands, op, 1) < limit and operands[0].equal(wide) and operands[1].equal(x.double())
    item = x[:, middle : middle + 1].double()
    lost, doubled = (wide - item, wide + item) if op == "sum" else (wide / item, wide * item)
    for wrong in (lost, doubled, wide.roll(1, 1), wide * float("nan")):
        assert scans.max_error(torch.cat([wide[:, :middle], wrong[:, middle:]], 1).float(), x, op, 1) > limit
