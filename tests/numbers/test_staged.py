"""Rows staged in shared memory: every way a row is shared out, ragged ends, boundaries, and nothing written outside."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.codegen import ScanSpec, make_plan
from scanops.codegen.strategies import staged
from scanops.codegen.strategies.staged import StagedPlan
from scanops.codegen.targets import target_named
from tests.numbers.oracle import selection, sequential, values

GUARD = 64  # items around an operand
MARK = 77

# (input, output, length, bool mask): lanes take whole rows, pieces kept in registers, pieces read twice.
KINDS = [
    ("float32", "float32", 1, False),
    ("float32", "float32", 6, True),
    ("float32", "float32", 100, False),
    ("float32", "float32", 255, False),
    ("float32", "float32", 599, True),
    ("float16", "float16", 33, False),
    ("float16", "float16", 511, False),
    ("bfloat16", "float32", 20, True),
    ("float64", "float64", 65, True),
    ("int8", "int8", 31, False),
    ("bool", "int64", 9, False),
    ("int32", "int64", 129, True),
]


def placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins so many items past a 16-byte boundary, with marks around it."""
    room = torch.full((tensor.numel() + 2 * GUARD,), MARK, dtype=torch.int64).to(tensor.dtype).to(tensor.device)
    begin = GUARD // 2 + offset
    assert (room.data_ptr() + GUARD // 2 * room.element_size()) % 16 == 0
    view = room[begin : begin + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


def outside(view: torch.Tensor) -> torch.Tensor:
    """The items around what ``placed`` made."""
    room = torch.as_strided(view, (view.numel() + 2 * GUARD,), (1,), 0)
    begin = view.storage_offset()
    return torch.cat([room[:begin], room[begin + view.numel() :]])


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("source", "out", "length", "masked"), KINDS)
def test_ragged_rows(source: str, out: str, length: int, masked: bool, aligned: bool, device: str) -> None:
    """Directions alternate."""
    reverse = aligned == (length % 2 > 0)
    spec = ScanSpec(op="sum", dtype=source, length=length, out_dtype=out, mask="bool" if masked else None)
    plan = make_plan(spec)
    assert isinstance(plan, StagedPlan)
    op = "sum" if source in ("bool", "int8") else "affine"
    for rows in (1, plan.block_rows + 1):
        x = values(op, (rows, length), torch.int64).to(getattr(torch, source))
        mask = selection((rows, length)) if masked else None
        expected = sequential(x, op, 1, mask=mask, reverse=reverse, dtype=getattr(torch, out))
        y = placed(torch.zeros_like(expected).to(device), 0 if aligned else 3)
        scanops.scan(
            placed(x.to(device), 0 if aligned else 1),
            op,
            1,
            mask=None if mask is None else placed(mask.to(device), 0 if aligned else 2),
            reverse=reverse,
            dtype=y.dtype,
            out=y,
        )
        assert torch.equal(y.cpu(), expected)
        assert (outside(y) == MARK).all()


def test_kinds_reach_every_way_to_scan_a_row() -> None:
    specs = [ScanSpec(op="sum", dtype=source, length=length, out_dtype=out) for source, out, length, _ in KINDS]
    plans = [staged.plan(spec, target_named("sm_90")) for spec in specs]
    affine = [staged.plan(ScanSpec(op="affine", dtype="float32", length=n), target_named("sm_90")) for n in (255, 599)]
    ways = {(plan.crosses_lanes, plan.kept) for plan in [*plans, *affine]}
    assert ways == {(False, False), (True, True), (True, False)}
    assert {plan.on_boundary for plan in plans} == {plan.in_place for plan in plans} == {True, False}
    assert {plan.takes_turns for plan in plans} == {True, False}
