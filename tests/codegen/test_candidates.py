"""Candidates of the tuner: the planner's plan first, then plans that are restored from their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from scanops.codegen.candidates import FAMILIES, MOST, candidates, rebuilt, restored
from scanops.codegen.figures import bytes_in_flight, expected_registers, residents
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import TARGETS
from tests.codegen.strategies import specs, targets

SLUGS = (
    "sum-f32-n4",
    "sum-f32-n31",
    "prod-f32-n257-reverse",
    "sum-f32-n1000-mask_b8",
    "sum-f32-n32768",
    "sum-bf16-n65535",
    "sum-f32-n1048576",
    "sum-f64-n100000-few-exclusive",
    "sum-f32-n4096-inner1024",
    "sum-f32-n4096-inner4",
    "sum-i8-n100-inner7-strided",
    "sum-f32-n4096-transposed",
    "sum-bf16-n1000-inner64-mask_b8-transposed",
)


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "sm_120"])
@pytest.mark.parametrize("slug", SLUGS)
def test_the_planners_own_comes_first_and_all_can_be_made(slug: str, target: str) -> None:
    """At most MOST distinct plans, each restored, resident and launchable."""
    spec = ScanSpec.parse(slug)
    found = list(candidates(spec, target))
    assert found[0] == make_plan(spec, target)
    assert len(found) <= MOST
    assert len(set(found)) == len(found)
    for plan in found[1:]:
        assert restored(spec, target, plan.strategy, plan.numbers()) == plan
        registers = expected_registers(plan)
        assert residents(plan, registers).blocks >= 1
        assert bytes_in_flight(plan, 1) > 0
    for plan in found[1::7]:
        assert plan.grid(1000 * spec.inner, TARGETS[target].multiprocessors) > 0


def test_there_is_something_to_choose_in_every_strategy() -> None:
    """Each strategy has candidates for some spec."""
    seen = {plan.strategy for slug in SLUGS for plan in candidates(ScanSpec.parse(slug), "sm_90")}
    assert seen >= set(FAMILIES)


@settings(max_examples=60)
@given(spec=specs, target=targets)
def test_any_spec(spec: ScanSpec, target: str) -> None:
    """Candidates cover the line, for any spec and target."""
    found = list(candidates(spec, target))
    assert found[0] == make_plan(spec, target)
    assert all(plan.tile * plan.tiles >= spec.length for plan in found)


def test_what_follows_is_computed_again() -> None:
    """Tiles follow from threads and vectors."""
    plan = make_plan(ScanSpec(op="sum", dtype="float32", length=100_000), "sm_90")
    changed = rebuilt(plan, threads=256, vectors=4)
    assert changed.tiles == -(-100_000 // (256 * 4 * 4))
    assert rebuilt(plan) == plan
