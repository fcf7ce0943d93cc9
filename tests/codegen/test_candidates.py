"""Candidates of the tuner: the planner's plan first, then plans that are restored from their numbers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scanops.codegen.candidates import MOST, candidates, restored
from scanops.codegen.figures import bytes_in_flight, expected_registers, residents
from scanops.codegen.plan import STRATEGIES, make_plan, rebuilt
from scanops.codegen.spec import ScanSpec
from tests.codegen.strategies import specs, targets

SLUGS = (
    "sum-f32-n4",
    "sum-f32-n31",
    "sum-f32-n1000-mask_b8",
    "sum-f32-n32768",
    "sum-f32-n1048576",
    "sum-f64-n100000-exclusive",
    "sum-f32-n4096-inner1024",
    "sum-f32-n4096-inner4",
    "sum-f32-n4096-transposed",
)


@settings(max_examples=60)
@given(spec=specs, target=targets, few=st.booleans())
def test_the_planners_own_comes_first_and_all_can_be_made(spec: ScanSpec, target: str, few: bool) -> None:
    """At most MOST distinct plans of any spec; each covers the line, is restored, and a block of it is resident."""
    found = list(candidates(spec, target, few))
    assert found[0] == make_plan(spec, target, few)
    assert len(set(found)) == len(found) <= MOST
    for plan in found[1:]:
        assert restored(spec, target, plan.strategy, plan.numbers(), few) == plan
        assert plan.tile * plan.tiles >= spec.length
        assert residents(plan, expected_registers(plan)).blocks >= 1 and bytes_in_flight(plan, 1) > 0


def test_candidates_beside_a_measured_plan_are_restored() -> None:
    """They vary the measured plan, not the plan of its strategy's rule."""
    spec = ScanSpec.parse("cummax-f32-n32768")
    for plan in list(candidates(spec, "sm_90"))[1:]:
        assert restored(spec, "sm_90", plan.strategy, plan.numbers()) == plan


def test_there_is_something_to_choose_in_every_strategy() -> None:
    """Each strategy has candidates for some spec."""
    specs = [(ScanSpec.parse(slug), few) for slug in SLUGS for few in (False, True)]
    seen = {plan.strategy for spec, few in specs for plan in candidates(spec, "sm_90", few)}
    assert seen == set(STRATEGIES)


def test_what_follows_is_computed_again() -> None:
    """Tiles follow from threads and vectors."""
    plan = make_plan(ScanSpec(op="sum", dtype="float32", length=100_000), "sm_90")
    changed = rebuilt(plan, threads=256, vectors=4)
    assert changed.tiles == -(-100_000 // (256 * 4 * 4))
    assert rebuilt(plan) == plan
