"""Peers compute what they are compared in, and say why where they do not; CUB's kernels compile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.cells import VARIANTS, Cell, allocate, poison
from benchmarks.measure import is_right, same_bits
from benchmarks.peers import all_peers, cub, triton
from benchmarks.peers.eager import Eager
from benchmarks.table import cells
from tests.store.sources import needs_nvcc

TABLE = cells(1, ["table"])


def small(variant: str, *shape: int) -> Cell:
    return Cell(group="table", family="", variant=variant, shape=shape, dim=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_composes_every_variant(variant: str) -> None:
    case = allocate(small(variant, 5, 300), "cpu")
    (candidate,) = Eager().candidates(case)
    poison(case.y)
    result = candidate.run()
    if case.x.dtype in (torch.float16, torch.bfloat16):
        pytest.skip("torch's own half types round at each step: it is measured, and its result not counted as right")
    assert is_right(case, result)


def test_a_wrong_result_is_seen() -> None:
    case = allocate(small("sum", 5, 300), "cpu")
    right = torch.cumsum(case.x, 1)
    assert is_right(case, right)
    slip = right.clone()
    slip[4, 299] += 1
    assert not is_right(case, slip)
    assert not is_right(case, poison(right.clone()))
    assert not same_bits(right, slip)
    assert same_bits(slip, slip.clone())
    assert not same_bits(poison(case.y), poison(case.y.clone(), 1))


def test_each_peer_answers_or_gives_a_reason() -> None:
    names = [peer.name for peer in all_peers()]
    assert names == ["torch eager", "torch.compile", "Triton", "CUB"]
    for peer in all_peers():
        for cell in TABLE:
            assert isinstance(peer.reason(cell), str)
    middle = next(cell for cell in TABLE if cell.family == "middle dims")
    assert "strided" in cub.Cub().reason(middle)
    assert all(cell.compiled or all_peers()[1].reason(cell) for cell in TABLE)


def test_cub_and_triton_cover_every_cell_once() -> None:
    for cell in TABLE:
        tiles, calls_of = (cub.configurations(cell) if cell.inner == 1 else []), triton.configurations(cell)
        assert cell.inner > 1 or 1 <= len(tiles) <= 25, cell.name
        assert 1 <= len(calls_of) <= 16, cell.name
        for found in (tiles, calls_of):
            assert len({label for label, *_ in found}) == len(found), cell.name
        for _, calls in calls_of:
            constants = dict(calls[-1].constants)
            tile = constants["BLOCK"] * constants.get("ROWS", 1) * constants.get("COLUMNS", 1)  # type: ignore[operator]
            assert tile >= 32 and tile & (tile - 1) == 0
            for call in calls:
                assert 1 <= call.warps <= 32
                assert min(call.grid) >= 1 and max(call.grid[1:], default=1) <= 65535 and call.grid[0] < 2**31
            if calls[-1].kernel.endswith("chunks"):
                *_, chunk, number = calls[-1].numbers
                assert (number - 1) * chunk < cell.length <= number * chunk


@pytest.mark.slow
@needs_nvcc
def test_cub_compiles(tmp_path: Path) -> None:
    """The variant that has a little of all."""
    command = cub.build_command(VARIANTS["prod_masked_reverse_exclusive"], "sm_90", tmp_path / "cub.so")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sum", "masked", "sum_bf16"])
@pytest.mark.parametrize("shape", [(300, 7), (65, 1000), (67, 8191), (1, 70001), (3, 1000, 64)])
def test_every_candidate_is_right(variant: str, shape: tuple[int, ...]) -> None:
    case = allocate(small(variant, *shape))
    for peer in (cub.Cub(), triton.Triton()):
        peer.prepare([case.cell], "sm_90")
        if peer.reason(case.cell):
            continue
        for candidate in peer.candidates(case):
            poison(case.y)
            assert is_right(case, candidate.run()), (peer.name, candidate.label)
