"""The grid holds what the project promises, every cell of the table with its floor and its goal; soak's cases, too."""

from __future__ import annotations

import pytest
import torch

import scanops
from benchmarks import soak
from benchmarks.cells import ITEMS, VARIANTS, Cell, allocate, poison, spec_of
from benchmarks.table import GROUPS, RANDOM_LENGTHS, SLACK, cells, row_floor, select
from scanops.codegen.plan import make_plan
from scanops.errors import UnsupportedRequest

GRID = cells(seed=7)
TABLE = {cell.name: cell for cell in GRID if cell.group == "table"}
MULTIPROCESSORS = 132


def named(variant: str, *shape: int) -> Cell:
    return TABLE[f"{variant} {'x'.join(map(str, shape))} dim 1"]


def test_the_table_holds_every_family_with_its_bars() -> None:
    """Floors in time become fractions of the copy of that run."""
    assert len(TABLE) == 67 and len({cell.family for cell in TABLE.values()}) == 14
    cell = named("sum", ITEMS // 32768, 32768)
    assert (cell.floor, cell.goal) == (0.98, 0.99)
    for length in (1, 127, 1000, 4097, 65535):
        assert named("sum", ITEMS // length, length).floor == row_floor(length)
    assert named("prod", 32768, 32768).bars(2.0) == (pytest.approx(2.0 / 2.04), pytest.approx(2.0 / 2.02))
    assert named("sum", 1, 2**20).bars(0.005) == (pytest.approx(0.005 / 0.0104), pytest.approx(0.005 / 0.007))


def test_names_are_unique_and_groups_complete() -> None:
    assert len({cell.name for cell in GRID}) == len(GRID)
    assert {cell.group for cell in GRID} == set(GROUPS)
    for cell in GRID:
        floor, goal = cell.bars(1.0)
        assert floor > 0 and (goal is None or goal > 0) and cell.items >= 2**16
    assert sum(cell.quick for cell in GRID) >= 10 and 15 <= sum(cell.compiled for cell in GRID) <= 30
    made: dict[object, set[str]] = {}
    for cell in GRID:
        if cell.group == "variants":
            made.setdefault((cell.shape, cell.dim), set()).add(cell.variant)
    assert made
    wanted = {"prod", "reverse", "exclusive", "masked", "prod_masked_reverse_exclusive"}
    for cell in GRID:
        made.get((cell.shape, cell.dim), set()).add(cell.variant)
    assert all(wanted <= variants for variants in made.values())


def test_selection_and_random_lengths() -> None:
    drawn = [cell for cell in GRID if cell.group == "random"]
    assert len(drawn) == RANDOM_LENGTHS
    assert all(1 <= cell.length <= 200_000 and cell.floor == row_floor(cell.length) - SLACK for cell in drawn)
    assert cells(7, ["random"]) == drawn != cells(8, ["random"])
    assert select(GRID, text="middle dims") == [cell for cell in GRID if cell.family == "middle dims"]
    quick = select(GRID, quick=True)
    assert 50 <= len(quick) <= 100 and {cell.group for cell in quick} == set(GROUPS)
    with pytest.raises(UnsupportedRequest, match="nothing"):
        select(GRID, text="no such cell")
    with pytest.raises(UnsupportedRequest, match="everything"):
        cells(1, ["everything"])


def test_views_have_runs_of_64_bytes_and_offsets_are_in_elements() -> None:
    for cell in GRID:
        if cell.strides is None:
            continue
        runs = [size for size, stride in zip(cell.shape, cell.strides, strict=True) if stride == 1]
        assert max(runs) * cell.what.input.bytes >= 64, cell.name
        shape, strides = tuple(min(size, 2) for size in cell.shape), cell.strides
        small = Cell(group="views", family="", variant=cell.variant, shape=shape, dim=cell.dim, strides=strides)
        assert allocate(small, "cpu", filled=False).x.stride() == strides
    case = allocate(Cell(group="offsets", family="", variant="sum", shape=(2, 3), dim=1, offset=3), "cpu")
    assert case.x.storage_offset() == 3 and not spec_of(case, MULTIPROCESSORS).aligned


def test_each_cell_of_the_table_has_a_spec_and_a_plan() -> None:
    for cell in TABLE.values():
        spec = spec_of(allocate(cell, "meta", filled=False), MULTIPROCESSORS)
        assert (spec.length, spec.inner, spec.op) == (cell.length, cell.inner, cell.what.op)
        assert make_plan(spec, "sm_90").spec == spec


@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_are_the_same_each_time_and_harmless(variant: str) -> None:
    """And bytes are what a scan has to move: those of its tensors."""
    cell = Cell(group="table", family="", variant=variant, shape=(3, 1000), dim=1)
    first, second = allocate(cell, "cpu"), allocate(cell, "cpu")
    assert torch.equal(first.x, second.x)
    tensors = [first.x, first.y, *([first.mask] if first.mask is not None else [])]
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == cell.bytes
    scan = torch.cumprod if cell.what.op == "prod" else torch.cumsum
    wide = scan(first.x.double(), 1)
    assert wide.isfinite().all() and 1e-6 < wide.abs().max() < 1e6


def subject_of(named: str, shape: tuple[int, ...], dim: int, *, filled: bool = True) -> soak.Subject:
    variant, _, extra = named.partition("+")
    cell = Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim)
    return soak.Subject(allocate(cell, "cpu", filled=filled), extra)


@pytest.mark.parametrize(("named", "shape", "dim"), soak.CASES)
def test_a_small_one_of_each_soaked_case(named: str, shape: tuple[int, ...], dim: int) -> None:
    subject = subject_of(named, tuple(min(size, 40) for size in shape), dim)
    with scanops.emulate():
        results = subject.run(poison(torch.empty_like(subject.case.y)))
        again = subject.run(poison(torch.empty_like(subject.case.y), 1))
    assert subject.is_right(results)
    assert all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
    assert not subject.is_right(tuple(result + 1 for result in results))


def test_soaked_cases_reach_what_splits_lines_over_blocks() -> None:
    specs = [subject_of(*case, filled=False).spec(MULTIPROCESSORS) for case in soak.CASES]
    assert {make_plan(spec, "sm_90").strategy for spec in specs} == {"split", "wave", "panels", "columns"}
