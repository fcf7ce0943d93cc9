"""The boards of launches: cleared once, left to the launches of one stream, dropped after a failure."""

from __future__ import annotations

import threading

import pytest
import torch

import scanops
from scanops.runtime import launcher
from tests.numbers.oracle import sequential, values

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_WORKSPACES", {})


def test_a_board_stays() -> None:
    first = launcher.workspace(CPU, 0, 1000)
    first[0] = 7
    assert launcher.workspace(CPU, 0, 900) is first
    assert int(launcher.workspace(CPU, 0, 1024)[0]) == 7


def test_a_larger_one_is_cleared() -> None:
    first = launcher.workspace(CPU, 0, 1000)
    first.fill_(1)
    larger = launcher.workspace(CPU, 0, 5000)
    assert larger.numel() >= 5000 and not larger.any()
    assert launcher.workspace(CPU, 0, 1000) is larger


def test_a_thread_of_its_own_has_a_board_of_its_own() -> None:
    mine, others = launcher.workspace(CPU, 0, 64), []
    thread = threading.Thread(target=lambda: others.append(launcher.workspace(CPU, 0, 64)))
    thread.start()
    thread.join()
    assert others[0] is not mine


def test_a_failed_launch_leaves_none() -> None:
    first = launcher.workspace(CPU, 0, 64)
    launcher._drop_workspace(CPU, 0)
    launcher._drop_workspace(CPU, 0)  # nothing to drop is fine
    assert launcher.workspace(CPU, 0, 64) is not first


def test_kernels_of_different_plans_share_a_board() -> None:
    """Launch after launch, of split and wave, with more and fewer tiles: nobody reads a word of another launch."""
    shapes = [(2, 70000), (7, 40004), (1, 9000), (2, 131076), (5, 40003)]
    with scanops.emulate():
        for shape in shapes * 2:
            x = values("sum", shape, torch.float32, seed=shape[1])
            y = scanops.cumsum(x, 1)
            assert torch.equal(y, sequential(x, "sum", 1, dtype=torch.float32))
    assert len(launcher._WORKSPACES) == 1
    board = next(iter(launcher._WORKSPACES.values())).view(torch.int64)
    tickets, launches = int(board[0]) & 0xFFFFFFFF, int(board[0]) >> 32
    assert tickets == 0, "the last launch did not open the next"
    assert launches >= len(shapes)  # a larger board begins to count anew
