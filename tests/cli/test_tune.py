"""``scanops tune`` with a laboratory that makes times up; ``scanops bench``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import scanops
from scanops import measure
from scanops.cli import tune
from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan
from scanops.codegen.spec import ScanSpec
from scanops.tuning import read, write
from tests.cli.conftest import Ask, Call
from tests.tuning.laboratory import GPU, FakeLaboratory, entry

MadeUp = Callable[[Callable[[Plan], float]], None]
SLUG, OTHER_SLUG, TARGET = "sum-f32-n1000", "prod-f32-n4096", "sm_90"
PLANS = list(candidates(ScanSpec.parse(SLUG), TARGET))
ENTRY = entry(PLANS[1])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("SCANOPS_TUNING", str(path))
    return path


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """A GPU on which plans take what the test says."""

    def install(microseconds: Callable[[Plan], float]) -> None:
        monkeypatch.setattr(measure, "require_gpu", lambda: (TARGET, GPU, 132))
        monkeypatch.setattr(measure, "items_that_fit", lambda spec: 2**20)
        monkeypatch.setattr(measure, "GpuLaboratory", lambda _, lines, jobs: FakeLaboratory(microseconds, lines=lines))

    return install


def test_a_better_plan_is_kept_and_other_entries_stay(call: Call, ask: Ask, file: Path, made_up: MadeUp) -> None:
    elsewhere = replace(ENTRY, target="sm_80")
    write(file, [replace(ENTRY, plan={}), elsewhere])
    made_up(lambda plan: 80.0 if plan == PLANS[1] else 100.0)
    answer = ask("tune", SLUG, OTHER_SLUG)
    assert (answer["device"], answer["file"]) == ("a GPU", str(file))
    first, second = answer["specs"]
    assert (first["improved"], first["default_us"], first["best_us"]) == (True, 100.0, 80.0)
    assert first["best"] == {"strategy": PLANS[1].strategy, **PLANS[1].numbers()}
    assert second["improved"] is False and second["best"] == second["default"]
    found = read(file)
    assert found.keys() == {ENTRY.key, elsewhere.key}
    assert (found[ENTRY.key].plan, found[ENTRY.key].measured.lines) == (PLANS[1].numbers(), 2**20 // 1000)
    text = call("tune", SLUG).stdout
    assert "1.250" in text and str(file) in text
    made_up(lambda plan: 100.0)  # what was better once is so no longer
    assert "the planner's own" in call("tune", SLUG).stdout
    assert read(file) == {elsewhere.key: elsewhere}
    file.write_text("{")
    made_up(lambda plan: pytest.fail("measured before the file was read"))
    assert ask("tune", SLUG, code=1)["error"]["kind"] == "BadTuning"


@pytest.mark.parametrize(
    "slug",
    [
        *(f"sum-f32-n100{tail}" for tail in ("", "-rows", "-strided", "-inner64-transposed", "-offsets_i32-initial")),
        "sum-f32-n100-mask_b8-rows_mask-unaligned",
        "linear-c64-n100-inner3-gate_c64-segments-initial-strided_gate",
        "linear-f32-n100-inner4-gate_f32-line_gate",
        "cummax-bf16-n100-final",
    ],
)
def test_a_kernel_of_the_spec_takes_its_operands(slug: str) -> None:
    """They ask for this very spec: whatever differs is refused."""
    spec = ScanSpec.parse(slug)
    operands = measure.Operands(spec, 2 * 64 * spec.inner, "cpu")
    operands.fill_exactly()
    kernel = scanops.compile(spec, "cpu")
    with scanops.emulate():
        exact = operands.run(kernel).clone()
        operands.fill_randomly()
        assert exact.isfinite().all() and not measure.same(operands.run(kernel), exact, exactly=False)


def test_bench_needs_a_checkout(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel has no benchmarks."""
    monkeypatch.setattr(tune, "__file__", str(tmp_path / "scanops" / "cli" / "tune.py"))
    assert ask("bench", "--quick", code=1)["error"]["kind"] == "MissingRequirement"


@pytest.mark.gpu
@pytest.mark.slow
def test_bench_measures_a_few_cells_on_a_gpu(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = call("bench", "--filter", "small inputs", "--no-peers", "-o", str(path))
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text(encoding="utf-8"))
    assert len(document["cells"]) == 7
    assert all(cell["ok"] and cell["fraction"] > 0 for cell in document["cells"])
