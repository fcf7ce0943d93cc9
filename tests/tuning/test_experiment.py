"""Which plan is kept: the best one, and only where it is better by more than the noise."""

from __future__ import annotations

import pytest

from scanops.codegen.candidates import candidates
from scanops.codegen.plan import Plan, make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import BuildFailure
from scanops.tuning.experiment import tune
from tests.tuning.laboratory import FakeLaboratory

SPEC, TARGET = ScanSpec(op="sum", dtype="float32", length=32768), "sm_90"
PLANS = list(candidates(SPEC, TARGET))
GOOD = PLANS[5]


def quicker(gain: float) -> FakeLaboratory:
    return FakeLaboratory(lambda plan: 100.0 / gain if plan == GOOD else 100.0)


def test_the_best_one_is_kept() -> None:
    outcome = tune(SPEC, TARGET, quicker(1.2))
    assert outcome.improved and outcome.best == GOOD
    assert outcome.default == make_plan(SPEC, TARGET)
    assert (outcome.default_us, outcome.tried) == (100.0, len(PLANS))
    assert outcome.gain == pytest.approx(1.2)
    entry = outcome.entry("a GPU", 64)
    assert entry is not None
    assert (entry.key, entry.plan) == (("sm_90", "a GPU", SPEC.slug), GOOD.numbers())
    assert (entry.measured.lines, entry.measured.default_us, entry.measured.rounds) == (64, 100.0, 45)


@pytest.mark.parametrize("gain", [0.9, 1.0, 1.005])
def test_a_gain_within_the_margin_changes_nothing(gain: float) -> None:
    outcome = tune(SPEC, TARGET, quicker(gain))
    assert not outcome.improved and outcome.best is outcome.default
    assert (outcome.gain, outcome.entry("a GPU", 64)) == (1.0, None)


def test_luck_is_not_enough() -> None:
    laboratory = FakeLaboratory(lambda plan: 100.0, noise=0.2)
    assert not tune(SPEC, TARGET, laboratory).improved


def test_a_gain_shows_through_noise() -> None:
    laboratory = FakeLaboratory(lambda plan: 100.0 / 1.1 if plan == GOOD else 100.0, noise=0.05)
    assert tune(SPEC, TARGET, laboratory).best == GOOD


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
    assert dict(outcome.refused) == {
        PLANS[1]: "spills",
        PLANS[2]: "spills",
        PLANS[3]: "its result is not the planner's",
    }
    assert laboratory.asked[0] == (len(PLANS) - 3, 15)


def test_without_the_planners_own_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(BuildFailure, match="spills"):
        tune(SPEC, TARGET, FakeLaboratory(lambda plan: 1.0, broken=lambda plan: plan == PLANS[0]))


def test_progress() -> None:
    said: list[tuple[str, int, int]] = []
    tune(SPEC, TARGET, quicker(1.2), said=lambda *words: said.append(words))
    assert {what for what, _, _ in said} == {"building", "checking", "measuring"}
    assert all(0 <= done <= of for _, done, of in said)
