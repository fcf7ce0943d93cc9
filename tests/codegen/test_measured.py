"""The planner's table of measured plans: its file, and the plans of specs near its entries."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from scanops import make_plan
from scanops.codegen.candidates import restored
from scanops.codegen.plan import class_of, measured_plan
from scanops.codegen.spec import ScanSpec
from scanops.codegen.targets import target_named

TARGET = "sm_90"
FILE = resources.files("scanops.codegen") / "measured" / f"{TARGET}.json"
ENTRIES = json.loads(FILE.read_text(encoding="utf-8"))["entries"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["spec"])
def test_the_planner_uses_the_plan_that_was_measured(entry):
    spec, few = ScanSpec.parse(entry["spec"]), entry["few"]
    plan = make_plan(spec, TARGET, few)

    assert (plan.strategy, plan.numbers()) == (entry["strategy"], entry["plan"])
    assert restored(spec, TARGET, plan.strategy, plan.numbers(), few) == plan


@pytest.mark.parametrize("factor", [0.6, 0.75, 1.25, 1.9, 64])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["spec"])
def test_plans_of_other_lengths_are_sound(entry, factor):
    measured = ScanSpec.parse(entry["spec"])
    length = max(1, int(measured.capacity * factor) // 32 * 32 + measured.capacity % 32)
    spec = ScanSpec.parse(entry["spec"].replace(f"-n{measured.length}", f"-n{length}"))

    plan = make_plan(spec, TARGET, entry["few"])

    assert plan.shared_bytes <= plan.target.block_shared_bytes


def test_each_spec_has_one_entry_of_a_class_that_is_measured():
    specs = [(ScanSpec.parse(entry["spec"]), entry["few"]) for entry in ENTRIES]

    assert len(specs) == len(set(specs))
    assert [class_of(spec, few) for spec, few in specs] == [entry["kind"] for entry in ENTRIES]
    assert all(entry["kind"] for entry in ENTRIES)


@pytest.mark.parametrize(
    "slug",
    [
        "sum-f32-any-le512",
        "sum-f32-n4096-unaligned",
        "sum-f32-n4096-rows",
        "prod_gradient-f32-n4096-gate_f32-reverse-exclusive-again",
    ],
)
def test_views_gradients_and_kernels_of_any_length_follow_the_rules(slug):
    assert measured_plan(ScanSpec.parse(slug), target_named(TARGET), few=False) is None


def test_directions_and_carries_share_a_plan():
    spec = "cummax-f32-n32768"

    plans = {make_plan(ScanSpec.parse(spec + rest), TARGET).describe() for rest in ("", "-reverse", "-exclusive")}

    assert len(plans) == 1


def test_a_target_that_nobody_measured_follows_the_rules():
    spec = ScanSpec.parse("cummax-f32-n32768")

    assert measured_plan(spec, target_named("sm_80"), few=False) is None
    assert make_plan(spec, "sm_80").strategy
