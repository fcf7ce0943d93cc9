"""``scanops plan``: what is known of a kernel before it runs; ``scanops build``, for the emulator and with nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops import tuning
from scanops.builders.toolchain import CudaToolkit, require_target
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.tuning import write
from tests.cli.conftest import Ask, Call
from tests.store.sources import needs_nvcc
from tests.tuning.laboratory import GPU, entry

SLUG, SMALL = "sum-f32-n32768", "sum-f32-n5"
WORDS = ("plan", SLUG, "--target", "sm_90")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    return root


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


def test_kernels_are_built_once_in_order_then_found(call: Call, ask: Ask, store: Path) -> None:
    words = ("build", SMALL, "prod-f32-n6", SMALL, "--target", "cpu")
    (built, second), (found, _) = (ask(*words)["kernels"] for _ in range(2))
    assert (second["slug"], second["ok"]) == ("prod-f32-n6", True)
    assert (built["slug"], built["target"], built["found"], found["found"]) == (SMALL, "cpu", False, True)
    assert found["path"] == built["path"] and Path(built["path"]).is_relative_to(store)
    assert Path(built["source"]).read_text(encoding="utf-8").startswith("// scanops")
    text = call("build", SMALL, "--target", "cpu")
    assert text.exit_code == 0 and built["path"] in text.stdout
    assert text.stdout.splitlines()[0].split()[:3] == [SMALL, "cpu", "found"]


@needs_nvcc
def test_registers_are_the_compilers(ask: Ask) -> None:
    (kernel,) = ask("build", SMALL, "--target", "sm_80")["kernels"]
    assert kernel["resources"]["registers"] > 0 and kernel["resources"]["spill_store_bytes"] == 0
    answer = ask("plan", SMALL, "--target", "sm_80", "--build")
    assert (answer["registers_from"], answer["registers"]) == ("compiler", kernel["resources"]["registers"])
    assert answer["resources"] == kernel["resources"] and answer["shared_bytes"]["declared"] >= 0


def test_an_architecture_that_nvcc_dropped() -> None:
    """Only targets that scanops and this nvcc both know are suggested."""
    toolkit = CudaToolkit(
        nvcc=Path("/cuda/bin/nvcc"), found_by="PATH", root=Path("/cuda"), version="13.0", include=None,
        runtime=None, targets=("sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_90", "sm_110"),
    )  # fmt: skip
    with pytest.raises(UnsupportedRequest) as caught:
        require_target(toolkit, "sm_70")
    assert "sm_75, sm_80, sm_86, sm_90;" in caught.value.allowed
    assert caught.value.hint.startswith("use sm_75, or set SCANOPS_NVCC")
