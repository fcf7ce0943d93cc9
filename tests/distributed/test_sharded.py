"""Scans of a sharded dimension: pure functions over a list of shards, and processes that scan together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

import scanops
from scanops.distributed import shards
from scanops.distributed.calls import Work
from scanops.distributed.groups import Group
from scanops.distributed.spans import layout_of, span_table
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from tests.distributed.ranks import (
    DTYPE,
    FLOATS,
    HOWS,
    LENGTH,
    VARIANTS,
    WHOLE,
    WORLDS,
    Case,
    by_threads,
    called,
    case_of,
    derived,
)  # fmt: skip
from tests.scripts import ROOT, ran


def forward(case: Case) -> list[tuple[torch.Tensor, ...]]:
    """The results of every rank, the ranks one after the other: the exchange is a list."""
    ranks, works, op = len(case.table), [], getattr(case.op, "name", case.op)
    reverse, exclusive, final = (case.given.get(name, False) for name in ("reverse", "exclusive", "return_final"))
    lengths = [len(case.places(rank)) for rank in range(ranks)]
    for rank in range(ranks):
        given = case.local(rank)
        tensors = Inputs(given["x"], given.get("mask"), given.get("gate"), given.get("segment_starts"))
        shard = shards.shard_of(Call(op, 1, reverse, exclusive, final), tensors, given.get("offsets"))
        table = span_table("scan", case.how.get("spans"), ranks, lengths[rank])
        group = Group(None, tuple(range(ranks)), rank)
        works.append(Work(shard, group, layout_of("scan", table, ranks, rank, lengths[rank])))
        works[-1].place(lengths)
    states = tuple(map(torch.stack, zip(*(work.totals() for work in works), strict=True)))
    results = []
    for work in works:
        carries = shards.fold(
            work.shard, work.in_order(states), case.given.get("initial"), work.layout.positions
        )  # fmt: skip
        results.append(work.with_final(work.finished(carries), carries[0].final))
    return results


some_case = (
    some.sampled_from((*FLOATS, *WHOLE)), some.sampled_from(HOWS), some.sampled_from(VARIANTS), some.integers(0, 1000)
)  # fmt: skip


def drawn(op: Any, ranks: int, how: str, variant: str, seed: int) -> Case:
    """A case of an operator whose name is known from here on; operators of integers alone have those."""
    scanops.scan(torch.ones(1, dtype=torch.int64), WHOLE[0], 0)
    return case_of(op, ranks, how, variant, seed, op in WHOLE[:4] or op not in FLOATS)


@settings(max_examples=25)
@given(some.integers(1, 128), *some_case)
def test_any_number_of_ranks(ranks: int, op: Any, how: str, variant: str, seed: int) -> None:
    case = drawn(op, ranks, how, variant, seed)
    expected = called(scanops, op, case.given)
    for rank, found in enumerate(forward(case)):
        for mine, all_of in zip(found, expected, strict=True):
            part = all_of if all_of.ndim == 1 else all_of[:, case.places(rank)]
            if case.exact:
                assert torch.equal(mine, part)
            else:
                torch.testing.assert_close(mine, part)


@settings(max_examples=15)
@given(some.integers(1, 8), *some_case)
def test_gradients_on_threads(ranks: int, op: Any, how: str, variant: str, seed: int) -> None:
    case = drawn(op, ranks, how, variant, seed)
    by_threads(case, derived(scanops, case, case.given, torch.arange(LENGTH), seed % 4 == 0))


@settings(max_examples=10)
@given(some.integers(1, 128), some.integers(0, 1000))
def test_gradients_of_carries_over_any_number_of_ranks(ranks: int, seed: int) -> None:
    """r[k-1] = slope[k] * r[k] + entry[k], from the gradient of the carry-out to that of the initial value."""
    slopes, entries = torch.randn(2, ranks, 2, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))
    r = [torch.ones(2, dtype=DTYPE)]
    for slope, entry in zip(slopes.flip(0), entries.flip(0), strict=True):
        r.append(slope * r[-1] + entry)
    torch.testing.assert_close(shards.fold_back(slopes, entries, r[0]), (torch.stack(r[-2::-1]), r[ranks]))


def test_processes(tmp_path: Path) -> None:
    """Eight processes of gloo: values, gradients, second derivatives, calls that differ, ranks that leave."""
    done = ran(sys.executable, "-m", "tests.distributed.ranks", tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.count("right") == max(WORLDS)


def test_without_a_process_group() -> None:
    from scanops import distributed as sd

    with pytest.raises(UnsupportedRequest, match="there is no process group"):
        sd.cumsum(torch.ones(2, 3), 1)
