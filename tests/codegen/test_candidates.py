"""Candidates of the tuner, which are restored from their numbers, and the planner's table of measured plans."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scanops.codegen.candidates import MOST, candidates, restored
from scanops.codegen.figures import bytes_in_flight, expected_registers, residents
from scanops.codegen.plan import class_of, make_plan, measured_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import target_named
from tests.codegen.strategies import specs, targets


@settings(max_examples=60)
@example(ScanSpec.parse("cummax-f32-n32768"), "sm_90", False)  # candidates vary the measured plan
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


# ---- the planner's table of measured plans

TARGET = "sm_90"
FILE = resources.files("scanops.codegen") / "measured" / f"{TARGET}.json"
ENTRIES = json.loads(FILE.read_text(encoding="utf-8"))["entries"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["spec"])
def test_the_planner_uses_the_plan_that_was_measured(entry):
    """The plans of other lengths near the entry can be launched."""
    plan = make_plan(ScanSpec.parse(entry["spec"]), TARGET, entry["few"])
    assert (plan.strategy, plan.numbers()) == (entry["strategy"], entry["plan"])
    assert restored(plan.spec, TARGET, plan.strategy, plan.numbers(), entry["few"]) == plan
    for factor in (0.6, 0.75, 1.25, 1.9, 64):
        length = max(1, int(plan.spec.capacity * factor) // 32 * 32 + plan.spec.capacity % 32)
        near = make_plan(replace(plan.spec, length=length), TARGET, entry["few"])
        assert near.shared_bytes <= near.target.block_shared_bytes, length


def test_each_spec_has_one_entry_of_a_class_that_is_measured():
    specs = [(ScanSpec.parse(entry["spec"]), entry["few"]) for entry in ENTRIES]
    assert len(specs) == len(set(specs))
    assert [class_of(spec, few) for spec, few in specs] == [entry["kind"] for entry in ENTRIES]
    assert all(entry["kind"] for entry in ENTRIES)


@pytest.mark.parametrize(
    ("slug", "target"),
    [
        ("sum-f32-any-le512", TARGET),
        ("sum-f32-n4096-unaligned", TARGET),
        ("sum-f32-n4096-rows", TARGET),
        ("prod_gradient-f32-n4096-gate_f32-reverse-exclusive-again", TARGET),
        ("cummax-f32-n32768", "sm_80"),
    ],
)
def test_what_nobody_measured_follows_the_rules(slug, target):
    """Views, gradients and kernels of any length; other targets."""
    spec = ScanSpec.parse(slug)
    assert measured_plan(spec, target_named(target), few=False) is None
    assert make_plan(spec, target).strategy


def test_directions_and_carries_share_a_plan():
    slugs = [f"cummax-f32-n32768{rest}" for rest in ("", "-reverse", "-exclusive")]
    assert len({make_plan(ScanSpec.parse(slug), TARGET).describe() for slug in slugs}) == 1
