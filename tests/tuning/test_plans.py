"""Candidates of the tuner and measured plans: any numbers are refused, or make a plan that computes the scan."""

from __future__ import annotations

import collections
import json
import random
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scanops.build_request import BuildRequest
from scanops.codegen.candidates import MOST, candidates, restore_plan
from scanops.codegen.figures import bytes_in_flight, estimate_registers, residents
from scanops.codegen.kernel_key import FEW, KernelKey, variant_for
from scanops.codegen.planner import STRATEGIES, Plan, by_rule, class_of, make_plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.emulator import emulate
from scanops.errors import UnsupportedRequest
from scanops.fallback import scans
from scanops.operands import Operands
from scanops.runtime.kernels import CPU, Kernel
from scanops.store import Store
from tests.codegen.strategies import specs, targets
from tests.requests.checks import refused


@settings(max_examples=60)
@example(ScanSpec.parse("cummax-f32-n32768"), "sm_90", False)  # candidates vary the measured plan
@given(spec=specs, target=targets, few=st.booleans())
def test_the_planners_own_comes_first_and_all_can_be_made(spec: ScanSpec, target: str, few: bool) -> None:
    """At most MOST distinct plans of any spec; each covers the line, is restored, and a block of it is resident."""
    key = KernelKey(spec, target, variant_for(few))
    found = list(candidates(key))
    assert found[0] == make_plan(spec, target, few)
    assert len(set(found)) == len(found) <= MOST
    for plan in found[1:]:
        assert restore_plan(key, plan.strategy, plan.numbers()) == plan
        assert plan.tile * plan.tiles >= spec.length
        assert residents(plan, estimate_registers(plan)).blocks >= 1 and bytes_in_flight(plan, 1) > 0


# ---- the planner's table of measured plans

