"""Columns split over blocks: chains, groups and stretches of tiles, in shapes small enough for a test to walk."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import scanops
from scanops.codegen.slugs import Layout
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import columns, panels, widths
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.strategies.panel import PanelPlan
from scanops.codegen.targets import target_named
from tests.numbers.oracle import gates, hold, selection, sequential, values, weights
from tests.numbers.test_realigned import built, drawn_of, placed

TARGET = target_named("sm_90")


def scan(plan: PanelPlan, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """x scanned along its middle by the kernel of a plan."""
    return built(plan)(x, 1, mask=mask)


def shaped(plan: PanelPlan, lanes: int, **numbers: Any) -> PanelPlan:
    """The plan with other numbers, and what follows from them."""
    plan = dataclasses.replace(plan, columns=lanes * numbers.get("vector", plan.vector), **numbers)
    return dataclasses.replace(plan, tiles=ceil_div(plan.spec.capacity, plan.tile))


# (tiles a group, groups a stretch): a chain; carries from group to group; stretches of single tiles; one group; groups
# in one stretch; all of it
FOLDS = [(1, 1), (4, 1), (1, 4), (32, 1), (4, 32), (2, 4)]


@pytest.mark.parametrize(("group", "stretch"), FOLDS)
@pytest.mark.parametrize("stages", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_order_of_folds(reverse: bool, stages: int, group: int, stretch: int) -> None:
    """25 tiles in each of three panels, two of them abreast; a line's prefix passes through every kind of total."""
    shape = (1, 600, 40)
    x = values("affine", shape, torch.float32)
    turn = (FOLDS.index((group, stretch)) + stages) % 3
    m = (None, selection(shape), weights("affine", shape, torch.float32))[turn]
    spec = ScanSpec(
        op="affine", dtype="float32", length=600, inner=40, reverse=reverse, exclusive=not reverse,
        mask=None if m is None else str(m.dtype),
    )  # fmt: skip
    plan = shaped(
        panels.plan(spec, TARGET), 4, vector=4, threads=32, items=3, stages=stages, blocks=1,
        abreast=2, group=group, stretch=stretch,
    )  # fmt: skip
    with scanops.emulate(seed=7):
        y = scan(plan, x, m)
    expected = sequential(x, "affine", 1, mask=m, reverse=reverse, exclusive=not reverse, dtype=torch.float32)
    assert torch.equal(y, expected)


PLANS = {"columns": columns.plan, "panels": panels.plan}


@pytest.mark.parametrize(("inner", "lanes", "numbers", "dtype"), [
    (12, 4, {"stages": 0}, torch.float32),
    (12, 4, {"stages": 1}, torch.float64),
    (64, 16, {"stages": 1}, torch.float16),
    (64, 16, {"stages": 1}, torch.float32),
    (33, 8, {"stages": 0, "vector": 4, "apart": True}, torch.float64),
    (4, 2, {"stages": 1, "items": 5}, torch.float16),
])  # fmt: skip
@pytest.mark.parametrize("strategy", PLANS)
def test_every_way_to_read_a_panel(
    strategy: str, inner: int, lanes: int, numbers: dict[str, Any], dtype: torch.dtype
) -> None:
    """Registers, shared memory, lanes that exchange rows, columns apart; each in tiles that end beyond the column."""
    spec = ScanSpec(op="affine", dtype=str(dtype), length=130, inner=inner, reverse=True)
    plan = PLANS[strategy](spec, TARGET)
    vector = numbers.get("vector") or widths.column_width(spec)
    lanes = widths.panel_lanes(spec, vector, lanes)
    numbers = {"threads": 64, "items": 4, "blocks": 1, **numbers, "vector": vector}
    if strategy == "columns" and numbers["stages"]:
        numbers["stages"] = 3
    x = values("affine", (2, 130, inner), dtype)
    with scanops.emulate(seed=3):
        y = scan(shaped(plan, lanes, **numbers), x)
    assert torch.equal(y, sequential(x, "affine", 1, reverse=True, dtype=dtype))


OFF_THE_BOUNDARY = [
    ("columns", 1, {"threads": 32, "items": 3, "stages": 0}),
    ("columns", 1, {"threads": 128, "items": 3, "stages": 2}),  # where lanes exchange rows, else out of registers
    ("panels", 1, {"threads": 64, "items": 4, "stages": 0}),
    ("panels", 4, {"threads": 64, "items": 3, "stages": 1, "group": 2}),
]
LYING: list[tuple[Layout, bool]] = [("dense", True), ("dense", False), ("columns", True)]  # layout, reverse


@pytest.mark.parametrize(
    ("element", "inner", "layout", "reverse", "strategy", "lanes", "numbers"),
    [
        # By turns: each kernel and each element has all widths and all layouts.
        (element, (8, 16, 48)[(number + 2 * turn) % 3], *LYING[(number + turn) % 3], *kernel)
        for number, element in enumerate(("f32", "f64_b8", "f32_b8", "f32_f32", "bf16_b8", "f16_f64", "i8_i64"))
        for turn, kernel in enumerate(OFF_THE_BOUNDARY)
        if (number + turn) % 2
    ],
)
def test_columns_that_begin_anywhere(
    strategy: str, lanes: int, numbers: dict[str, Any], inner: int, element: str, layout: Layout, reverse: bool
) -> None:
    """Accesses keep to boundaries of the operand's own; those at its ends leave out what lies outside."""
    length = 70
    op, x, m, result = drawn_of(element, (2, length, inner))
    pitch = inner + (3 if layout == "columns" else 0)
    spec = ScanSpec(
        op=op, dtype=str(x.dtype), length=length, inner=inner, out_dtype=str(result),
        mask=None if m is None else str(m.dtype), reverse=reverse, exclusive=reverse, aligned=False,
        input_layout=layout, mask_layout=layout if m is not None else "dense",
    )  # fmt: skip
    plan = PLANS[strategy](spec, TARGET)
    vector = widths.column_width(spec)
    lanes = widths.panel_lanes(spec, vector, 4 if numbers["stages"] else 2 * lanes)
    if not widths.can_stage(spec, TARGET, vector):
        numbers = {**numbers, "stages": 0}
    plan = shaped(plan, lanes, blocks=1, vector=vector, apart=False, **numbers)
    expected = sequential(x, op, 1, mask=m, reverse=reverse, exclusive=reverse, dtype=result)
    for offset in (1, 5):
        mask = None if m is None else placed(m, pitch, offset + 1)
        with scanops.emulate(seed=offset):
            y = scan(plan, placed(x, pitch, offset), mask)
        assert torch.equal(y, expected), offset


@pytest.mark.parametrize("exclusive", [False, True])
def test_columns_apart_of_states_that_elements_join(exclusive: bool, device: str) -> None:
    """A column a lane, 32 lanes side by side: no slots of a warp to fold, and yet rows are joined from nothing on."""
    shape = (1, 300, 65)
    x = values("linear", shape, torch.float32)
    hold(x, "linear", 1, device, gate=gates(shape, torch.float32), exclusive=exclusive)
    hold(x, "logcumsumexp", 1, device, exclusive=exclusive)
