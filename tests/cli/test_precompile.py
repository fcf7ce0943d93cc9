"""``scanops record`` and ``scanops precompile``: from a program to a folder with the kernels it asks for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from examples import demo
from scanops import ScanSpec, specfile
from scanops.builders.toolchain import find_nvcc
from scanops.errors import MissingKernel
from scanops.fallback import scans
from tests.cli.conftest import Ask, Call, parse_json
from tests.store.sources import needs_nvcc, script

PROGRAM = """
import sys, torch, scanops
with scanops.emulate(), scanops.policy("fallback"):
    for _ in range(3):
        scanops.cumsum(torch.ones(4, 60), 1, reverse=True)
sys.exit(int(sys.argv[1]))
"""
FUSED = """
import torch, scanops
x, w = torch.rand(3, 40, requires_grad=True), torch.rand(40)
with scanops.emulate():
    y = scanops.scan((x, w), "sum", 1, map=lambda x, w: x.exp() * w * 0.0625, then=lambda y, x, w: y * x)
    y.sum().backward()
assert torch.allclose(y, (x.exp() * w * 0.0625).cumsum(1) * x)
"""
ON_CPU = "import torch, scanops; scanops.cumsum(torch.ones(9), 0)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a program; the store is below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    for name in ("SCANOPS_POLICY", "SCANOPS_RECORD"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "two.toml").write_text('specs = ["sum-f32-n7", "sum-f32-n8"]\n', encoding="utf-8")
    return tmp_path


def test_a_program_that_is_run_twice(call: Call, ask: Ask, folder: Path) -> None:
    """The exit status is the program's, a second run is added to the same file, and its pack serves the kernel."""
    words = ("record", "--json", "-o", "specs.toml", "--", sys.executable, "program.py")
    first, second = (call(*words, status) for status in ("7", "0"))
    assert (first.exit_code, second.exit_code) == (7, 0), second.stderr
    kernels = parse_json(second.stdout)["kernels"]
    assert [(kernel["spec"], kernel["count"]) for kernel in kernels] == [("sum-f32-n60-reverse", 6)]
    assert ask("precompile", "specs.toml", "-o", "pack")["built"] == 1
    with pytest.MonkeyPatch.context() as patch, scanops.policy("never"), scanops.emulate():
        patch.setenv("SCANOPS_STORE", "pack")
        assert scanops.cumsum(torch.ones(4, 60), 1, reverse=True)[0, 0] == 60
        with pytest.raises(MissingKernel):
            scanops.cumsum(torch.ones(4, 61), 1)


