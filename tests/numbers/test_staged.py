"""Rows staged in shared memory: every way a row is shared out among lanes, and nothing written outside the output."""

from __future__ import annotations

import pytest
import torch

import scanops
from scanops.codegen import ScanSpec, make_plan
from scanops.codegen.strategies.staged import StagedPlan
from tests.numbers.oracle import selection, sequential, values

GUARD = 64  # items around an operand
MARK = 77

# (operator, input, output, length, bool mask): lanes take whole rows, pieces kept in registers, pieces read twice.
KINDS = [
    ("affine", "float32", "float32", 1, False),
    ("affine", "float32", "float32", 6, True),
    ("affine", "float32", "float32", 100, False),
    ("affine", "float32", "float32", 255, False),
    ("affine", "float32", "float32", 599, True),
    ("affine", "float16", "float16", 511, False),
    ("affine", "bfloat16", "float32", 20, True),
    ("affine", "float64", "float64", 65, True),
    ("sum", "int8", "int8", 31, False),
    ("sum", "bool", "int64", 9, False),
    ("affine", "int32", "int64", 129, True),
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


def plan_of(op: str, source: str, out: str, length: int, masked: bool) -> StagedPlan:
    plan = make_plan(ScanSpec(op=op, dtype=source, length=length, out_dtype=out, mask="bool" if masked else None))
    assert isinstance(plan, StagedPlan)
    return plan


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("op", "source", "out", "length", "masked"), KINDS)
def test_ragged_rows(op: str, source: str, out: str, length: int, masked: bool, aligned: bool, device: str) -> None:
    """One row, and one more than a block has; directions alternate."""
    reverse = aligned == (length % 2 > 0)
    offsets = (0, 0, 0) if aligned else (1, 2, 3)
    plan = plan_of(op, source, out, length, masked)
    for rows in (1, plan.warps * plan.rows + 1):
        x = values(op, (rows, length), torch.int64).to(getattr(torch, source))
        mask = selection((rows, length)) if masked else None
        expected = sequential(x, op, 1, mask=mask, reverse=reverse, dtype=getattr(torch, out))
        there = None if mask is None else placed(mask.to(device), offsets[1])
        y = placed(torch.zeros_like(expected).to(device), offsets[2])
        scanops.scan(placed(x.to(device), offsets[0]), op, 1, mask=there, reverse=reverse, dtype=y.dtype, out=y)
        assert torch.equal(y.cpu(), expected)
        assert (outside(y) == MARK).all()


def test_kinds_reach_every_way_to_scan_a_row() -> None:
    plans = [plan_of(*kind) for kind in KINDS]
    assert {(plan.lanes > 1, plan.kept) for plan in plans} == {(False, False), (True, True), (True, False)}
    assert {plan.on_boundary for plan in plans} == {plan.in_place for plan in plans} == {True, False}
