"""benchmarks/soak.py: its cases are what they say, and are served; their repetition needs a GPU."""

from __future__ import annotations

import pytest
import torch

import scanops
from benchmarks import soak
from benchmarks.cells import Cell, allocate, poison
from scanops.codegen.plan import make_plan

MULTIPROCESSORS = 132
SMALL = 40  # items of a dimension, at the most


def _subject(named: str, shape: tuple[int, ...], dim: int, *, filled: bool = True) -> object:
    variant, _, extra = named.partition("+")
    cell = Cell(group="soak", family="split over blocks", variant=variant, shape=shape, dim=dim)
    return soak.Subject(allocate(cell, "cpu", filled=filled), extra)


@pytest.mark.parametrize(("named", "shape", "dim"), soak.CASES)
def test_a_small_one_of_each_case(named: str, shape: tuple[int, ...], dim: int) -> None:
    subject = _subject(named, tuple(min(size, SMALL) for size in shape), dim)
    with scanops.emulate():
        results = subject.run(poison(torch.empty_like(subject.case.y)))
        again = subject.run(poison(torch.empty_like(subject.case.y), 1))
    assert subject.is_right(results)
    assert all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
    assert not subject.is_right(tuple(result + 1 for result in results))


def test_cases_reach_what_splits_lines_over_blocks() -> None:
    specs = [_subject(*case, filled=False).spec(MULTIPROCESSORS) for case in soak.CASES]
    assert {make_plan(spec, "sm_90").strategy for spec in specs} == {"split", "wave", "panels", "columns"}
