"""Which plan is kept: the fastest one, and only where it is faster by more than the noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen.candidates import candidates
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure
from scanops.measure import GpuLaboratory, tune
from tests.tuning.laboratory import FakeLaboratory

SPEC, TARGET = ScanSpec(op="sum", dtype="float32", length=32768), "sm_90"
PLANS = list(candidates(SPEC, TARGET))
GOOD = PLANS[5]


@pytest.mark.parametrize(
    ("gain", "noise", "kept"),
    [(1.2, 0, True), (1.1, 0.05, True), (0.9, 0, False), (1.005, 0, False), (1.0, 0.2, False)],
)
def test_the_best_plan_is_kept_if_its_gain_exceeds_margin_and_noise(gain: float, noise: float, kept: bool) -> None:
    said: list[tuple[str, int, int]] = []
    laboratory = FakeLaboratory(lambda plan: 100.0 / gain if plan == GOOD else 100.0, noise=noise)
    outcome = tune(SPEC, TARGET, laboratory, said=lambda *words: said.append(words))
    entry = outcome.entry("a GPU")
    assert (outcome.default, outcome.improved, entry is not None) == (make_plan(SPEC, TARGET), kept, kept)
    assert (outcome.best == GOOD or not kept, outcome.tried) == (True, len(PLANS))
    assert {what for what, _, _ in said} == {"building", "checking", "measuring"}
    assert all(0 <= done <= of for _, done, of in said)
    if entry and not noise:
        assert outcome.measured.gain == pytest.approx(gain, abs=1e-3)
        assert (entry.key, entry.plan) == ((TARGET, "a GPU", SPEC.slug), GOOD.numbers())
        assert (entry.measured.lines, entry.measured.default_us, entry.measured.rounds) == (10, 100.0, 45)


def test_a_winner_is_measured_again_against_the_planners_own() -> None:
    """A plan that is ahead in the first two comparisons and behind in the one that decides is not kept."""
    laboratory = FakeLaboratory(lambda plan: (90.0 if len(laboratory.asked) < 3 else 110.0) if plan == GOOD else 100.0)
    assert not tune(SPEC, TARGET, laboratory).improved
    assert [plans for plans, _ in laboratory.asked] == [len(PLANS), 5, 2]


def test_wrong_and_broken_plans_are_never_timed() -> None:
    laboratory = FakeLaboratory(
        lambda plan: 50.0 if plan in PLANS[1:4] else 100.0,
        broken=lambda plan: plan in PLANS[1:3],
        wrong=lambda plan: plan == PLANS[3],
    )
    outcome = tune(SPEC, TARGET, laboratory)
    assert (outcome.improved, [plan for plan, _ in outcome.refused]) == (False, PLANS[1:4])
    assert laboratory.asked[0] == (len(PLANS) - 3, 15)
    with pytest.raises(BuildFailure, match="spills"):  # without the planner's own there is nothing to compare with
        tune(SPEC, TARGET, FakeLaboratory(lambda plan: 1.0, broken=lambda plan: plan == PLANS[0]))


def test_a_plan_that_is_not_built_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "no-such-nvcc"))
    trials, heard = object.__new__(GpuLaboratory), []
    trials._jobs = 2
    problems = trials.build(PLANS[:4], lambda *words: heard.append(words))
    assert list(problems) == PLANS[:4] and heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
