"""Columns split over blocks: chains, groups and stretches of tiles, in shapes small enough for a test to walk."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import scanops
from scanops.builders.request import BuildRequest
from scanops.codegen.source import render
from scanops.codegen.spec import ScanSpec
from scanops.codegen.strategies import columns, panels, widths
from scanops.codegen.strategies.base import ceil_div
from scanops.codegen.strategies.panel import PanelPlan
from scanops.codegen.targets import target_named
from scanops.kernels import CPU, Kernel
from scanops.store import Store
from tests.numbers.oracle import selection, sequential, values, weights

TARGET = target_named("sm_90")


def scan(plan: PanelPlan, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """x scanned along its middle by the kernel of a plan."""
    entry = Store().get_or_build(BuildRequest(name=plan.spec.slug, source=render(plan), target=CPU))
    return Kernel(plan.spec, CPU, entry)(x, 1, mask=mask)


def shaped(plan: PanelPlan, lanes: int, **numbers: Any) -> PanelPlan:
    """The plan with other numbers, and what follows from them."""
    plan = dataclasses.replace(plan, columns=lanes * numbers.get("vector", plan.vector), **numbers)
    return dataclasses.replace(plan, tiles=ceil_div(plan.spec.capacity, plan.tile))


# (tiles a group, groups a stretch): a chain; carries from group to group; one group; groups in one stretch; all of it
FOLDS = [(1, 1), (4, 1), (32, 1), (4, 32), (2, 4)]


@pytest.mark.parametrize("mask", [None, "bool", "weights"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("group", "stretch"), FOLDS)
def test_every_order_of_folds(group: int, stretch: int, reverse: bool, mask: str | None) -> None:
    """25 tiles in each of three panels, two of them abreast; a line's prefix passes through every kind of total."""
    shape = (1, 600, 40)
    x = values("affine", shape, torch.float32)
    m = selection(shape) if mask == "bool" else weights("affine", shape, torch.float32) if mask else None
    spec = ScanSpec(
        op="affine", dtype="float32", length=600, inner=40, reverse=reverse, exclusive=not reverse,
        mask=None if m is None else str(m.dtype),
    )  # fmt: skip
    plan = shaped(
        panels.plan(spec, TARGET), 4, vector=4, threads=32, items=3, stages=0, blocks=1,
        abreast=2, group=group, stretch=stretch,
    )  # fmt: skip
    with scanops.emulate(seed=7):
        y = scan(plan, x, m)
    expected = sequential(x, "affine", 1, mask=m, reverse=reverse, exclusive=not reverse, dtype=torch.float32)
    assert torch.equal(y, expected)


PLANS = {"columns": columns.plan, "panels": panels.plan}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize(("inner", "lanes", "numbers"), [
    (12, 4, {"stages": 0}),
    (12, 4, {"stages": 1}),
    (64, 16, {"stages": 1}),
    (33, 8, {"stages": 0, "vector": 4, "apart": True}),
    (4, 2, {"stages": 1, "items": 5}),
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
