"""The cells of the grid, their bars and their tensors; the cases of soak."""

from __future__ import annotations

import pytest
import torch

import scanops
from benchmarks import soak
from benchmarks.cells import VARIANTS, Cell, allocate, poison, spec_of
from benchmarks.table import GROUPS, RANDOM_LENGTHS, SLACK, cells, row_floor, select
from scanops.codegen.plan import make_plan

GRID = cells(seed=7)
MULTIPROCESSORS = 132


def test_every_cell_has_a_name_and_a_bar_and_every_group_has_cells() -> None:
    """Floors in time become fractions of the copy of that run."""
    assert len({cell.name for cell in GRID}) == len(GRID)
    assert {cell.group for cell in GRID} == set(GROUPS)
    for cell in GRID:
        floor, goal = cell.bars(1.0)
        assert floor > 0 and (goal is None or goal > 0) and cell.items >= 2**16
        if cell.group == "random":
            assert 1 <= cell.length <= 200_000 and cell.floor == row_floor(cell.length) - SLACK
    timed = Cell(group="", family="", variant="sum", shape=(1, 2), floor_ms=0.0104, goal_over_copy_ms=0.002)
    assert timed.bars(0.005) == (pytest.approx(0.005 / 0.0104), pytest.approx(0.005 / 0.007))


def test_selection_and_random_lengths() -> None:
    drawn = [cell for cell in GRID if cell.group == "random"]
    assert cells(7, ["random"]) == drawn != cells(8, ["random"]) and len(drawn) == RANDOM_LENGTHS
    assert select(GRID, text="middle dims") == [cell for cell in GRID if cell.family == "middle dims"]
    quick = select(GRID, quick=True)
    assert 50 <= len(quick) <= 100 and {cell.group for cell in quick} == set(GROUPS)


def test_views_have_runs_of_64_bytes_and_offsets_are_in_elements() -> None:
    for cell in (cell for cell in GRID if cell.strides is not None):
        runs = [size for size, stride in zip(cell.shape, cell.strides or (), strict=True) if stride == 1]
        assert max(runs) * cell.what.input.bytes >= 64, cell.name
        assert allocate(cell, "meta", filled=False).x.stride() == cell.strides
    case = allocate(Cell(group="offsets", family="", variant="sum", shape=(2, 3), offset=3), "cpu")
    assert case.x.storage_offset() == 3 and not spec_of(case, MULTIPROCESSORS).aligned


def test_each_cell_of_the_table_has_a_spec_and_a_plan() -> None:
    for cell in cells(7, ["table"]):
        spec = spec_of(allocate(cell, "meta", filled=False), MULTIPROCESSORS)
        assert (spec.length, spec.inner, spec.op) == (cell.length, cell.inner, cell.what.op)
        assert make_plan(spec, "sm_90").spec == spec


@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_are_the_same_each_time_and_harmless(variant: str) -> None:
    """And bytes are what a scan has to move: those of its tensors."""
    cell = Cell(group="table", family="", variant=variant, shape=(3, 1000))
    first, second = allocate(cell, "cpu"), allocate(cell, "cpu")
    assert torch.equal(first.x, second.x)
    tensors = [first.x, first.y, *([first.mask] if first.mask is not None else [])]
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == cell.bytes
    scan = torch.cumprod if cell.what.op == "prod" else torch.cumsum
    wide = scan(first.x.double(), 1)
    assert wide.isfinite().all() and 1e-6 < wide.abs().max() < 1e6


def subject_of(named: str, shape: tuple[int, ...], dim: int, *, filled: bool) -> soak.Subject:
    variant, _, extra = named.partition("+")
    cell = Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim)
    return soak.Subject(allocate(cell, "cpu", filled=filled), extra)


@pytest.mark.parametrize("named", ["sum", "sum+segments", "reverse+carry", "sum+linear"])
def test_a_small_soaked_case_of_each_extra(named: str) -> None:
    subject = subject_of(named, (3, 40), 1, filled=True)
    with scanops.emulate():
        results = subject.run(poison(torch.empty_like(subject.case.y)))
        again = subject.run(poison(torch.empty_like(subject.case.y), 1))
    assert subject.is_right(results)
    assert all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
    assert not subject.is_right(tuple(result + 1 for result in results))


def test_soaked_cases_reach_what_splits_lines_over_blocks() -> None:
    specs = [subject_of(*case, filled=False).spec(MULTIPROCESSORS) for case in soak.CASES]
    assert {make_plan(spec, "sm_90").strategy for spec in specs} == {"split", "wave", "panels", "columns"}
    assert {named.partition("+")[2] for named, *_ in soak.CASES} == {"", "segments", "carry", "linear"}
