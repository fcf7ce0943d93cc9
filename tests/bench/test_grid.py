"""The cells of the grid, their bars and their tensors; the cases of soak; what peers compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import scanops
from benchmarks import grid, soak
from benchmarks.cells import VARIANTS, Cell, allocate
from benchmarks.peers import cub, triton
from benchmarks.peers.pytorch import Eager
from benchmarks.scans import poison, same_bits
from benchmarks.table import GROUPS, SLACK, cells, row_floor
from scanops.codegen.plan import make_plan
from scanops.errors import ScanopsError

GRID = cells(seed=7)
TABLE = [cell for cell in GRID if cell.group == "table"]
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


def test_views_have_runs_of_64_bytes_and_offsets_are_in_elements() -> None:
    for cell in (cell for cell in GRID if cell.strides is not None):
        runs = [size for size, stride in zip(cell.shape, cell.strides or (), strict=True) if stride == 1]
        assert max(runs) * cell.what.input.bytes >= 64, cell.name
        assert allocate(cell, "meta", filled=False).x.stride() == cell.strides
    case = allocate(Cell(group="offsets", family="", variant="sum", shape=(2, 3), offset=3), "cpu")
    assert case.x.storage_offset() == 3 and not case.wanted(MULTIPROCESSORS)[0].aligned


def small(variant: str, *shape: int) -> Cell:
    return Cell(group="table", family="", variant=variant, shape=shape, dim=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant(variant: str) -> None:
    """Inputs are the same each time and harmless, bytes those that a scan has to move; torch composes the scan."""
    cell = small(variant, 5, 300)
    case, second = allocate(cell, "cpu"), allocate(cell, "cpu")
    assert torch.equal(case.x, second.x)
    assert case.moved == cell.bytes
    wide = (torch.cumprod if cell.what.op == "prod" else torch.cumsum)(case.x.double(), 1)
    assert wide.isfinite().all() and 1e-6 < wide.abs().max() < 1e6
    (candidate,) = Eager().candidates(case)
    poison(case.y)
    # torch's own half types round at each step: they are measured, and their results do not count as right.
    assert case.is_right((candidate.run(),)) or VARIANTS[variant].dtype in ("float16", "bfloat16")


@pytest.mark.parametrize("named", ["sum", "sum+segments", "reverse+carry", "sum+linear"])
def test_a_small_soaked_case_of_each_extra(named: str) -> None:
    case = soak.case_of(named, (3, 40), 1, "cpu")
    with scanops.emulate():
        results, again = (case.run(poison(torch.empty_like(case.y), which)) for which in (0, 1))
    assert case.is_right(results)
    assert all(map(torch.equal, results, again))
    assert not case.is_right(tuple(result + 1 for result in results))


def test_soaked_cases_reach_what_splits_lines_over_blocks() -> None:
    wanted = [soak.case_of(*case, "cpu", filled=False).wanted(MULTIPROCESSORS) for case in soak.CASES]
    assert {make_plan(spec, "sm_90", few).strategy for spec, few in wanted} == {"split", "wave", "panels", "columns"}
    assert {named.partition("+")[2] for named, *_ in soak.CASES} == {"", "segments", "carry", "linear"}


def test_a_wrong_result_is_seen() -> None:
    case = allocate(small("sum", 5, 300), "cpu")
    right = torch.cumsum(case.x, 1)
    slip = right.clone()
    slip[4, 299] += 1
    assert [case.is_right((y,)) for y in (right, slip, poison(right.clone()))] == [True, False, False]
    assert same_bits(slip, slip.clone()) and not same_bits(right, slip)
    assert not same_bits(poison(case.y), poison(case.y.clone(), 1))


def test_configurations_of_cub_and_triton_cover_every_line_and_are_legal_launches() -> None:
    for cell in TABLE:
        tiles, calls_of = (cub.configurations(cell) if cell.inner == 1 else []), triton.configurations(cell)
        assert (cell.inner > 1 or tiles) and calls_of, cell.name
        for found in (tiles, calls_of):
            assert len({label for label, *_ in found}) == len(found) <= 25, cell.name
        for _, calls in calls_of:
            for call in calls:
                assert 1 <= call.warps <= 32
                assert min(call.grid) >= 1 and max(call.grid[1:], default=1) <= 65535 and call.grid[0] < 2**31
            if calls[-1].kernel.endswith("chunks"):
                *_, chunk, number = calls[-1].numbers
                assert (number - 1) * chunk < cell.length <= number * chunk


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sum", "masked", "prod_masked_reverse_exclusive", "sum_bf16"])
@pytest.mark.parametrize("shape", [(300, 7), (65, 1000), (67, 8191), (1, 70001), (3, 1000, 64)])
def test_every_candidate_is_right(variant: str, shape: tuple[int, ...]) -> None:
    case = allocate(small(variant, *shape))
    for peer in (cub.Cub(), triton.Triton()):
        peer.prepare([case.cell], "sm_90")
        if peer.reason(case.cell):
            continue
        for candidate in peer.candidates(case):
            poison(case.y)
            assert case.is_right((candidate.run(),)), (peer.name, candidate.label)


@pytest.mark.parametrize("option", ["--groups=table,everything", "--filter=no such cell", "--into=earlier.json"])
def test_a_grid_that_is_refused(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured, with the offending value in the error."""
    monkeypatch.chdir(tmp_path)
    Path("earlier.json").write_text('{"cells": []}')
    with pytest.raises(ScanopsError, match=option.partition("=")[2].rpartition(",")[2]):
        grid.main([option])
