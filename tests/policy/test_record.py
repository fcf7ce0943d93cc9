"""What is recorded, by blocks and into files, by one process and several, and by one that is killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scanops
from scanops import ScanSpec
from scanops.precompile import expected
from scanops.specfile import add, load
from tests.numbers.oracle import AFFINE
from tests.policy.conftest import SPEC, X

PROD = ScanSpec(op="prod", dtype="float32", length=60)
SUM = SPEC


def test_a_block(tmp_path: Path) -> None:
    with scanops.emulate():
        scanops.cumsum(X, 1)
        with scanops.record() as used:
            for _ in range(3):
                scanops.cumsum(X, 1)
            scanops.cumprod(X[:, :60].contiguous(), 1)
        scanops.cumsum(X, 1)
    assert used.counts == {(SUM, "cpu", False): 3, (PROD, "cpu", False): 1}
    assert (list(used), len(used)) == ([SUM, PROD], 2)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="recorded under"):
            used.write(tmp_path / "specs.toml")
    assert load(tmp_path / "specs.toml").wanted == {(SUM, "cpu", False): 6, (PROD, "cpu", False): 2}


def test_few_lines_have_a_kernel_of_their_own(tmp_path: Path) -> None:
    """A recording says which kernel ran; a spec without that stands for both."""
    file, spec = tmp_path / "specs.toml", ScanSpec(op="sum", dtype="float32", length=8192)
    with scanops.emulate(), scanops.policy("fallback"), scanops.record() as used, pytest.warns(RuntimeWarning):
        scanops.cumsum(torch.ones(2, 8192), 1)
        used.write(file)
    assert "few = true" in file.read_text(encoding="utf-8")
    assert expected(load(file).wanted, ["sm_90"], file) == [(spec, "sm_90", True)]
    file.write_text('specs = ["sum-f32-n8192", "sum-f32-n4096"]\n', encoding="utf-8")
    both = [(spec, "sm_90", False), (spec, "sm_90", True), (replace(spec, length=4096), "sm_90", False)]
    assert expected(load(file).wanted, ["sm_90"], file) == both


def test_every_miss_is_recorded_whatever_serves_it() -> None:
    """Empty tensors ask for no kernel, and CPU tensors outside of emulation for none that a GPU would."""
    with scanops.record() as used, scanops.emulate(), scanops.policy("fallback"), pytest.warns(RuntimeWarning):
        scanops.cumsum(X[:0], 1)
        assert not used.counts
        scanops.cumsum(X, 1)
    assert list(used) == [SUM]
    with pytest.warns(RuntimeWarning, match="nothing is recorded: 2 scans of CPU tensors"), scanops.record() as used:
        scanops.cumsum(X, 1)
        scanops.cumprod(X, 1)
    assert not used.counts


PROGRAM = """
import os, signal, torch, scanops
with scanops.emulate(), scanops.policy("fallback"):
    for _ in range({times}):
        scanops.cumsum(torch.ones(3, 100), 1)
{end}
"""


def test_processes_share_a_file(tmp_path: Path) -> None:
    """A process that is killed has recorded its specs."""
    file = tmp_path / "new" / "specs.toml"
    programs = ((3, "os.kill(os.getpid(), signal.SIGKILL)"), (2, ""))
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM.format(times=times, end=end)],
            env={**os.environ, "SCANOPS_RECORD": str(file)},
        )
        for times, end in programs
    ]
    assert [process.wait(timeout=120) for process in running] == [-9, 0]
    assert load(file).wanted == {(SUM, "cpu", False): 1 + 2}
    assert not [path for path in file.parent.iterdir() if path.name not in (file.name, f".{file.name}.lock")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_file_that_cannot_be_used_stops_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "specs.toml"
    file.write_text("no TOML", encoding="utf-8")
    monkeypatch.setenv("SCANOPS_RECORD", str(file))
    with caplog.at_level(logging.ERROR, "scanops"), scanops.emulate(), scanops.policy("fallback"):
        for scan in (scanops.cumsum, scanops.cumsum, scanops.cumprod):
            scan(X, 1)
    assert len(caplog.records) == 1 and str(file) in caplog.text
    assert file.read_text(encoding="utf-8") == "no TOML"


def test_recording_under_emulation_says_so(tmp_path: Path) -> None:
    file = tmp_path / "specs.toml"
    with scanops.emulate(multiprocessors=5), scanops.policy("generic"), scanops.record() as used:
        scanops.cumsum(X, 1)
    with pytest.warns(RuntimeWarning, match=r"recorded under scanops.emulate\(\) with 5 multiprocessors"):
        used.write(file)
    found = load(file)
    assert found.recorded_on == {"cpu": [5]}
    assert not found.remarks(["cpu"])
    (remark,) = found.remarks(["cpu", "sm_90"])
    assert "cpu with 5 multiprocessors: sm_90 may ask for other kernels" in remark
    add(file, {(SUM, "sm_90", False): 1}, {"sm_90": [132], "cpu": [3]})
    assert load(file).recorded_on == {"cpu": [3, 5], "sm_90": [132]}
    file.write_text('targets = ["sm_80", "sm_90"]\nspecs = ["prod-f32-n60"]\n', encoding="utf-8")
    add(file, {(SUM, "cpu", False): 2})  # to a file written by hand, which keeps its meaning
    assert load(file).wanted == {(PROD, "sm_80", None): 0, (PROD, "sm_90", None): 0, (SUM, "cpu", False): 2}


def test_specs_of_operators_of_the_program_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "specs.toml"
    slug, name = "recorded_last-f32-n100", "recorded_last"
    file.write_text(
        f'[[scan]]\nspec = "{slug}"\ntarget = "cpu"\nfew = false\ncount = 2\noperator = "{name}"\n', encoding="utf-8"
    )
    add(file, {(PROD, "cpu", False): 1})  # by a process that knows no such operator
    assert load(file).wanted == {(PROD, "cpu", False): 1}
    assert load(file).unknown == {name: {(slug, "cpu", False): 2}}
    assert "--import MODULE" in load(file).remarks(["cpu"])[0]
    scanops.register_operator(replace(AFFINE, name=name))
    own = ScanSpec.parse(slug)
    add(file, {(own, "cpu", False): 3})
    assert load(file).wanted == {(PROD, "cpu", False): 1, (own, "cpu", False): 5} and not load(file).unknown
    assert f'operator = "{name}"' in file.read_text(encoding="utf-8")
