"""Which plan is kept: the fastest one, and only where it is faster by more than the noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan, make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure, MissingCompiler
from scanops.measure import GpuLaboratory, entry_of, tune
from tests.tuning.laboratory import FakeLaboratory

SPEC, TARGET = ScanSpec(op="sum", dtype="float32", length=32768), "sm_90"
PLANS = list(candidates(SPEC, TARGET))
GOOD = PLANS[5]


def quicker(gain: float, noise: float = 0.0) -> FakeLaboratory:
    return FakeLaboratory(lambda plan: 100.0 / gain if plan == GOOD else 100.0, noise=noise)


def test_the_best_one_is_kept() -> None:
    said: list[tuple[str, int, int]] = []
    outcome = tune(SPEC, TARGET, quicker(1.2), said=lambda *words: said.append(words))
    assert outcome.improved and outcome.best == GOOD
    assert outcome.default == make_plan(SPEC, TARGET)
    assert (outcome.default_us, outcome.tried) == (100.0, len(PLANS))
    assert outcome.gain == pytest.approx(1.2)
    entry = outcome.entry("a GPU", 64)
    assert entry is not None
    assert (entry.key, entry.plan) == (("sm_90", "a GPU", SPEC.slug), GOOD.numbers())
    assert (entry.measured.lines, entry.measured.default_us, entry.measured.rounds) == (64, 100.0, 45)
    assert {what for what, _, _ in said} == {"building", "checking", "measuring"}
    assert all(0 <= done <= of for _, done, of in said)


@pytest.mark.parametrize(
    ("gain", "noise", "kept"), [(0.9, 0, False), (1.005, 0, False), (1.0, 0.2, False), (1.1, 0.05, True)]
)
def test_a_gain_counts_beyond_margin_and_noise(gain: float, noise: float, kept: bool) -> None:
    outcome = tune(SPEC, TARGET, quicker(gain, noise))
    assert outcome.improved is kept and (outcome.entry("a GPU", 64) is not None) is kept
    assert outcome.best is (GOOD if kept else outcome.default) or outcome.best == GOOD


def test_a_winner_is_measured_again_against_the_planners_own() -> None:
    seen: list[int] = []

    class Fickle(FakeLaboratory):
        def times(self, plans, rounds):  # type: ignore[no-untyped-def]
            seen.append(len(plans))
            # Ahead of all in the first two comparisons, behind in the one that decides.
            self.microseconds = lambda plan: (90.0 if len(seen) < 3 else 110.0) if plan == GOOD else 100.0
            return super().times(plans, rounds)

    assert not tune(SPEC, TARGET, Fickle(lambda plan: 0.0)).improved
    assert seen == [len(PLANS), 5, 2]


def test_wrong_and_broken_plans_are_never_timed() -> None:
    def quick(plan: Plan) -> float:
        return 50.0 if plan in PLANS[1:4] else 100.0

    laboratory = FakeLaboratory(quick, broken=lambda plan: plan in PLANS[1:3], wrong=lambda plan: plan == PLANS[3])
    outcome = tune(SPEC, TARGET, laboratory)
    assert not outcome.improved
    wrong = "its result is not the planner's"
    assert dict(outcome.refused) == {PLANS[1]: "spills", PLANS[2]: "spills", PLANS[3]: wrong}
    assert laboratory.asked[0] == (len(PLANS) - 3, 15)
    with pytest.raises(BuildFailure, match="spills"):  # without the planner's own there is nothing to compare with
        tune(SPEC, TARGET, FakeLaboratory(lambda plan: 1.0, broken=lambda plan: plan == PLANS[0]))


def test_a_plan_that_is_not_built_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_NVCC", str(tmp_path / "no-such-nvcc"))
    assert [type(entry_of(plan)) for plan in PLANS[:2]] == [MissingCompiler] * 2
    trials, heard = object.__new__(GpuLaboratory), []
    trials._jobs = 2
    problems = trials.build(PLANS[:4], lambda *words: heard.append(words))
    assert list(problems) == PLANS[:4] and heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
