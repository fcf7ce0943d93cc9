"""Plans: each covers its line exactly, keeps every rule that templates take for granted, and can be launched."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given

from scanops.codegen import ScanSpec, make_plan
from scanops.codegen.fragments import fragments
from scanops.codegen.lines import SPLIT_LENGTH, are_few
from scanops.codegen.plan_rules import check_plan
from scanops.codegen.source import render
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.strategies.staged import bank_cycles
from scanops.codegen.strategies.transposed import TransposedPlan
from scanops.errors import UnsupportedRequest
from tests.codegen.strategies import specs, targets

ACCESS_BYTES = 16  # the widest access of a thread


@given(specs, targets)
def test_a_plan_covers_the_line(spec: ScanSpec, target: str) -> None:
    """No tile lies wholly past the end, positions fit their type, and the rules of plans from files hold."""
    plan = make_plan(spec, target)
    check_plan(plan)
    reach = spec.capacity + max(0, getattr(plan, "boundary", 0) - 1)  # rows that begin anywhere reach past a boundary
    assert plan.tile * plan.tiles >= reach > plan.tile * (plan.tiles - 1)
    assert plan.guarded or plan.tile * plan.tiles == spec.length
    assert plan.position == "long long" or reach + plan.tile < 2**31


@given(specs, targets)
def test_a_plan_prints_its_numbers(spec: ScanSpec, target: str) -> None:
    """Planning is a pure function, plans are immutable, and their description has every number."""
    plan = make_plan(spec, target)
    assert plan.target.name == target and plan == make_plan(spec, target)
    assert plan.describe().startswith(f"{plan.strategy}: ") and "\n" not in plan.describe() + plan.why
    assert all(f"{name} {value}" in plan.describe() for name, value in plan.numbers().items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.threads = 1  # type: ignore[misc]


@given(specs, targets)
def test_transposed_tiles(spec: ScanSpec, target: str) -> None:
    """Accesses of at most 16 bytes that divide runs of contiguous items."""
    plan = make_plan(dataclasses.replace(spec, input_layout="transposed", lines="many"), target)
    if not isinstance(plan, TransposedPlan):
        return
    for slab in (*plan.slabs, *plan.result_slabs):
        run = plan.items if slab.along else plan.lines
        assert slab.access * slab.bytes <= ACCESS_BYTES and run % slab.access == 0
        assert spec.aligned or slab.access == 1
        assert not slab.along or slab.access == 1 or spec.divides(slab.access)


@pytest.mark.parametrize(
    ("stride", "access", "cycles"),
    [(4, 4, 1), (28, 4, 1), (24, 4, 2), (128, 4, 32), (0, 4, 1), (24, 8, 2), (32, 8, 8), (16, 16, 4), (32, 16, 8)],
)
def test_bank_cycles(stride: int, access: int, cycles: int) -> None:
    """Cycles of one access of a warp, by the bytes between its lanes: odd multiples of the access never conflict."""
    assert bank_cycles([lane * stride for lane in range(32)], access) == cycles


STRATEGIES = {
    "warp": "n4 n128 n100-strided n15-transposed",
    "staged": "n1 n100 n600",
    "block": "n4096 n32768 n4096-mask_b8-transposed-strided_mask",
    "wave": f"n65536 n{MAX_LENGTH}",
    "split": f"n1048576-few-transposed n{SPLIT_LENGTH}-few",
    "transposed": "n16-transposed n4096-inner16-transposed",
    "columns": "n4096-inner15-transposed n1-inner2",
    "panels": f"n{MAX_LENGTH}-inner{MAX_LENGTH}-few n4096-inner1024-unaligned n4096-inner1024-columns n4096-inner1001",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_which_strategy(strategy: str) -> None:
    """The planner's choice for float32 sums of these shapes."""
    for words in STRATEGIES[strategy].split():
        assert make_plan(ScanSpec.parse(f"sum-f32-{words}")).strategy == strategy, words


@pytest.mark.parametrize(
    ("lines", "length", "inner", "few"),
    [
        (1, 2**28, 1, False),  # tiles enough for all blocks, many times over
        (1, 2**22, 1, True),
        (1, SPLIT_LENGTH, 1, True),
        (1, SPLIT_LENGTH - 1, 1, False),
        (10**6, 2**20, 1, False),
        (4, 4096, 4, True),
        (32768, 32768, 32768, False),
    ],
)
def test_few_lines(lines: int, length: int, inner: int, few: bool) -> None:
    """Lines are few if a block for each would leave most of 132 SMs idle."""
    assert are_few(lines, length, inner, 132) is few


@pytest.mark.parametrize("target", ["sm_1", "sm_90a", "90", "", None, 90, "cpu"])
def test_an_unknown_target(target: object) -> None:
    """The error names the target and those that are known."""
    with pytest.raises(UnsupportedRequest) as caught:
        make_plan(ScanSpec(op="sum", dtype="float32", length=5), target)  # type: ignore[arg-type]
    assert repr(target) in caught.value.asked
    assert "sm_90" in caught.value.allowed and caught.value.hint


@pytest.mark.parametrize("inner", [7, 36, 1024])
@pytest.mark.parametrize("length", [33, 1030, 9000])
@pytest.mark.parametrize("operand", ["c128", "f64"])
@pytest.mark.parametrize("words", ["", "-strided", "-few", "-transposed"])
def test_declared_totals_fit(operand: str, length: int, inner: int, words: str) -> None:
    """ptxas refuses more than 48 KB of declared arrays: the widest states, in the largest blocks of columns."""
    spec = ScanSpec.parse(f"linear-{operand}-n{length}-inner{inner}-gate_{operand}-segments-reverse{words}")
    plan = make_plan(spec)
    arrays = re.findall(r"__shared__ States \w+((?:\[\d+\])+)", render(plan))
    each = fragments(spec).state_bytes * getattr(plan, "vector", 1)
    assert sum(math.prod(map(int, re.findall(r"\d+", sizes))) for sizes in arrays) * each <= 48 * 1024
