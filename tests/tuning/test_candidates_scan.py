"""Candidates compute what the planner's own plan computes, to the bit where rounding plays no part. Emulated."""

from __future__ import annotations

import pytest
import torch

from scanops.artifact import BuildRequest
from scanops.codegen.candidates import FAMILIES, candidates
from scanops.codegen.plan import Plan
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.emulation import emulate
from scanops.fallback import scans
from scanops.measure import fill_exactly, tensors_for
from scanops.runtime.kernels import CPU, Kernel
from scanops.store.store import Store

SLUGS = (
    "sum-f32-n31",
    "prod-f32-n257-reverse",
    "sum-f32-n1000-mask_b8",
    "sum-f32-n9000-exclusive",
    "sum-f32-n100-inner64",
    "sum-i8-n100-inner6",
    "sum-f32-n300-inner64-transposed",
    "sum-f32-n1100-inner64",
)


def _chosen() -> list[Plan]:
    """The plan furthest from the planner's, of each strategy that serves a spec."""
    found: list[Plan] = []
    for slug in SLUGS:
        last = {plan.strategy: plan for plan in candidates(ScanSpec.parse(slug), "sm_90")}
        found += last.values()
    return found


CHOSEN = _chosen()


def test_every_row_strategy_is_among_them() -> None:
    assert {plan.strategy for plan in CHOSEN} >= FAMILIES.keys() - {"split"}  # which serves few lines only


@pytest.mark.parametrize("plan", CHOSEN, ids=lambda plan: f"{plan.spec}-{plan.strategy}")
def test_a_candidate(plan: Plan) -> None:
    spec = plan.spec
    entry = Store().get_or_build(BuildRequest(name=spec.slug, source=render(plan), target=CPU))
    kernel = Kernel(spec, CPU, entry)
    kernel._plan = plan
    x, mask, out = tensors_for(spec, 8 * spec.inner, "cpu")
    fill_exactly(spec, x, mask)
    out.fill_(77)
    with emulate(multiprocessors=3):
        kernel(x, 1, mask=mask, out=out)
    expected = scans.scan(x, spec.op, 1, mask=mask, dtype=out.dtype, reverse=spec.reverse, exclusive=spec.exclusive)
    assert torch.equal(out, expected)
