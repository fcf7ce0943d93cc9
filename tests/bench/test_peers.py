"""Peers compute what they are compared in, and say why where they do not."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cells import VARIANTS, Cell, allocate, poison
from benchmarks.measure import is_right, same_bits
from benchmarks.peers import all_peers, cub, triton
from benchmarks.peers.eager import Eager
from benchmarks.table import cells

TABLE = cells(1, ["table"])
# torch's own half types round at each step: they are measured, and their results do not count as right.
EXACT = [name for name, variant in VARIANTS.items() if variant.dtype not in ("float16", "bfloat16")]


def small(variant: str, *shape: int) -> Cell:
    return Cell(group="table", family="", variant=variant, shape=shape, dim=1)


@pytest.mark.parametrize("variant", EXACT)
def test_torch_composes_every_variant(variant: str) -> None:
    case = allocate(small(variant, 5, 300), "cpu")
    (candidate,) = Eager().candidates(case)
    poison(case.y)
    assert is_right(case, candidate.run())


def test_a_wrong_result_is_seen() -> None:
    case = allocate(small("sum", 5, 300), "cpu")
    right = torch.cumsum(case.x, 1)
    slip = right.clone()
    slip[4, 299] += 1
    assert [is_right(case, y) for y in (right, slip, poison(right.clone()))] == [True, False, False]
    assert same_bits(slip, slip.clone()) and not same_bits(right, slip)
    assert not same_bits(poison(case.y), poison(case.y.clone(), 1))


def test_each_peer_answers_or_gives_a_reason() -> None:
    for peer in all_peers():
        reasons = {cell.name: peer.reason(cell) for cell in TABLE}
        assert all(isinstance(reason, str) for reason in reasons.values())
        if peer.name == "torch.compile":
            assert all(cell.compiled or reasons[cell.name] for cell in TABLE)
        if peer.name == "CUB":
            assert all("strided" in reasons[cell.name] for cell in TABLE if cell.family == "middle dims")


def test_configurations_of_cub_and_triton_cover_every_line_and_are_legal_launches() -> None:
    for cell in TABLE:
        tiles, calls_of = (cub.configurations(cell) if cell.inner == 1 else []), triton.configurations(cell)
        assert (cell.inner > 1 or tiles) and calls_of, cell.name
        for found in (tiles, calls_of):
            assert len({label for label, *_ in found}) == len(found) <= 25, cell.name
        for _, calls in calls_of:
            for call in calls:
                assert 1 <= call.warps <= 32
                assert min(call.grid) >= 1 and max(call.grid[1:], default=1) <= 65535 and call.grid[0] < 2**31
            if calls[-1].kernel.endswith("chunks"):
                *_, chunk, number = calls[-1].numbers
                assert (number - 1) * chunk < cell.length <= number * chunk


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sum", "masked", "prod_masked_reverse_exclusive", "sum_bf16"])
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
