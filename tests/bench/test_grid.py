"""The grid holds what the project promises: every cell of the table, with its floor and its goal."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cells import ITEMS, VARIANTS, Cell, allocate, spec_of
from benchmarks.measure import generic_spec
from benchmarks.table import GROUPS, RANDOM_LENGTHS, SLACK, cells, row_floor, select
from scanops.codegen.plan import make_plan
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest

GRID = cells(seed=7)
TABLE = {cell.name: cell for cell in GRID if cell.group == "table"}


def named(variant: str, *shape: int) -> Cell:
    return TABLE[f"{variant} {'x'.join(map(str, shape))} dim 1"]


def test_the_table_holds_every_family_with_its_bars() -> None:
    assert len(TABLE) == 67 and len({cell.family for cell in TABLE.values()}) == 14
    cell = named("sum", ITEMS // 32768, 32768)
    assert (cell.floor, cell.goal) == (0.98, 0.99)
    for length in (1, 127, 1000, 4097, 65535):
        assert named("sum", ITEMS // length, length).floor == row_floor(length)


def test_floors_in_time_become_fractions_of_the_copy_of_that_run() -> None:
    assert named("prod", 32768, 32768).bars(2.0) == (pytest.approx(2.0 / 2.04), pytest.approx(2.0 / 2.02))
    assert named("sum", 1, 2**20).bars(0.005) == (pytest.approx(0.005 / 0.0104), pytest.approx(0.005 / 0.007))


def test_names_are_unique_and_groups_complete() -> None:
    names = [cell.name for cell in GRID]
    assert len(set(names)) == len(names)
    assert {cell.group for cell in GRID} == set(GROUPS)
    for cell in GRID:
        floor, goal = cell.bars(1.0)
        assert floor > 0
        assert goal is None or goal > 0
        assert cell.items >= 2**16
    assert sum(cell.quick for cell in GRID) >= 10
    assert 15 <= sum(cell.compiled for cell in GRID) <= 30


def test_the_seed_draws_the_random_lengths() -> None:
    drawn = [cell for cell in GRID if cell.group == "random"]
    assert len(drawn) == RANDOM_LENGTHS
    assert all(1 <= cell.length <= 200_000 and cell.floor == row_floor(cell.length) - SLACK for cell in drawn)
    assert cells(7, ["random"]) == drawn
    assert cells(8, ["random"]) != drawn


def test_variants_cover_every_direction_mask_and_operator() -> None:
    made = {(cell.shape, cell.dim): set() for cell in GRID if cell.group == "variants"}
    for cell in GRID:
        if (cell.shape, cell.dim) in made:
            made[cell.shape, cell.dim].add(cell.variant)
    wanted = {"prod", "reverse", "exclusive", "masked", "prod_masked_reverse_exclusive"}
    assert made and all(wanted <= variants for variants in made.values())


def test_views_have_runs_of_64_bytes_and_offsets_are_in_elements() -> None:
    for cell in GRID:
        if cell.strides is None:
            continue
        runs = [size for size, stride in zip(cell.shape, cell.strides, strict=True) if stride == 1]
        assert max(runs) * cell.what.input.bytes >= 64, cell.name
        x = allocate(Cell(**{**_small(cell), "group": "views"}), "cpu", filled=False).x
        assert x.stride() == cell.strides
    offset = Cell(group="offsets", family="", variant="sum", shape=(2, 3), dim=1, offset=3)
    case = allocate(offset, "cpu")
    assert case.x.storage_offset() == 3 and not spec_of(case, 132).aligned


def _small(cell: Cell) -> dict[str, object]:
    return {
        "family": cell.family,
        "variant": cell.variant,
        "shape": tuple(min(size, 2) for size in cell.shape),
        "dim": cell.dim,
        "strides": cell.strides,
    }


def test_each_cell_of_the_table_has_a_spec_and_a_plan() -> None:
    for cell in TABLE.values():
        spec = spec_of(allocate(cell, "meta", filled=False), 132)
        assert (spec.length, spec.inner, spec.op) == (cell.length, cell.inner, cell.what.op)
        assert make_plan(spec, "sm_90").spec == spec


def test_bytes_are_what_a_scan_has_to_move() -> None:
    each = {"sum": 8, "masked": 9, "sum_bf16": 4, "sum_f64": 16, "sum_i8": 9, "sum_b8": 9}
    for variant, item_bytes in each.items():
        cell = Cell(group="table", family="", variant=variant, shape=(10, 7), dim=1)
        assert cell.bytes == 70 * item_bytes
        case = allocate(cell, "cpu", filled=False)
        tensors = [case.x, case.y, *([case.mask] if case.mask is not None else [])]
        assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == cell.bytes


@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_are_the_same_each_time_and_harmless(variant: str) -> None:
    cell = Cell(group="table", family="", variant=variant, shape=(3, 1000), dim=1)
    first, second = allocate(cell, "cpu"), allocate(cell, "cpu")
    assert torch.equal(first.x, second.x)
    scan = torch.cumprod if cell.what.op == "prod" else torch.cumsum
    wide = scan(first.x.double(), 1)
    assert wide.isfinite().all() and 1e-6 < wide.abs().max() < 1e6


def test_selection() -> None:
    assert select(GRID, text="middle dims") == [cell for cell in GRID if cell.family == "middle dims"]
    quick = select(GRID, quick=True)
    assert 50 <= len(quick) <= 100
    assert {cell.group for cell in quick} == set(GROUPS)
    with pytest.raises(UnsupportedRequest, match="nothing"):
        select(GRID, text="no such cell")
    with pytest.raises(UnsupportedRequest, match="everything"):
        cells(1, ["everything"])


def test_lengths_as_arguments_give_a_spec_or_a_reason() -> None:
    spec = ScanSpec(op="sum", dtype="float32", length=1000)
    found = generic_spec(spec)
    assert isinstance(found, str) or found.length is None
    assert found
