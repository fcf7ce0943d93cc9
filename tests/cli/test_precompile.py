"""``scanops record``, ``scanops precompile``, and a program that then misses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops.codegen.spec import ScanSpec
from scanops.runtime.kernels import is_built
from scanops.specfile import read
from tests.store.sources import needs_cxx, needs_nvcc, script

Call = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Parsed = Callable[[str], Any]

TRAIN = """
import sys, torch, scanops
print("training", *sys.argv[1:])
with scanops.emulate():
    for _ in range(3):
        x = torch.ones(4, 60, requires_grad=True)
        scanops.cumsum(x, 1, reverse=True).sum().backward()
    scanops.cumprod(torch.ones(2, 33), 1, mask=torch.ones(2, 33, dtype=torch.bool))
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    for name in ("SCANOPS_POLICY", "SCANOPS_RECORD"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "train.py"
    path.write_text(TRAIN, encoding="utf-8")
    return path


@needs_cxx
@pytest.mark.slow
def test_record_precompile_never(train: Path, process: Process, parsed: Parsed, tmp_path: Path) -> None:
    specs, pack = tmp_path / "specs.toml", tmp_path / "pack"
    recorded = process("record", "-o", str(specs), "--", sys.executable, str(train), "--epochs", "3")
    assert (recorded.returncode, recorded.stdout) == (0, "training --epochs 3\n"), recorded.stderr
    assert "3 kernels" in recorded.stderr
    counts = {spec.slug: count for (spec, _), count in read(specs).items()}
    # Forwards, backwards from the one number that a total's gradient is, and the product.
    assert counts == {"sum-f32-n60-reverse": 3, "sum-f32-n60-strided": 3, "prod-f32-n33-mask_b8": 1}
    built = parsed(process("precompile", str(specs), "-o", str(pack), "--jobs", "2", "--json").stdout)
    assert (built["ok"], built["built"], built["found"]) == (True, 3, 0)
    assert built["kernels_per_minute"] > 0 and built["bytes_per_kernel"] > 1000
    again = process("precompile", str(specs), "-o", str(pack))
    assert again.returncode == 0 and again.stdout.startswith("0 built, 3 found, 0 failed")
    for store, code in ((pack, 0), (tmp_path / "empty", 1)):
        environment = {**os.environ, "SCANOPS_STORE": str(store), "SCANOPS_POLICY": "never"}
        done = subprocess.run([sys.executable, str(train)], env=environment, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


@needs_nvcc
def test_for_a_gpu_that_is_not_here(
    call: Call, parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = tmp_path / "specs.toml"
    specs.write_text('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = 100\n', encoding="utf-8")
    pack = tmp_path / "pack"
    answer = parsed(call("precompile", str(specs), "--targets", "sm_90", "-o", str(pack), "--json").stdout)
    assert (answer["ok"], answer["built"]) == (True, 1)
    monkeypatch.setenv("SCANOPS_STORE", str(pack))
    assert is_built(ScanSpec(op="sum", dtype="float32", length=100), "sm_90")
    monkeypatch.setenv("SCANOPS_POLICY", "never")
    from scanops import compile, prepare

    assert compile(ScanSpec(op="sum", dtype="float32", length=100), "sm_90").path.is_relative_to(pack)
    assert prepare(["sum-f32-n100"], ["sm_90"])[0].target == "sm_90"


@needs_cxx
def test_one_failure_stops_no_other(
    call: Call, parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = tmp_path / "specs.toml"
    specs.write_text('specs = ["sum-f32-n7", "sum-f32-n8"]\ntargets = ["cpu"]\n', encoding="utf-8")
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    result = call("precompile", str(specs), "-o", str(tmp_path / "pack"), "--json")
    answer = parsed(result.stdout)
    assert (result.exit_code, answer["ok"], answer["failed"]) == (1, False, 2)
    assert {kernel["error"]["kind"] for kernel in answer["kernels"]} == {"MissingCompiler"}


def test_what_is_wrong_shows_before_anything_is_built(call: Call, tmp_path: Path) -> None:
    specs, pack = tmp_path / "specs.toml", tmp_path / "pack"
    specs.write_text('specs = ["sum-f32-n7"]\n', encoding="utf-8")
    for words in ((), ("--targets", "sm_1")):
        assert call("precompile", str(specs), "-o", str(pack), *words).exit_code == 2
    specs.write_text("specs = 3", encoding="utf-8")
    result = call("precompile", str(specs), "-o", str(pack), "--targets", "cpu")
    assert result.exit_code == 2 and "BadSpecFile" in result.stderr
    assert call("precompile", str(tmp_path / "absent.toml"), "-o", str(pack), "--targets", "cpu").exit_code == 2
    assert not pack.exists()


def test_record_ends_as_the_program_does(process: Process, parsed: Parsed, tmp_path: Path) -> None:
    file = str(tmp_path / "specs.toml")
    ended = process("record", "--json", "-o", file, "--", sys.executable, "-c", "print('words'); raise SystemExit(7)")
    assert ended.returncode == 7
    assert parsed(ended.stdout)["exit_code"] == 7
    assert "words" in ended.stderr
    killed = process("record", "-o", file, "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert killed.returncode == 137
    absent = process("record", "-o", file, "--", str(tmp_path / "no-such-program"))
    assert absent.returncode == 1 and "MissingRequirement" in absent.stderr


def test_where_nothing_can_be_written(call: Call, tmp_path: Path) -> None:
    specs = tmp_path / "specs.toml"
    specs.write_text('specs = ["sum-f32-n7"]\n', encoding="utf-8")
    for words in (
        ("precompile", str(specs), "--targets", "cpu", "-o", str(specs / "pack")),
        ("record", "-o", str(specs / "more.toml"), "--", sys.executable, "-c", "print('it ran')"),
    ):
        result = call(*words)
        assert result.exit_code == 1 and "next:" in result.stderr and not result.stdout


def test_a_spec_file_that_names_no_kernel(call: Call, tmp_path: Path) -> None:
    (tmp_path / "specs.toml").touch()
    result = call("precompile", str(tmp_path / "specs.toml"), "--targets", "cpu", "-o", str(tmp_path / "pack"))
    assert result.exit_code == 2 and "names none" in result.stderr
    assert not (tmp_path / "pack").exists()


@needs_cxx
def test_specs_from_standard_input(process: Process, tmp_path: Path) -> None:
    words = ("precompile", "-", "--targets", "cpu", "-o", str(tmp_path / "pack"))
    done = process(*words, input='specs = ["sum-f32-n7"]\n')
    assert (done.returncode, done.stdout[:7]) == (0, "1 built"), done.stderr
    assert process(*words, input="specs = 3").returncode == 2


@needs_cxx
def test_what_kernels_fail_of_together_is_said_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = tmp_path / "specs.toml"
    specs.write_text('specs = ["sum-f32-n7", "sum-f32-n8"]\n', encoding="utf-8")
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    for words in (
        ("precompile", str(specs), "-o", str(tmp_path / "pack"), "--targets"),
        ("build", "sum-f32-n7", "sum-f32-n8", "--target"),
    ):
        stderr = call(*words, "cpu").stderr
        assert stderr.count("MissingCompiler") == 1
        assert {"sum-f32-n7 for cpu", "sum-f32-n8 for cpu"} <= set(stderr.partition("of:")[2].strip().split(", "))


@needs_cxx
def test_an_interruption_begins_nothing_more(train: Path, tmp_path: Path) -> None:
    specs, log = tmp_path / "specs.toml", tmp_path / "log"
    specs.write_text(f"specs = {[f'sum-f32-n{length}' for length in range(3, 43)]}\n", encoding="utf-8")
    slow = script(tmp_path / "g++", f'echo "$*" >> {log}; sleep 0.2; exec {shutil.which("g++")} "$@"')
    words = [
        "precompile",
        str(specs),
        "--targets",
        "cpu",
        "-o",
        str(tmp_path / "pack"),
        "--jobs",
        "2",
        "--memory",
        "2",
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "scanops", *words],
        env={**os.environ, "SCANOPS_CXX": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell starts background jobs with SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(600):
        if log.exists() and "kernel.o" in log.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(output)["error"]["kind"] == "KeyboardInterrupt"
    assert len(list((tmp_path / "pack").glob("*/manifest.json"))) < 20
