"""Plans drawn at random, of specs drawn at random: each is refused, or its kernel computes the scan.

    SCANOPS_FUZZ=3000 pytest tests/tuning/test_random_plans.py -n auto

``SCANOPS_FUZZ`` is the number of plans. The emulator checks the alignment of each access.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scanops.build_request import BuildRequest
from scanops.codegen.kernel_key import KernelKey, variant_for
from scanops.codegen.operators import operator_named
from scanops.codegen.planner import STRATEGIES, Plan, by_rule, make_plan, rebuilt
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.emulator import emulate
from scanops.errors import ScanopsError, UnsupportedRequest
from scanops.operands import Operands
from scanops.requests.call import Call
from scanops.requests.request import Inputs, check_request
from scanops.runtime.kernels import CPU, Kernel
from scanops.runtime.launcher import places_for
from scanops.store import Store
from tests.numbers import oracle

COUNT = int(os.environ.get("SCANOPS_FUZZ", "0")) or 40
TARGET = "sm_90"
MOST_ITEMS = 30_000  # of a scan: the emulator and the reference take a second for them
OPERATORS = ("sum", "prod", "min", "cummax", "bitwise_xor", "linear", "logcumsumexp")
LENGTHS = (1, 3, 8, 31, 32, 33, 53, 100, 128, 257, 300, 512, 1000, 2049, 2304, 4100)
INNER = (2, 3, 4, 6, 7, 8, 12, 16, 31, 32, 33, 64, 100)
WIDE = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "complex64", "bool")


def draw_spec(pick: random.Random) -> ScanSpec:
    """Draw a spec: operands of every layout, masks, gates, flags and offsets, both directions, carries."""
    while True:
        op = pick.choice(OPERATORS)
        row, mask = operator_named(op), pick.choice((None, None, "bool", "float32"))
        dtype, segments = pick.choice(WIDE), pick.choice((None, None, "flags", "int32"))
        inner, length = 1 if pick.random() < 0.4 else pick.choice(INNER), pick.choice(LENGTHS)
        layouts = ("dense", "dense", "rows" if inner == 1 else "columns", "transposed", "strided")
        fields: dict[str, Any] = {
            "mask": mask,
            "gate": dtype if row.gated else None,
            "segments": segments,
            "input_layout": pick.choice(layouts),
            "mask_layout": pick.choice((*layouts, "line")) if mask else "dense",
            "gate_layout": pick.choice((*layouts, "line")) if row.gated else "dense",
            "starts_layout": pick.choice((*layouts, "line")) if segments == "flags" else "dense",
            **{name: pick.random() < 0.3 for name in ("reverse", "exclusive", "initial")},
            "aligned": pick.random() < 0.7,
        }
        try:
            spec = ScanSpec(op=op, dtype=dtype, length=length, inner=inner, **fields)
            if length * inner <= MOST_ITEMS // 2:
                return lay_out(spec)
        except UnsupportedRequest:
            continue


def lines_of(spec: ScanSpec) -> int:
    """Return the number of lines to scan."""
    return max(1, min(MOST_ITEMS // spec.capacity // spec.inner, 3 if spec.inner > 1 else 40)) * spec.inner


def lay_out(spec: ScanSpec) -> ScanSpec:
    """Return the spec that the operands of ``spec`` ask for: narrow ones have another layout than was drawn."""
    operands = Operands(spec, lines_of(spec), "cpu")
    tensors = {{"segment_starts": "starts"}.get(name, name): tensor for name, tensor in operands.tensors.items()}
    inputs = Inputs(**{name: tensors.get(name) for name in Inputs._fields})
    request = check_request(Call.of_spec(spec, 1), inputs, (operands.out, operands.tensors.get("indices")))
    return request.spec(places_for(request)[0])


def draw_plan(pick: random.Random) -> Plan:
    """Draw a plan that construction accepts: a strategy's own, with some other numbers."""
    while True:
        key = KernelKey(draw_spec(pick), TARGET, variant_for(pick.random() < 0.4))
        served = [name for name, strategy in STRATEGIES.items() if strategy.fits(key)]
        strategy = pick.choice(served)
        try:
            start = by_rule(strategy, key)
            plan = rebuilt(start, **draw_numbers(pick, STRATEGIES[strategy].free))
            if pick.random() < 0.3:  # a number that follows from others, in a plan that is made by hand
                numbers = plan.numbers()
                name = pick.choice(sorted(numbers.keys() - {"tiles"}))
                now = numbers[name]
                value = not now if type(now) is bool else pick.choice((2 * now, now // 2, now + 1, now - 1, 0))
                plan = replace(plan, **{name: value})
        except (UnsupportedRequest, ValueError, ArithmeticError, StopIteration):
            continue
        if plan != start and plan.shared_bytes <= plan.target.block_shared_bytes:
            return plan


def draw_numbers(pick: random.Random, free: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Draw values of up to three free numbers of a strategy."""
    names = pick.sample(sorted(free), min(len(free), pick.choice((1, 2, 2, 3, 3))))
    return {name: pick.choice(free[name]) for name in names}


def check_plan(plan: Plan) -> None:
    """Run the emulated kernel of a plan and compare its results with the sequential scan."""
    spec, launch = plan.spec, plan.launch._asdict()
    request = BuildRequest(name=spec.slug, source=render(plan), target=CPU, launch=launch)
    kernel = Kernel(plan.key._replace(target=CPU), Store().get_or_build(request))
    kernel._plan = plan
    operands = Operands(spec, lines_of(spec), "cpu")
    given = operands.tensors
    fill(given, spec)
    operands.out.fill_(1)
    with emulate(multiprocessors=3):
        out = operands.run(kernel)[0]
    arguments = {"initial": given.get("initial"), "mask": given.get("mask"), "gate": given.get("gate")}
    arguments |= {"starts": given.get("segment_starts"), "offsets": given.get("offsets")}
    expected = oracle.scan(
        given["x"],
        spec.op,
        1,
        dtype=out.dtype,
        reverse=spec.reverse,
        exclusive=spec.exclusive,
        **{name: value for name, value in arguments.items() if value is not None},
    )
    oracle.agree(spec.op, out, expected.outputs[0])
    if spec.indexed:
        oracle.agree(spec.op, given["indices"], expected.outputs[1])


def fill(tensors: dict[str, Any], spec: ScanSpec) -> None:
    """Fill operands with values whose scan is exact."""
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if name in ("x", "initial"):
            tensor.copy_(oracle.values(spec.op, shape, tensor.dtype, seed=len(name)))
        elif name == "gate":
            tensor.copy_(oracle.gates(shape, tensor.dtype))
        elif name == "mask":
            weights = spec.weight and oracle.weights(spec.op, shape, tensor.dtype)
            tensor.copy_(oracle.selection(shape) if weights is None else weights)
        elif name == "segment_starts":
            tensor.copy_(~oracle.selection(shape, seed=5))


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_plan_that_is_accepted_computes_the_scan(seed: int) -> None:
    plan = draw_plan(random.Random(seed))
    try:
        check_plan(plan)
    except (AssertionError, ScanopsError) as problem:
        raise AssertionError(f"{plan.key}: {plan.describe()}") from problem


def test_no_plan_of_the_planner_is_refused() -> None:
    """What plans require holds of the planner's own, of every strategy but that of sums, which needs expressions."""
    pick, found = random.Random(3), Counter[str]()
    for _ in range(max(1000, COUNT)):
        spec = draw_spec(pick)
        spec = replace(spec, length=spec.capacity * pick.choice((1, 1, 64)))
        for few in (False, True):
            found[make_plan(spec, TARGET, few).strategy] += 1
    assert found.keys() == STRATEGIES.keys() - {"states"}
