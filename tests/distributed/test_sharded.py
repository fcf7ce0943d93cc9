"""Scans of a sharded dimension: ranks that are threads, and processes that scan together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as some

import scanops
import scanops.distributed as sd
from scanops.errors import UnsupportedRequest
from tests.distributed.calls import (
    LAYOUTS,
    OPERATORS,
    VARIANTS,
    WORLDS,
    Request,
    small_request,
)
from tests.distributed.ranks import by_threads
from tests.scripts import ROOT, ran


def requests_on(most: int) -> some.SearchStrategy[Request]:
    """Calls on up to so many ranks."""
    how = map(some.sampled_from, (LAYOUTS, VARIANTS, OPERATORS))
    return some.builds(small_request, some.integers(0, 1000), some.integers(1, most), *how)


@settings(max_examples=10)
@given(requests_on(24))
def test_any_number_of_ranks(request: Request) -> None:
    by_threads(request)


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


def test_processes(tmp_path: Path) -> None:
    """Eight processes of gloo: values, gradients, second derivatives, calls that differ, ranks that leave."""
    done = ran(sys.executable, "-m", "tests.distributed.ranks", tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.count("right") == max(WORLDS)


def test_random_calls() -> None:
    """150 of all dtypes, layouts and keywords, on 1, 2, 3, 4 and 8 ranks of gloo.

    ``python -m tests.distributed.gloo_trials --filter fuzz --seed 2`` draws 10,000 others.
    """
    words = ("--filter", "fuzz", "--fuzz", 150, "--seed", 7)
    said = ran(sys.executable, "-m", "tests.distributed.gloo_trials", *words, PYTHONPATH=str(ROOT)).stdout
    assert said.endswith("1 parts, wrong: none\n") and "'calls': 150," in said, said


def test_own_operators_are_not_suggested() -> None:
    """The hint names what sharded scans take."""
    own: Any = scanops.operator(fields=["x"], combine=lambda a, b: a + b)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(UnsupportedRequest, match="gather the dimension") as raised:
            sd.scan(torch.ones(3), own, 0)
        assert "or an operator of scanops.operator" not in str(raised.value)
    finally:
        dist.destroy_process_group()


def test_without_a_process_group() -> None:
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
