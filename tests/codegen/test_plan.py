"""Plans: each covers its line exactly, within what a GPU can launch, and says so."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanops.codegen import Plan, ScanSpec, make_plan
from scanops.codegen.fragments import fragments
from scanops.codegen.lines import SPLIT_LENGTH, are_few
from scanops.codegen.source import render
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.strategies.block import BlockPlan
from scanops.codegen.strategies.columns import ColumnsPlan
from scanops.codegen.strategies.panel import PanelPlan
from scanops.codegen.strategies.rows import RowPlan
from scanops.codegen.strategies.split import BoardPlan, SplitPlan
from scanops.codegen.strategies.staged import MAX_BYTES, StagedPlan, bank_cycles
from scanops.codegen.strategies.staged import MAX_LENGTH as MAX_STAGED
from scanops.codegen.strategies.transposed import TransposedPlan
from scanops.codegen.strategies.warp import WarpPlan
from scanops.codegen.strategies.wave import DECLARED_BYTES, WavePlan
from scanops.codegen.targets import target_named
from scanops.errors import UnsupportedRequest
from tests.codegen.strategies import specs, targets

MAX_THREADS = 1024  # of a block, on every GPU
ACCESS_BYTES = 16  # the widest access of a thread


@given(specs, targets)
def test_a_plan_covers_the_line(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    reach = spec.capacity + max(0, getattr(plan, "boundary", 0) - 1)  # rows that begin anywhere reach past a boundary
    assert plan.tile * plan.tiles >= reach
    assert plan.tile * (plan.tiles - 1) < reach, "a tile lies wholly past the end"
    assert plan.guarded or plan.tile * plan.tiles == spec.length
    assert plan.position == "long long" or reach + plan.tile < 2**31


@given(specs, targets)
def test_a_plan_can_be_launched(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    assert plan.threads % 32 == 0 and 0 < plan.threads <= MAX_THREADS
    assert plan.warps * 32 == plan.threads
    assert plan.warps <= 32, "one warp scans the totals of all"
    assert plan.items >= 1
    assert not plan.crosses_lanes or plan.steps if isinstance(plan, (WarpPlan, StagedPlan, PanelPlan)) else plan.steps


@given(specs, targets)
def test_an_access_stays_within_16_bytes(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    if not isinstance(plan, RowPlan):
        return
    widest = max(row.bytes for row in (spec.input, spec.out, spec.mask_dtype) if row is not None)
    assert plan.items & (plan.items - 1) == 0, "an access is a power of two"
    assert plan.items * widest <= ACCESS_BYTES * (plan.parts if isinstance(plan, WavePlan) else 1)
    if plan.shifted:
        assert plan.boundary % plan.items == 0 and plan.boundary & (plan.boundary - 1) == 0
        assert plan.boundary <= plan.stripe, "more than one access of a thread begins ahead of the row"
        assert spec.aligned or all(operand.realigned or not operand.whole for operand in plan.operands)
    else:
        assert spec.divides(plan.items), "rows begin off the boundary of an access"
        assert spec.aligned or plan.items == 1
    assert len(plan.offsets) == plan.vectors
    if spec.length is not None:
        assert plan.offsets == tuple(plan.stripe * k for k in range(plan.vectors)), "stripes follow one another"


@given(specs, targets)
def test_no_thread_is_idle_for_want_of_columns(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    if isinstance(plan, PanelPlan):
        assert plan.lanes <= 32 and 32 % plan.lanes == 0
        assert plan.panels * plan.columns >= spec.inner > (plan.panels - 1) * plan.columns
        assert plan.slots * plan.lanes == plan.threads
        assert plan.lanes * plan.vector == plan.columns
        assert plan.shared_bytes <= plan.target.block_shared_bytes
        if not plan.apart:
            assert spec.inner % plan.vector == 0, "rows begin off the boundary of an access"
            assert spec.aligned or plan.realigns or all(operand.access_bytes <= 8 for operand in plan.operands)
        assert plan.items <= spec.length


@given(specs, targets)
def test_lines_that_are_turned_over(spec: ScanSpec, target: str) -> None:
    plan = make_plan(dataclasses.replace(spec, input_layout="transposed", lines="many"), target)
    if not isinstance(plan, TransposedPlan):
        return
    assert plan.shared_bytes <= plan.target.block_shared_bytes and plan.stages <= plan.tiles
    for slab in (*plan.slabs, *plan.result_slabs):
        assert slab.access * slab.bytes <= ACCESS_BYTES and slab.run % slab.access == 0
        assert spec.aligned or slab.access == 1
        assert not slab.along or slab.access == 1 or spec.divides(slab.access)
    assert bank_conflicts(plan) <= {1}


def bank_conflicts(plan: TransposedPlan) -> set[int]:
    """Turns that shared memory takes for 8 lanes that access a piece of 16 bytes each."""
    found = set()
    for slab in (*plan.slabs, *plan.result_slabs):
        if not slab.along or slab.piece * slab.bytes < ACCESS_BYTES:
            continue
        pieces, spread = len(slab.pieces), slab.spread
        owned = [
            [(lane * slab.vector + c) * pieces + p for lane in range(8)]
            for c in range(slab.vector)
            for p in range(pieces)
        ]
        moved = [[first + k for k in range(8)] for first in range(0, 32 * pieces, 8)]
        for turn in (*owned, *moved):
            banks = [(piece ^ (piece // spread % 8)) % 8 for piece in turn]
            found.add(max(banks.count(bank) for bank in banks))
    return found


@given(specs, targets)
def test_a_strategy_serves_what_it_is_for(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    if plan.strategy != "transposed":
        assert (plan.strategy in ("columns", "panels")) == (spec.inner > 1)
    if isinstance(plan, SplitPlan):
        assert spec.lines == "few" and not plan.loops
    if isinstance(plan, BoardPlan):
        assert 4 * len(plan.pieces) == plan.code.state_bytes, "a state is published in whole pieces"
    if isinstance(plan, WavePlan):
        assert plan.stages > plan.ahead >= 1, "a tile is scanned after it was loaded and before it is stored"
        assert plan.lands <= (plan.stages - plan.ahead >= 2), "what passes through registers arrives a step later"
        assert plan.shared_bytes + DECLARED_BYTES <= target_named(target).block_shared_bytes
    if isinstance(plan, BlockPlan):
        assert plan.tiles == 1 and plan.threads * plan.vectors * plan.items * plan.code.state_bytes <= 4 * 65536
    if isinstance(plan, WarpPlan):
        assert plan.tiles == 1 and plan.rows * plan.lanes == plan.threads and 32 % plan.lanes == 0
    if isinstance(plan, StagedPlan):
        assert spec.input_layout == spec.mask_layout == "dense"
        assert spec.length <= MAX_STAGED and spec.length * max(spec.input.bytes, *spec.result_bytes) <= MAX_BYTES


staged_lengths = st.integers(1, MAX_STAGED)


@given(specs, targets, staged_lengths)
def test_staged_rows_fit(drawn: ScanSpec, target: str, length: int) -> None:
    layouts = {"inner": 1, "input_layout": "dense", "mask_layout": "dense"}
    spec = dataclasses.replace(drawn, length=length, **layouts)  # type: ignore[arg-type]
    plan = make_plan(spec, target)
    if not isinstance(plan, StagedPlan):
        return
    assert plan.declared_bytes <= 49152, "declared arrays hold no more"
    assert plan.turns * plan.at_once == plan.rows and 32 % plan.lanes == 0
    assert plan.piece % plan.items == 0 and spec.length % plan.items == 0
    widest = max(row.bytes for row in (spec.input, spec.mask_dtype) if row is not None)
    assert plan.items * max(widest, *spec.result_bytes) <= ACCESS_BYTES and (spec.aligned or plan.items == 1)
    if plan.on_boundary:
        assert spec.aligned
        assert all(plan.staged * row.bytes % 16 == 0 for row in (spec.input, spec.out, spec.mask_dtype) if row)


@pytest.mark.parametrize(
    ("stride", "access", "cycles"),
    [
        (4, 4, 1),
        (28, 4, 1),  # 7 words: odd
        (24, 4, 2),
        (128, 4, 32),
        (0, 4, 1),  # one word serves all
        (24, 8, 2),  # 3 times 8 bytes: odd
        (32, 8, 8),
        (16, 16, 4),
        (400, 16, 4),  # 25 times 16 bytes: odd
        (32, 16, 8),
        (2, 2, 1),  # two lanes a word
    ],
)
def test_bank_cycles(stride: int, access: int, cycles: int) -> None:
    assert bank_cycles([lane * stride for lane in range(32)], access) == cycles


@given(specs, targets)
def test_a_plan_prints_its_numbers(spec: ScanSpec, target: str) -> None:
    plan = make_plan(spec, target)
    assert plan.target.name == target
    said = plan.describe()
    assert said.startswith(f"{plan.strategy}: ") and "\n" not in said + plan.why
    for name, value in plan.numbers().items():
        assert f"{name} {value}" in said
    assert plan == make_plan(spec, target), "planning is a pure function"
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.threads = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("slug", "strategy"),
    [
        ("sum-f32-n1", "staged"),
        ("sum-f32-n4", "warp"),
        ("sum-f32-n100", "staged"),
        ("sum-f32-n128", "warp"),
        ("sum-f32-n600", "staged"),
        ("sum-f32-n100-strided", "warp"),
        ("sum-f32-n4096", "block"),
        ("sum-f32-n32768", "block"),
        ("sum-f32-n65536", "wave"),
        ("sum-f16-n32768", "wave"),
        ("sum-f64-n32768", "wave"),
        (f"sum-f32-n{MAX_LENGTH}", "wave"),
        ("sum-f32-n16-transposed", "transposed"),
        ("sum-f32-n15-transposed", "warp"),  # 60 bytes together: gathered
        ("sum-f32-n4096-inner16-transposed", "transposed"),
        ("sum-f32-n4096-inner15-transposed", "columns"),
        ("sum-f32-n4096-mask_b8-transposed-strided_mask", "block"),
        ("sum-f32-n1048576-few-transposed", "split"),
        (f"sum-f32-n{SPLIT_LENGTH}-few", "split"),
        ("sum-f32-n1-inner2", "columns"),
        (f"sum-f32-n{MAX_LENGTH}-inner{MAX_LENGTH}-few", "panels"),
        ("sum-f32-n4096-inner1024-unaligned", "panels"),
        ("sum-f32-n4096-inner1024-columns", "panels"),
        ("sum-f32-n4096-inner1001", "panels"),
    ],
)
def test_which_strategy(slug: str, strategy: str) -> None:
    assert make_plan(ScanSpec.parse(slug)).strategy == strategy


def test_the_headline_fills_its_tile() -> None:
    """32768 float32 products: one tile, so that the kernel has no loop, and no guard."""
    plan = make_plan(ScanSpec(op="prod", dtype="float32", length=32768))
    assert not plan.loops and not plan.guarded


@pytest.mark.parametrize(
    ("lines", "length", "inner", "few"),
    [
        (1, 2**28, 1, False),  # tiles enough for all blocks, many times over
        (1, 2**22, 1, True),
        (64, 65536, 1, True),
        (1, SPLIT_LENGTH, 1, True),
        (1, SPLIT_LENGTH - 1, 1, False),
        (10**6, 2**20, 1, False),
        (4, 4096, 4, True),
        (32768, 32768, 32768, False),
        (1, 1, 1, False),
    ],
)
def test_few_lines(lines: int, length: int, inner: int, few: bool) -> None:
    assert are_few(lines, length, inner, 132) is few


@pytest.mark.parametrize("target", ["sm_1", "sm_90a", "90", "", None, 90, "cpu"])
def test_an_unknown_target(target: object) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        make_plan(ScanSpec(op="sum", dtype="float32", length=5), target)  # type: ignore[arg-type]
    assert repr(target) in caught.value.asked
    assert "sm_90" in caught.value.allowed and caught.value.hint


def test_plans_of_every_strategy_are_plans() -> None:
    assert issubclass(RowPlan, Plan) and issubclass(ColumnsPlan, Plan)


@pytest.mark.parametrize("inner", [7, 35, 36, 68, 1024])
@pytest.mark.parametrize("length", [33, 131, 1030, 9000])
@pytest.mark.parametrize("operand", ["c128", "f64", "f32"])
@pytest.mark.parametrize("words", ["", "-strided", "-few", "-transposed"])
def test_declared_totals_fit(operand: str, length: int, inner: int, words: str) -> None:
    """ptxas refuses more than 48 KB of them: the widest states there are, in the most threads of a panel."""
    spec = ScanSpec.parse(f"linear-{operand}-n{length}-inner{inner}-gate_{operand}-segments-reverse{words}")
    text = render(make_plan(spec))
    arrays = re.findall(r"__shared__ States \w+((?:\[\d+\])+)", text)
    each = fragments(spec).state_bytes * getattr(make_plan(spec), "vector", 1)
    assert sum(math.prod(map(int, re.findall(r"\d+", sizes))) for sizes in arrays) * each <= 48 * 1024