def test_a_program_with_expressions(call: Call, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels, with those of the gradient, are built from the recording and serve it where nothing may be built."""
    program = [sys.executable, "-c", FUSED]
    assert call("record", "-o", "specs.toml", "--", *program).exit_code == 0
    specs = [spec for spec, _ in specfile.load(folder / "specs.toml").wanted]
    assert len(specs) == 2 and all(ScanSpec.parse(spec.slug) == spec for spec in specs)
    for words in (
        ("precompile", "specs.toml", "-o", "pack"),
        ("pack", "pack", "-o", "fused.tar.xz"),
        ("unpack", "fused.tar.xz", "there"),
    ):
        assert call(*words).exit_code == 0
    monkeypatch.setenv("SCANOPS_POLICY", "never")
    monkeypatch.setenv("SCANOPS_STORE", "empty")
    with pytest.raises(MissingKernel) as caught:
        exec(FUSED, {})
    assert "--import FILE" in caught.value.hint
    monkeypatch.setenv("SCANOPS_STORE", str(folder / "there"))
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "scanops", "generate", specs[0].slug]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "the expressions of a short name are not known here" in done.stderr
    assert subprocess.run([*words, "--import", "specs.toml"], capture_output=True).returncode == 0
    (folder / "bad.toml").write_text(f'[[scan]]\nspec = "{specs[0].slug}"\nmap = "[]"\n')
    assert "map must be the text of expressions" in call("precompile", "bad.toml", "-o", "bad").stderr


def test_plan_checks_a_spec_file(call: Call, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", "pack")
    (folder / "specs.toml").write_text('specs = ["sum-f32-n7", "sum-f32-n8"]', encoding="utf-8")
    (folder / "one.toml").write_text('specs = ["sum-f32-n7"]', encoding="utf-8")
    assert call("precompile", "one.toml", "--targets", "cpu", "-o", "pack").exit_code == 0
    assert call("plan", "one.toml", "--target", "cpu", "--check").exit_code == 0
    missing = call("plan", "specs.toml", "--target", "cpu", "--check")
    assert missing.exit_code == 1 and "sum-f32-n8 for cpu: not found" in missing.stdout
    assert "1 of 2 kernels found" in missing.stdout and "scanops precompile specs.toml --targets cpu" in missing.stdout
    answer = ask("plan", "specs.toml", "--target", "cpu")
    assert (answer["found"], answer["missing"]) == (1, 1)
    assert "--lines goes with one SPEC" in call("plan", "specs.toml", "--lines", "3").stderr
    assert "absent.toml" in call("plan", "absent.toml").stderr


def test_programs_that_record_nothing(call: Call, folder: Path, capfd: Any) -> None:
    result = call("record", "--", sys.executable, "-c", ON_CPU)
    assert result.exit_code == 0 and not (folder / "specs.toml").exists()
    assert f"nothing was written to {folder / 'specs.toml'}" in result.stderr
    assert "CPU tensors" in result.stderr and "CPU tensors" in capfd.readouterr().err
    assert call("record", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").exit_code == 137


def test_targets_of_commands_that_build(ask: Ask, call: Call, folder: Path) -> None:
    """Repeated or separated by commas, by either name."""
    (folder / "specs.toml").write_text('specs = ["sum-f32-n7"]', encoding="utf-8")
    for words in (("--target", "cpu"), ("--targets", "cpu, cpu"), ("--target", "cpu", "--targets", "cpu")):
        found = ask("build", "sum-f32-n7", *words)["kernels"]
        assert {each["target"] for each in found} == {"cpu"}
        assert ask("precompile", "specs.toml", *words, "-o", "pack")["failed"] == 0
    wrong = call("build", "sum-f32-n7", "--targets", "cpu,sm_1")
    assert wrong.exit_code == 2 and "sm_1" in wrong.stderr


def test_a_builder_that_is_named_builds_for_gpus(call: Call, folder: Path) -> None:
    """Without a GPU too: what is wrong with the compiler is said, not that the emulator has another."""
    result = call("build", "sum-f32-n32", "--builder", "nvcc", SCANOPS_NVCC=str(folder / "nope"))
    assert result.exit_code == 1 and str(folder / "nope") in result.stderr and "for cpu" not in result.stderr


@needs_nvcc
def test_for_a_gpu_that_is_not_here(ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "specs.toml").write_text('specs = ["sum-f32-n100"]', encoding="utf-8")
    assert ask("precompile", "specs.toml", "--targets", "sm_90", "-o", "pack")["built"] == 1
    monkeypatch.setenv("SCANOPS_STORE", str(folder / "pack"))
    monkeypatch.setenv("SCANOPS_POLICY", "never")
    (kernel,) = scanops.prepare(["sum-f32-n100"], ["sm_90"])
    assert kernel.target == "sm_90" and kernel.path.is_relative_to(folder / "pack")


def test_one_failure_stops_no_other(call: Call, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that kernels share is printed once."""
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    words = ("precompile", "two.toml", "-o", "pack", "--targets", "cpu")
    answer = ask(*words, code=1)
    assert (answer["ok"], answer["failed"]) == (False, 2)
    assert {kernel["error"]["kind"] for kernel in answer["kernels"]} == {"MissingCompiler"}
    for each in (words, ("build", "sum-f32-n7", "sum-f32-n8", "--target", "cpu")):
        result = call(*each)
        assert (result.exit_code, result.stderr.count("MissingCompiler")) == (1, 1)
        names = result.stderr.partition("of:")[2].strip().split(", ")
        assert {"sum-f32-n7 for cpu", "sum-f32-n8 for cpu"} <= set(names)


def test_specs_from_standard_input(folder: Path) -> None:
    words = [sys.executable, "-m", "scanops", "precompile", "-", "--targets", "cpu", "-o", "pack"]
    done = subprocess.run(words, input='specs = ["sum-f32-n7"]', capture_output=True, text=True)
    assert (done.returncode, done.stdout[:7]) == (0, "1 built"), done.stderr


def test_an_interruption_begins_nothing_more(folder: Path) -> None:
    """Ctrl-C exits with 130 and prints JSON, also where a shell started the tests with SIGINT ignored."""
    specs, log = folder / "specs.toml", folder / "log"
    specs.write_text(f"specs = {[f'sum-f32-n{length}' for length in range(3, 43)]}\n", encoding="utf-8")
    slow = script(folder / "g++", f'echo "$*" >> {log}; sleep 0.2; exec {shutil.which("g++")} "$@"')
    words = ["precompile", "specs.toml", "--targets", "cpu", "-o", "pack", "--jobs", "2", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "scanops", *words],
        env={**os.environ, "SCANOPS_CXX": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # children inherit an ignored signal
    )
    for _ in range(600):
        if log.exists() and "kernel.o" in log.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(output)["error"]["kind"] == "KeyboardInterrupt"
    assert len(list((folder / "pack").glob("*/manifest.json"))) < 20


# ---- scanops demo, and the limit that its results are held to


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
