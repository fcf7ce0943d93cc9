"""Offsets of segments: their values are checked once, again after each change, and not where torch has no values."""

from __future__ import annotations

import functools
import io
import pickle

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused


@pytest.mark.parametrize("way", ["eager", "strided", "functionalized", "inference"])
def test_changed_offsets_are_checked_again(way: str, device: str) -> None:
    """Those of inference mode have no version counter, and those of a functionalized call come from outside."""
    with torch.inference_mode(way == "inference"):
        x, given = torch.ones(4, device=device), torch.tensor([0, 2, 4], device=device)
        if way == "strided":
            given = given.int().repeat_interleave(2)[::2]

        def scan(x: torch.Tensor, offsets: torch.Tensor = given) -> list[float]:
            call = functools.partial(scanops.cumsum, dim=0, offsets=offsets)
            return (torch.func.functionalize(call) if way == "functionalized" else call)(x).tolist()

        for _ in range(3):
            assert scan(x) == [1, 2, 1, 2]
        assert scan(x, torch.tensor([0, 0, 4], device=device)) == [1, 2, 3, 4]
        given[1] = 3
        assert scan(x) == [1, 2, 3, 1]
        given[1] = 5
        refused(UnsupportedRequest, lambda: scan(x), "falling at index 2")
        given[1] = 1
        assert scan(x) == [1, 1, 2, 3]
        refused(UnsupportedRequest, lambda: scan(x[:3]), "to 4")


def test_offsets_that_a_scan_has_written_are_checked_again(device: str) -> None:
    """As cu_seqlens are made: a buffer that begins with 0, filled with sums of lengths."""
    x, given = torch.ones(4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    for lengths, expected in (((2, 2), [1, 2, 1, 2]), ((1, 3), [1, 1, 2, 3])):
        scanops.cumsum(torch.tensor(lengths, device=device), 0, out=given[1:])
        assert scanops.cumsum(x, 0, offsets=given).tolist() == expected
    scanops.cumsum(torch.tensor((400, 3), device=device), 0, out=given[1:])
    refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "to 403")


def test_checked_offsets_are_saved_as_tensors(device: str) -> None:
    """Who reads the file need not know scanops, nor trust it."""
    given = torch.tensor([0, 2, 4], device=device)
    scanops.cumsum(torch.ones(4, device=device), 0, offsets=given)
    file = io.BytesIO()
    torch.save({"cu_seqlens": given}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["cu_seqlens"], given)
    assert not vars(given) and b"scanops" not in pickle.dumps(given)


@pytest.mark.gpu
def test_offsets_under_capture() -> None:
    """Values are not read while a graph is captured; offsets that were checked before are known."""
    x, given = torch.ones(4, device="cuda"), torch.tensor([0, 2, 4], device="cuda")
    known = torch.tensor([0, 1, 4], device="cuda")
    scanops.cumsum(x, 0, offsets=known)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scanops.cumsum(x, 0, offsets=known)
        refused(UnsupportedRequest, lambda: scanops.cumsum(x, 0, offsets=given), "offsets of shape (3,)")
    graph.replay()
    assert y.tolist() == [1, 1, 2, 3]
