"""Scans of a sharded dimension: pure functions over a list of shards, and processes that scan together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from benchmarks.sharded_calls import (
    LAYOUTS,
    OPERATORS,
    VARIANTS,
    WORLDS,
    Request,
    difference,
    small_request,
)
from scanops.distributed import shards
from scanops.distributed.groups import Group
from scanops.distributed.sharded_scan import How, Sent, prepare
from scanops.distributed.shards import Carry
from scanops.errors import UnsupportedRequest
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from tests.distributed.ranks import DTYPE, by_threads, whole
from tests.scripts import ROOT, ran


def forward(request: Request) -> list[tuple[torch.Tensor, ...]]:
    """The results of every rank, the ranks one after the other: the exchange is a list."""
    ranks, scans, op = len(request.table), [], getattr(request.op, "name", request.op)
    reverse, exclusive, final = (request.given.get(name, False) for name in ("reverse", "exclusive", "return_final"))
    lengths, initial = [len(request.places(rank)) for rank in range(ranks)], request.given.get("initial")
    for rank in range(ranks):
        given, group = request.local(rank), Group(None, ranks, rank)
        tensors = Inputs(*(given.get(name) for name in ("x", "mask", "gate", "segment_starts", "offsets")), initial)
        scan = prepare("scan", Call(op, 1, reverse, exclusive, final), tensors, group, How(**request.how))
        shard = scan.shard_with(tensors._replace(initial=None))
        if tensors.offsets is not None:
            _, shard = scan.place_flags(lengths, shard, tensors.offsets)
        scans.append((scan, shard, [shards.totals(part) for part in scan.parts(shard)]))
    states = tuple(torch.stack([torch.stack([each[k] for each in of_rank]) for *_, of_rank in scans])
                   for k in range(len(scans[0][2][0])))  # fmt: skip
    results = []
    for scan, shard, _ in scans:
        begins = scan.starts(lengths)
        after, places = shards.fold(shard, scan.in_order(states), initial, begins)
        carries = [
            Carry(after[at - 1], after[-1], None if places is None else places[at - 1])
            if at else Carry(None if initial is None else torch.as_tensor(initial).expand(shard.lines), after[-1])
            for at in scan.layout.positions
        ]  # fmt: skip
        starts = [begins[at] for at in scan.layout.positions]
        results.append(scan.with_final(scan.finish(Sent(shard, (), carries, starts, 0)), after[-1]))
    return results


def requests_on(most: int) -> some.SearchStrategy[Request]:
    """Calls on up to so many ranks."""
    how = map(some.sampled_from, (LAYOUTS, VARIANTS, OPERATORS))
    return some.builds(small_request, some.integers(0, 1000), some.integers(1, most), *how)


@settings(max_examples=25)
@given(requests_on(128))
def test_any_number_of_ranks(request: Request) -> None:
    expected = whole(request)[0]
    for rank, found in enumerate(forward(request)):
        assert difference(request, (list(found), (), ()), (expected, (), ()), rank, torch.clone) == ""


@settings(max_examples=15)
@given(requests_on(8))
def test_gradients_on_threads(request: Request) -> None:
    by_threads(request)


@pytest.mark.parametrize("words", ["starts offsets", "outside", "complete", "nowhere"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_typed_errors(words: str, layout: str) -> None:
    """What one process refuses, or sharded scans alone, every rank refuses: in any layout, and one rank as well."""
    for ranks in (1, 2):
        by_threads(small_request(0, ranks, layout, words, ("sum", False)))


@settings(max_examples=10)
@given(some.integers(1, 128), some.integers(0, 1000))
def test_gradients_of_carries_over_any_number_of_ranks(ranks: int, seed: int) -> None:
    """r[k-1] = slope[k] * r[k] + entry[k], from the gradient of the carry-out to that of the initial value."""
    slopes, entries = torch.randn(2, ranks, 2, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))
    r = [torch.ones(2, dtype=DTYPE)]
    for slope, entry in zip(slopes.flip(0), entries.flip(0), strict=True):
        r.append(slope * r[-1] + entry)
    back = shards.fold_back(slopes, entries, r[0], Call("linear", 0, True, dtype=DTYPE))
    torch.testing.assert_close(back, (torch.stack(r[-2::-1]), r[ranks]))


def test_processes(tmp_path: Path) -> None:
    """Eight processes of gloo: values, gradients, second derivatives, calls that differ, ranks that leave."""
    done = ran(sys.executable, "-m", "tests.distributed.ranks", tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.count("right") == max(WORLDS)


def test_random_calls() -> None:
    """150 of all dtypes, layouts and keywords, on 1, 2, 3, 4 and 8 ranks of gloo.

    ``python -m benchmarks distributed_gloo --filter fuzz --seed 2`` draws 10,000 others.
    """
    words = ("distributed_gloo", "--filter", "fuzz", "--fuzz", 150, "--seed", 7)
    said = ran(sys.executable, "-m", "benchmarks", *words, PYTHONPATH=str(ROOT)).stdout
    assert said.endswith("1 parts, wrong: none\n") and "'calls': 150," in said, said


def test_without_a_process_group() -> None:
    from scanops import distributed as sd

    with pytest.raises(UnsupportedRequest, match="there is no process group"):
        sd.cumsum(torch.ones(2, 3), 1)


HELD = """
import atexit, gc, sys, weakref
import torch, torch.distributed as dist
atexit.register(lambda: (gc.collect(), print("gone" if group() is None else "held")))  # after those that come later
import scanops.distributed as sd
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
x = torch.ones(3, requires_grad=True)
sd.cumsum(x, 0).sum().backward()
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
"""


def test_no_process_group_ends_with_the_interpreter(tmp_path: Path) -> None:
    """Its threads might then abort the process."""
    assert ran(sys.executable, "-c", HELD, tmp_path, PYTHONPATH=str(ROOT)).stdout == "gone\n"


def test_a_rank_cuts_its_part_on_the_device_of_the_items() -> None:
    """Benchmarks compare calls on GPUs, where an index that is on the CPU selects nothing."""
    request = small_request(0, 2, "chunk", "mask initial", ("linear", False))
    there = request._replace(given={name: each.to("meta") for name, each in request.given.items()})
    for rank in range(2):
        assert there.places(rank).is_meta
        assert {name: each.shape for name, each in there.local(rank).items()} == {
            name: each.shape for name, each in request.local(rank).items()
        }
