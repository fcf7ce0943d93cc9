"""Method ``onepass``: emulated kernels of three processes, and which calls it is chosen for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from scanops.distributed import onepass, shards
from scanops.requests.call import Call
from scanops.requests.request import Inputs
from tests.scripts import ROOT, ran


def test_three_processes(tmp_path: Path) -> None:
    """Values, gradients of both orders, half types, masks, flags, empty shards; refused calls and late ranks."""
    done = ran(sys.executable, "-m", "tests.distributed.linked_ranks", tmp_path, folder=ROOT)
    assert done.stdout.split() == ["right"] * 3, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("shape", "dim", "ranks", "wanted"),
    [
        ((6, 10**6), 1, 4, "onepass"),  # as many rows as make it no slower than two passes
        ((5, 10**6), 1, 4, "twopass"),
        ((2**20,), 0, 2, "twopass"),
        ((8, 500, 4096), 1, 4, "onepass"),  # 64 fronts of 8 tiles of 64 columns
        ((1, 500, 2048), 1, 4, "twopass"),
        ((1, 500, 2048), 1, 2, "onepass"),
        ((4, 500, 0), 1, 2, "twopass"),  # no lines
    ],
)
def test_the_method_is_that_of_fewer_bytes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dim: int, ranks: int, wanted: str
) -> None:
    """The choice depends on nothing that differs between ranks, such as the length of a shard."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for length in (1, 100):
        cut = [length if d == dim else size for d, size in enumerate(shape)]
        x = torch.empty(cut, device="meta")
        shard = shards.shard_of(Call("sum", dim), Inputs(x), None)
        assert onepass.choose_method("auto", shard, ranks, 1, recorded=False) == wanted
        assert onepass.choose_method("twopass", shard, ranks, 1, recorded=False) == "twopass"
