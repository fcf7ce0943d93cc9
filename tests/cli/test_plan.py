"""``scanops plan``: what is known of a kernel before it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops import tuning
from scanops.builders.toolchain import find_nvcc
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure
from scanops.tuning import Entry, Measured, write

Call = Callable[..., Result]
Parsed = Callable[[str], Any]
SLUG = "sum-f32-n32768"


def test_figures(call: Call, parsed: Parsed) -> None:
    answer = parsed(call("plan", SLUG, "--target", "sm_90", "--lines", "1000", "--json").stdout)
    plan = make_plan(ScanSpec.parse(SLUG), "sm_90")
    assert (answer["strategy"], answer["plan"], answer["why"]) == (plan.strategy, plan.numbers(), plan.why)
    assert answer["bytes_an_item"] == 8
    assert answer["bytes_moved"] == 1000 * 32768 * 8
    assert answer["floor_us"] == pytest.approx(1000 * 32768 * 8 / 4.8e6, rel=1e-3)  # 4800 GB/s
    assert answer["launch"]["lines"] == 1000
    assert answer["launch"]["threads"] == plan.threads
    assert answer["launch"]["blocks"] > 0
    assert answer["from"] is None
    assert (answer["registers_from"], answer["resources"]) == ("estimate", None)
    assert answer["occupancy"]["blocks"] >= 1
    assert answer["bytes_in_flight"] > 0


def test_text(call: Call) -> None:
    result = call("plan", SLUG, "--target", "sm_80")
    assert result.exit_code == 0
    labels = {line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line[2] != " "}
    assert labels >= {
        *("strategy", "plan", "why", "from", "grid", "bytes", "floor", "in", "registers", "shared", "occupancy"),
    }
    assert "the planner's table" in result.stdout


def test_registers_are_the_compilers(call: Call, parsed: Parsed) -> None:
    try:
        find_nvcc()
    except BuildFailure:
        pytest.skip("no nvcc")
    answer = parsed(call("plan", SLUG, "--target", "sm_80", "--build", "--json").stdout)
    assert answer["registers_from"] == "compiler"
    assert answer["registers"] == answer["resources"]["registers"] > 0
    assert answer["shared_bytes"]["declared"] >= 0


def test_without_nvcc(call: Call, parsed: Parsed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Figures are estimates, and only --build needs the compiler."""
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "absent"))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    result = call("plan", SLUG, "--target", "sm_90", "--json")
    answer = parsed(result.stdout)
    assert (result.exit_code, answer["registers_from"], answer["lookup"]["found"]) == (0, "estimate", None)
    for option in ("--check", "--build"):
        assert call("plan", SLUG, "--target", "sm_90", option).exit_code == 1


@pytest.mark.parametrize(
    "words", [("sum-f32",), (SLUG, "--target", "sm_1"), (SLUG, "--lines", "0"), ("sum-f32-n9-inner4", "--lines", "6")]
)
def test_a_wrong_request(words: tuple[str, ...], call: Call) -> None:
    result = call("plan", *words)
    assert result.exit_code == 2
    assert "next:" in result.stderr


def test_a_measured_plan_comes_first(
    call: Call, parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, path = ScanSpec.parse(SLUG), tmp_path / "tuning.json"
    other = list(candidates(spec, "sm_90"))[1]
    measured = Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45)
    entry = Entry(
        target="sm_90", gpu="a GPU", spec=SLUG, strategy=other.strategy, plan=other.numbers(), measured=measured
    )
    write(path, [entry])
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    words = ("plan", SLUG, "--target", "sm_90")
    assert parsed(call(*words, "--json").stdout)["from"] is None  # that GPU is not here
    monkeypatch.setattr(tuning, "gpu_name", lambda target: "a GPU")
    answer = parsed(call(*words, "--json").stdout)
    assert (answer["from"]["file"], answer["plan"]) == (str(path), other.numbers())
    assert f"{path}: 10 us against 12 us" in call(*words).stdout
    path.write_text("{")
    assert call(*words).exit_code == 1
