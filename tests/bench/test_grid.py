"""The cells of the grid, their bars and their tensors; the cases of soak; what peers compute."""

from __future__ import annotations

import pytest
import torch

import scanops
from benchmarks import soak
from benchmarks.cells import VARIANTS, Cell, allocate, poison, spec_of
from benchmarks.measure import is_right, same_bits
from benchmarks.peers import all_peers, cub, triton
from benchmarks.peers.eager import Eager
from benchmarks.table import GROUPS, SLACK, cells, row_floor
from scanops.codegen.plan import make_plan

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
    assert case.x.storage_offset() == 3 and not spec_of(case, MULTIPROCESSORS)[0].aligned


def small(variant: str, *shape: int) -> Cell:
    return Cell(group="table", family="", variant=variant, shape=shape, dim=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant(variant: str) -> None:
    """Inputs are the same each time and harmless, bytes those that a scan has to move; torch composes the scan."""
    cell = small(variant, 5, 300)
    case, second = allocate(cell, "cpu"), allocate(cell, "cpu")
    assert torch.equal(case.x, second.x)
    tensors = [case.x, case.y, *([case.mask] if case.mask is not None else [])]
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == cell.bytes
    wide = (torch.cumprod if cell.what.op == "prod" else torch.cumsum)(case.x.double(), 1)
    assert wide.isfinite().all() and 1e-6 < wide.abs().max() < 1e6
    (candidate,) = Eager().candidates(case)
    poison(case.y)
    # torch's own half types round at each step: they are measured, and their results do not count as right.
    assert is_right(case, candidate.run()) or VARIANTS[variant].dtype in ("float16", "bfloat16")


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
    assert {make_plan(spec, "sm_90", few).strategy for spec, few in specs} == {"split", "wave", "panels", "columns"}
    assert {named.partition("+")[2] for named, *_ in soak.CASES} == {"", "segments", "carry", "linear"}


def test_a_wrong_result_is_seen() -> None:
    case = allocate(small("sum", 5, 300), "cpu")
    right = torch.cumsum(case.x, 1)
    slip = right.clone()
    slip[4, 299] += 1
    assert [is_right(case, y) for y in (right, slip, poison(right.clone()))] == [True, False, False]
    assert same_bits(slip, slip.clone()) and not same_bits(right, slip)
    assert not same_bits(poison(case.y), poison(case.y.clone(), 1))


def test_each_peer_answers_or_gives_a_reason() -> None:
    for peer in all_peers():
        reasons = {cell.name: peer.reason(cell) for cell in TABLE}
        assert all(isinstance(reason, str) for reason in reasons.values())
        if peer.name == "torch.compile":
            assert all(cell.compiled or reasons[cell.name] for cell in TABLE)
        if peer.name == "CUB":
            assert all("strided" in reasons[cell.name] for cell in TABLE if cell.family == "middle dims")


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
            assert is_right(case, candidate.run()), (peer.name, candidate.label)
