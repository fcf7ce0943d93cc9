"""The workspace of launches, which holds tile status: one for each thread and stream, dropped after a failure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import scanops
from scanops.runtime import workspaces
from tests.numbers import oracle

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_WORKSPACES", {})


def test_a_thread_has_a_workspace_of_its_own_until_a_launch_fails() -> None:
    first = workspaces.workspace(CPU, 0, 64)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(workspaces.workspace, CPU, 0, 64).result() is not first
    assert workspaces.workspace(CPU, 0, 64) is first
    workspaces.drop_workspace(CPU, 0)
    workspaces.drop_workspace(CPU, 0)  # where there is none
    assert workspaces.workspace(CPU, 0, 64) is not first


def test_kernels_of_different_plans_share_a_workspace() -> None:
    """Split rows and waves, of more and fewer tiles: no launch reads the tile status of another."""
    shapes = [(1, 9000), (2, 70000), (7, 40004), (2, 131076), (5, 40003)]  # at first one that has to grow
    with scanops.emulate():
        for shape in shapes * 2:
            x = oracle.values("sum", shape, torch.float32, seed=shape[1])
            assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))
    assert len(workspaces._WORKSPACES) == 1
    board = next(iter(workspaces._WORKSPACES.values())).view(torch.int64)
    tickets, launches = int(board[0]) & 0xFFFFFFFF, int(board[0]) >> 32
    assert tickets == 0, "the last launch did not open the next"
    assert launches >= len(shapes)  # a larger workspace begins to count anew
