"""One pass over several nodes: emulated kernels and messages of processes that say which node each is on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from scanops.distributed.method_costs import Load, choose_bands, compare_methods
from scanops.distributed.nodes import are_contiguous
from scanops.distributed.pipeline import divide_lines
from tests.distributed.node_ranks import NAMES
from tests.scripts import ROOT, ran


@pytest.mark.parametrize("layout", NAMES)
def test_processes_on_nodes(tmp_path: Path, layout: str) -> None:
    """Values, orders of ranks, checks; nodes that differ, and ranks that fail."""
    done = ran(sys.executable, "-m", "tests.distributed.node_ranks", tmp_path, layout, folder=ROOT)
    assert done.stdout.split() == ["right"] * len(NAMES[layout]), done.stdout + done.stderr


@pytest.mark.parametrize("shape", [(37, 5), (1, 5), (64, 5), (2, 3, 5), (4, 1, 7, 5, 3), (2, 100, 5), (1, 40, 5)])
def test_bands_hold_every_line_once(shape: tuple[int, ...]) -> None:
    """In order, none larger than the first, each contiguous in a contiguous tensor; whatever their number."""
    dim = shape.index(5)
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for count in range(1, 40):
        bands = [band.take(x) for band in divide_lines(shape, dim, count)]
        assert torch.equal(torch.cat([each.reshape(-1) for each in bands]), x.reshape(-1))
        assert all(each.is_contiguous() and each.numel() <= bands[0].numel() for each in bands)
        assert len(bands) <= 2 * count


def test_nodes_are_contiguous() -> None:
    assert are_contiguous("aabbb")
    assert not are_contiguous("aba")


@pytest.mark.parametrize(
    ("fronts", "ranks", "nodes", "microseconds", "wanted"),
    [
        (4096, 2, 2, 100_000.0, 64),  # at most 64
        (4096, 1, 2, 1000.0, 6),  # each takes 150 us
        (64, 4, 2, 100_000.0, 5),  # few fronts: each band waits for those of other ranks, (64 / 3) ** 0.5
        (4096, 4, 2, 100.0, 1),
    ],
)
def test_bands_are_as_many_as_take_the_least_time(
    fronts: int, ranks: int, nodes: int, microseconds: float, wanted: int
) -> None:
    size = int(microseconds * 1e-6 * 3e12)
    bands, costs = choose_bands(Load(fronts, 4096, 0, is_recurrence=False), size, ranks, nodes)
    assert bands == wanted
    assert costs == compare_methods(fronts, ranks, is_recurrence=False, nodes=nodes, bands=bands)


def test_no_bands_take_as_long_as_all_nodes_one_after_the_other() -> None:
    assert compare_methods(100, 1, is_recurrence=True, nodes=3).onepass == 3
    assert compare_methods(100, 3, is_recurrence=True, nodes=3, bands=2).onepass == 2 * 52 / 50
