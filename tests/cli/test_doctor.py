"""``scanops doctor``: what is absent is no failure, what is broken is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from scanops import environment, toolchain

Call = Callable[..., Result]
Parsed = Callable[[str], Any]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with torch and nothing else. Returns a folder that is the whole PATH."""
    for row in environment.VARIABLES:
        monkeypatch.delenv(row.name, raising=False)
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "deep" / "store"))
    monkeypatch.setattr(toolchain, "_USUAL_ROOT", tmp_path / "absent")
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "_packaged_ninja", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return path


def findings(answer: Any) -> dict[str, Any]:
    return {check["name"]: check for check in answer["checks"]}


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_this_machine(call: Call, parsed: Parsed) -> None:
    result = call("doctor", "--json")
    answer = parsed(result.stdout)
    assert result.exit_code == (0 if answer["ok"] else 1)
    assert {"torch", "GPU", "driver", "nvcc", "g++", "ninja", "store"} <= set(findings(answer))
    assert answer["can"]["compose"] is True
    assert {row["name"] for row in answer["variables"]} == {row.name for row in environment.VARIABLES}
    assert all(check["next"] for check in answer["checks"] if check["status"] != "ok")


def test_nothing_but_torch(call: Call, parsed: Parsed, bare: Path, tmp_path: Path) -> None:
    result = call("doctor", "--json")
    assert result.exit_code == 0
    answer = parsed(result.stdout)
    status = {name: check["status"] for name, check in findings(answer).items() if name != "driver"}
    assert status == {
        "torch": "ok",
        "GPU": "missing",
        "nvcc": "missing",
        "g++": "missing",
        "ninja": "missing",
        "store": "ok",
    }
    assert answer["can"] == {"run": False, "build": False, "emulate": False, "compose": True}
    assert not (tmp_path / "deep").exists()  # it looks, and leaves nothing
    text = call("doctor")
    assert text.exit_code == 0
    assert "apt-get install g++" in text.stdout
    assert "cuda-toolkit[nvcc" in text.stdout
    last = text.stdout.splitlines()[-1]
    assert last.startswith("This machine can run scans as torch's own operations; it cannot run kernels on its GPU")


def test_a_compiler_is_enough_to_emulate(call: Call, parsed: Parsed, bare: Path) -> None:
    program(bare / "g++", "echo g++ 12")
    answer = parsed(call("doctor", "--json").stdout)
    assert answer["can"] == {"run": False, "build": False, "emulate": True, "compose": True}


def test_an_nvcc_that_does_not_run(call: Call, parsed: Parsed, bare: Path) -> None:
    program(bare / "g++", "echo g++ 12")
    program(bare / "nvcc", "echo cannot load >&2; exit 127")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    answer = parsed(result.stdout)
    assert findings(answer)["nvcc"]["status"] == "broken"
    assert answer["can"]["build"] is False
    assert "broken: nvcc" in answer["verdict"]


def test_an_nvcc_asked_for_that_is_not_there(
    call: Call, parsed: Parsed, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare / "g++", "echo g++ 12")
    monkeypatch.setenv("SCANOPS_NVCC", str(bare / "absent"))
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert findings(parsed(result.stdout))["nvcc"]["status"] == "broken"


@pytest.mark.parametrize("how", ["a file", "others may write"])
def test_a_store_that_cannot_be_used(call: Call, parsed: Parsed, bare: Path, tmp_path: Path, how: str) -> None:
    root = tmp_path / "deep" / "store"
    root.parent.mkdir()
    if how == "a file":
        root.write_text("", encoding="utf-8")
    else:
        root.mkdir()
        root.chmod(0o777)
    result = call("doctor", "--json")
    assert result.exit_code == 1
    store = findings(parsed(result.stdout))["store"]
    assert (store["status"], store["writable"]) == ("broken", False)
    assert store["next"]


def test_a_variable_that_means_nothing(call: Call, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_LOCK_SECONDS", "soon")
    result = call("doctor")
    assert result.exit_code == 1
    assert "SCANOPS_LOCK_SECONDS" in result.stdout.splitlines()[-1]


def test_a_gpu_and_its_target(call: Call, parsed: Parsed, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 7))
    gpu = findings(parsed(call("doctor", "--json").stdout))["GPU"]
    assert (gpu["status"], gpu["target"]) == ("ok", "sm_86")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (3, 5))
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert findings(parsed(result.stdout))["GPU"]["status"] == "broken"


def test_without_torch_nothing_runs() -> None:
    code = "import sys; sys.modules['torch'] = None; from scanops.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install torch" in done.stdout
    assert "Traceback" not in done.stderr