TARGET = "sm_90"
FILE = resources.files("scanops.codegen") / "measured" / f"{TARGET}.json"
ENTRIES = json.loads(FILE.read_text(encoding="utf-8"))["entries"]
ENTRIES = [entry for entry in ENTRIES if "-map_" not in entry["spec"]]  # names that are read back


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["spec"])
def test_the_planner_uses_the_plan_that_was_measured(entry):
    """The plans of other lengths near the entry can be launched."""
    plan = make_plan(ScanSpec.parse(entry["spec"]), TARGET, entry["few"])
    assert (plan.strategy, plan.numbers()) == (entry["strategy"], entry["plan"])
    assert restore_plan(plan.key, plan.strategy, plan.numbers()) == plan
    is_faster = entry["measured"]["tuned_us"] < entry["measured"]["default_us"]
    assert plan.origin == (f"measured: {entry['spec']}" if is_faster else by_rule(plan.strategy, plan.key).origin)
    tuned = f"//          tuned: {', '.join(STRATEGIES[plan.strategy].free)}; the others follow from the spec\n"
    tuned = tuned if plan.origin.startswith("measured:") else ""
    assert f"// numbers  {plan.origin}\n{tuned}//" in render(plan)
    for factor in (0.6, 0.75, 1.25, 1.9, 64):
        length = max(1, int(plan.spec.capacity * factor) // 32 * 32 + plan.spec.capacity % 32)
        near = make_plan(replace(plan.spec, length=length), TARGET, entry["few"])
        assert near.shared_bytes <= near.target.block_shared_bytes, length


def test_each_spec_has_one_entry_of_a_class_that_is_measured():
    keys = [KernelKey(ScanSpec.parse(entry["spec"]), TARGET, variant_for(entry["few"])) for entry in ENTRIES]
    assert len(keys) == len(set(keys))
    assert [class_of(key) for key in keys] == [entry["kind"] for entry in ENTRIES]
    assert all(entry["kind"] for entry in ENTRIES)


# ---- plans of any numbers

SLUGS = (
    "sum-f32-n40",
    "prod-f32-n257-reverse",
    "sum-f32-n1000-mask_b8",
    "sum-f32-n9000-exclusive",
    "sum-i8-n100-inner6",
    "sum-f32-n300-inner64-transposed",
    "sum-f32-n1100-inner64",
)
MUTATIONS = 60  # of each spec and strategy
ODD = (*range(-2, 4), 5, 16, 31, 33, 96, 160, 1000, 2**20, 2**31, 2**64, -(2**63), 10**5000, True, 1.0, None, "8", [])


def served(slug: str) -> dict[str, Plan]:
    """By strategy the candidate furthest from its start."""
    return {plan.strategy: plan for plan in candidates(KernelKey(ScanSpec.parse(slug), TARGET))}


def test_mutated_plans_are_candidates_or_refused() -> None:
    """One or two numbers are odd or neighbouring values: nothing else is accepted, and a refusal is typed and short."""
    chosen, outcomes = random.Random(7), collections.Counter[str]()
    for plan in (plan for slug in SLUGS for plan in served(slug).values() for _ in range(MUTATIONS)):
        numbers: dict[str, Any] = dict(plan.numbers())
        for name in chosen.sample(sorted(numbers), chosen.choice((1, 1, 2))):
            near = [int(numbers[name]) * 2, int(numbers[name]) // 2, int(numbers[name]) + 1]
            numbers[name] = chosen.choice((*ODD, *near, *near, *near))
        try:
            assert restore_plan(plan.key, plan.strategy, numbers).numbers() == numbers
            outcomes["accepted"] += 1
        except UnsupportedRequest as problem:
            assert len(str(problem)) < 2000
            outcomes["refused"] += 1
    assert outcomes["accepted"] > 20 and outcomes["refused"] > 500


@pytest.mark.parametrize(
    ("slug", "strategy", "changes"),
    [
        ("sum-f32-n40", "block", {"vectors": -2}),
        ("sum-f32-n300-inner64", "columns_lookback", {"threads": 96}),
        ("sum-f32-n300-inner64", "columns_lookback", {"stages": 5}),
        ("sum-f32-n300-inner77", "columns_lookback", {"stages": 1}),
        ("sum-f32-n5000", "persistent", {"boundary": 160}),
        ("sum-f32-n40", "staged", {"rows": 0}),
        ("sum-f32-n4096", "block", {"items": 1048576}),
    ],
)
def test_plans_that_gave_wrong_results_are_refused(slug: str, strategy: str, changes: dict[str, int]) -> None:
    """Each of these once rendered, and gave wrong values, a SIGFPE, idle shared memory or megabytes of text."""
    spec = ScanSpec.parse(slug)
    start = STRATEGIES[strategy].plan(KernelKey(spec, TARGET))
    refused(UnsupportedRequest, lambda: replace(start, **changes))


# Of each strategy, all of which have candidates: the plan furthest from its start, for the last spec that it serves.
RUN = {plan.strategy: plan for slug in SLUGS for plan in served(slug).values()}


SPLIT = candidates(KernelKey(ScanSpec.parse("sum-f32-n9000"), TARGET, FEW))
assert {**RUN, **{plan.strategy: plan for plan in SPLIT}}.keys() == STRATEGIES.keys() - {"states"}


@pytest.mark.parametrize("plan", RUN.values(), ids=lambda plan: f"{plan.spec}-{plan.strategy}")
def test_a_candidate_computes_the_scan(plan: Plan) -> None:
    """The reference's values, exactly. Every strategy is among the plans but split, for few lines."""
    spec = plan.spec
    launch = plan.launch._asdict()
    request = BuildRequest(name=spec.slug, source=render(plan), target=CPU, launch=launch)
    kernel = Kernel(KernelKey(spec, CPU), Store().get_or_build(request))
    kernel._plan = plan
    operands = Operands(spec, 8 * spec.inner, "cpu")
    operands.fill_exactly()
    operands.out.fill_(77)
    with emulate(multiprocessors=3):
        out = operands.run(kernel)[0]
    x, mask = operands.tensors["x"], operands.tensors.get("mask")
    expected = scans.scan(x, spec.op, 1, mask=mask, dtype=out.dtype, reverse=spec.reverse, exclusive=spec.exclusive)
    assert torch.equal(out, expected)
