"""``scanops plan``: what is known of a kernel before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops import tuning
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.tuning import write
from tests.cli.conftest import Ask, Call
from tests.tuning.laboratory import GPU, entry

SLUG = "sum-f32-n32768"
WORDS = ("plan", SLUG, "--target", "sm_90")


def test_figures(call: Call, ask: Ask) -> None:
    answer = ask(*WORDS, "--lines", "1000")
    plan = make_plan(ScanSpec.parse(SLUG), "sm_90")
    assert (answer["strategy"], answer["plan"], answer["why"]) == (plan.strategy, plan.numbers(), plan.why)
    assert (answer["bytes_an_item"], answer["bytes_moved"]) == (8, 1000 * 32768 * 8)
    assert answer["floor_us"] == pytest.approx(1000 * 32768 * 8 / 4.8e6, rel=1e-3)  # 4800 GB/s
    assert (answer["launch"]["lines"], answer["launch"]["threads"]) == (1000, plan.threads)
    assert min(answer["launch"]["blocks"], answer["occupancy"]["blocks"], answer["bytes_in_flight"]) > 0
    text = call(*WORDS).stdout
    labels = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "}
    shown = ("strategy", "plan", "why", "from", "grid", "bytes", "floor", "in", "registers", "shared", "occupancy")
    assert labels >= set(shown) and "the planner's table" in text


def test_without_nvcc(call: Call, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Figures are estimates, and only --build needs the compiler."""
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "absent"))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    answer = ask(*WORDS)
    assert (answer["registers_from"], answer["resources"], answer["lookup"]["found"]) == ("estimate", None, None)
    for option in ("--check", "--build"):
        assert call(*WORDS, option).exit_code == 1


def test_a_measured_plan_comes_first(call: Call, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "tuning.json", list(candidates(ScanSpec.parse(SLUG), "sm_90"))[1]
    write(path, [entry(other)])
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    assert ask(*WORDS)["from"] is None  # that GPU is not here
    monkeypatch.setattr(tuning, "gpu_name", lambda target: GPU)
    answer = ask(*WORDS)
    assert (answer["from"]["file"], answer["plan"]) == (str(path), other.numbers())
    assert f"{path}: 10 us against 12 us" in call(*WORDS).stdout
