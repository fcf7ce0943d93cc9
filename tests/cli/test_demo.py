"""``scanops demo``: emulated here, at full size on a GPU; and that its judgement can say no."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from scanops import demo
from scanops.builders.toolchain import find_nvcc
from scanops.errors import BuildFailure
from scanops.fallback import accuracy

Call = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_emulated(process: Process, parsed: Callable[[str], Any]) -> None:
    emulated = {"CUDA_VISIBLE_DEVICES": "", "SCANOPS_NVCC": "/absent/nvcc"}
    done = process("demo", "--json", **emulated)
    assert done.returncode == 0, done.stderr
    answer = parsed(done.stdout)
    assert answer["ok"] is True
    assert "emulated" in answer["device"]
    assert {check["scan"] for check in answer["checks"]} == {scan.title for scan in demo.SCANS}
    for check in answer["checks"]:
        assert check["ok"] is True
        assert 0 <= check["max_error"] <= check["limit"]
        assert check["shape"]
        assert check["build_seconds"] > 0
        assert Path(check["source"]).read_text(encoding="utf-8").splitlines()[2].endswith(check["spec"])
        assert check["milliseconds"] is None
    strategies = {check["plan"].split(":")[0] for check in answer["checks"]}
    assert strategies == {"staged", "block", "columns", "panels", "split"}
    text = process("demo", **emulated)
    assert text.returncode == 0
    assert text.stdout.splitlines()[-1] == "5 of 5 scans right, 10 checks against float64."
    assert text.stdout.count("found in the store") == 10
    assert text.stderr == ""


def test_registers_of_the_full_size(no_gpu: None) -> None:
    try:
        known = find_nvcc().targets
    except BuildFailure:
        pytest.skip("no nvcc")
    scan = demo.SCANS[4]
    check = demo.Step(scan=scan, shape=(3, 5)).run()
    assert check.ok
    assert set(check.resources) == set(demo.TARGETS) & set(known)
    assert all(used.registers and used.spill_store_bytes == 0 for used in check.resources.values())
    assert {kernel.spec for kernel in check.compiled.values()} == {scan.spec}


def test_a_wrong_result_fails(
    call: Call, parsed: Callable[[str], Any], no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANOPS_NVCC", "/absent/nvcc")
    monkeypatch.setattr(demo, "max_error", lambda *_, **__: float("inf"))
    monkeypatch.setattr(demo, "steps", lambda: (demo.Step(scan=demo.SCANS[0], shape=(8, 1000)),))
    result = call("demo", "--json")
    assert result.exit_code == 1
    answer = parsed(result.stdout)
    assert (answer["ok"], answer["checks"][0]["ok"], answer["checks"][0]["max_error"]) == (False, False, None)
    text = call("demo")
    assert text.exit_code == 1
    assert "WRONG" in text.stdout
    assert text.stdout.splitlines()[-1].startswith("0 of 1 scans right")


def test_neither_gpu_nor_compiler(
    call: Call, parsed: Callable[[str], Any], no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    result = call("demo", "--json")
    assert result.exit_code == 1
    error = parsed(result.stdout)["error"]
    assert error["kind"] == "BuildFailure"
    assert "install g++" in error["next"]


@pytest.mark.gpu
@pytest.mark.slow
def test_full_size_on_a_gpu(process: Process) -> None:
    done = process("demo", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["checks"]) == len(demo.SCANS)
    assert all(check["ok"] and check["copy_fraction"] > 0 for check in answer["checks"])


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("length", [31, 1000, 32768])
def test_the_limit_lets_rounding_pass_and_stops_a_slip(op: str, length: int) -> None:
    x = torch.randn(4, length, generator=torch.Generator().manual_seed(1))
    x = x if op == "sum" else x * demo.NOISE + 1
    wide = (torch.cumsum if op == "sum" else torch.cumprod)(x.double(), 1)
    narrow = (torch.cumsum if op == "sum" else torch.cumprod)(x, 1)
    limit = accuracy.limit(op, length)
    assert accuracy.max_error(narrow, x, op, 1) <= limit
    middle = length // 2
    item = x[:, middle : middle + 1].double()
    slips = {
        "lost": wide - item if op == "sum" else wide / item,
        "doubled": wide + item if op == "sum" else wide * item,
        "late": wide.roll(1, 1),
    }
    for name, slip in slips.items():
        wrong = torch.cat([wide[:, :middle], slip[:, middle:]], 1).float()
        assert accuracy.max_error(wrong, x, op, 1) > limit, name
    poisoned = narrow.clone()
    poisoned[1, middle] = torch.nan
    assert accuracy.max_error(poisoned, x, op, 1) == float("inf")
