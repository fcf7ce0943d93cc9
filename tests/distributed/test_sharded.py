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
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from scanops.requests.segments import flags_along
from tests.distributed.ranks import DTYPE, FLOATS, VARIANTS, WHOLE, WORLDS, Case, called, case_of
from tests.scripts import ROOT, ran


def forward(case: Case) -> list[list[torch.Tensor]]:
    """The results of every rank, the ranks one after the other: the exchange is a list."""
    ranks, found, op = range(len(case.bounds) - 1), [], getattr(case.op, "name", case.op)
    reverse, exclusive, final = (case.given.get(name, False) for name in ("reverse", "exclusive", "return_final"))
    for rank in ranks:
        given = case.local(rank)
        starts = given.get("segment_starts")
        if "offsets" in given:
            starts = flags_along(None, given["offsets"], given["x"], 1, case.bounds[rank])
        tensors = Inputs(given["x"], given.get("mask"), given.get("gate"), starts)
        found.append(shards.shard_of(Call(op, 1, reverse, exclusive, final), tensors, None))
    totals = [shards.totals(shard, case.bounds[rank]) for rank, shard in zip(ranks, found, strict=True)]
    states = tuple(map(torch.stack, zip(*(reversed(totals) if reverse else totals), strict=True)))
    results = []
    for rank, shard in zip(ranks, found, strict=True):
        position = len(ranks) - 1 - rank if reverse else rank
        carry = shards.fold(shard, states, case.given.get("initial"), position)
        results.append([*shards.finish(shard, carry, case.bounds[rank]), *([carry.final] if final else [])])
    return results


@settings(max_examples=25)
@given(
    some.sampled_from((*FLOATS, *WHOLE)), some.integers(1, 128), some.sampled_from(("chunk", "even", "random")),
    some.sampled_from(VARIANTS), some.integers(0, 1000),
)  # fmt: skip
def test_any_number_of_ranks(op: Any, ranks: int, how: str, variant: str, seed: int) -> None:
    whole = op in WHOLE[:4] or op not in FLOATS
    scanops.scan(torch.ones(1, dtype=torch.int64), WHOLE[0], 0)  # its name is known from here on
    case = case_of(op, ranks, how, variant, seed, whole)
    expected = called(scanops, op, case.given)
    for rank, found in enumerate(forward(case)):
        for mine, all_of in zip(found, expected, strict=True):
            part = all_of if all_of.ndim == 1 else all_of[:, case.bounds[rank] : case.bounds[rank + 1]]
            if case.exact:
                assert torch.equal(mine, part)
            else:
                torch.testing.assert_close(mine, part)


@settings(max_examples=10)
@given(some.integers(1, 128), some.integers(0, 1000))
def test_gradients_of_carries_over_any_number_of_ranks(ranks: int, seed: int) -> None:
    """r[k-1] = slope[k] * r[k] + entry[k], from the gradient of the carry-out to that of the initial value."""
    slopes, entries = torch.randn(2, ranks, 2, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))
    r = [torch.ones(2, dtype=DTYPE)]
    for slope, entry in zip(slopes.flip(0), entries.flip(0), strict=True):
        r.append(slope * r[-1] + entry)
    for k in range(ranks):
        found = shards.fold_back(slopes, entries, r[0], k)
        torch.testing.assert_close(found, (r[ranks - 1 - k], r[ranks]))


def test_processes(tmp_path: Path) -> None:
    """Eight processes of gloo: values, gradients, second derivatives, calls that differ, ranks that leave."""
    done = ran(sys.executable, "-m", "tests.distributed.ranks", tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.count("right") == max(WORLDS)


def test_without_a_process_group() -> None:
    from scanops import distributed as sd

    with pytest.raises(UnsupportedRequest, match="there is no process group"):
        sd.cumsum(torch.ones(2, 3), 1)
