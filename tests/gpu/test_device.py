"""What only a GPU can show of each strategy: streams, graphs, synchronisation, devices, addresses of repeated calls."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch

import scanops
from scanops.errors import UnsupportedRequest
from tests.numbers.oracle import CASES, Case, selection, values
from tests.torch_integration.on_gpus import GPU_COLUMNS, need, nothing_waits
from tests.torch_integration.rows import LENGTH, Row, Tensors

pytestmark = pytest.mark.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(Row):
    """A masked sum along lines that one strategy serves, exact forwards and backwards."""

    case: Case

    def tensors(self, length: int = LENGTH, seed: int = 0) -> Tensors:
        """Draw items and mask, of the shape of the case whatever the length."""
        shape = self.case.shape
        return values("sum", shape, torch.float32, seed=seed), selection(shape, seed=seed + 1)


def masked(name: str) -> Masked:
    """Return the sum of a case."""
    dim = CASES[name].dim
    return Masked(
        name=name,
        call=lambda x, mask: scanops.cumsum(x, dim, mask=mask),
        composed=lambda x, mask: torch.cumsum(torch.where(mask, x, 0), dim),
        operands=("x", "mask"),
        case=CASES[name],
    )


# One of each strategy; those with a row in one tile and those that loop behave alike here.
@pytest.mark.parametrize("name", ["lanes", "wave", "column_loop", "split"])
@pytest.mark.parametrize("column", ["CUDA graph", "waits for nothing", "side stream", "another GPU"])
def test_every_strategy(name: str, column: str) -> None:
    need(GPU_COLUMNS[column].gpus)
    GPU_COLUMNS[column].check(masked(name))


def test_outputs_and_weights_do_not_wait() -> None:
    row = masked("split")
    x, mask = (each.cuda() for each in row.tensors())
    places = (None, torch.empty_like(x), torch.empty((*x.shape, 2), device="cuda")[..., 0])
    weight = torch.tensor(1.0, dtype=torch.float64, device="cuda")

    def calls() -> list[torch.Tensor]:
        scanops.cumsum(x, 1, mask=weight)
        return [scanops.cumsum(x, 1, mask=mask, out=place) for place in places]

    calls()
    with nothing_waits():
        found = calls()
    assert all(torch.equal(y.cpu(), row.by_torch(*row.tensors())[0]) for y in found)


def test_operands_on_two_devices() -> None:
    need(2)
    x, mask = masked("lanes").tensors()
    with pytest.raises(UnsupportedRequest):
        scanops.cumsum(x.to("cuda:0"), 1, mask=mask.to("cuda:1"))


@pytest.mark.parametrize("name", ["one_thread_a_row", "lanes", "one_tile", "wave", "column_loop", "split"])
def test_a_repeated_call_reads_what_it_is_given(name: str) -> None:
    """Other data at other addresses; an aligned call says nothing about a misaligned one."""
    row, kept = masked(name), []
    for seed, (x_offset, mask_offset) in enumerate(((0, 0), (1, 0), (0, 1), (3, 5), (0, 0), (1, 0), (0, 1), (4, 16))):
        x, mask = (each.cuda() for each in row.tensors(seed=10 * seed))
        moved = torch.empty(x.numel() + 8, device="cuda")[x_offset : x_offset + x.numel()].view(x.shape).copy_(x)
        selects = torch.empty(x.numel() + 16, dtype=torch.bool, device="cuda")
        selects = selects[mask_offset : mask_offset + x.numel()].view(x.shape).copy_(mask)
        assert (moved.data_ptr() % 16 == 0) == (x_offset % 4 == 0)
        kept.append((row(moved, selects)[0], row.by_torch(x, mask)[0], moved, selects))  # no address occurs twice
    assert len({y.data_ptr() for y, *_ in kept}) == len(kept)
    assert all(torch.equal(y, expected) for y, expected, *_ in kept)


def test_a_repeated_call_reads_no_environment_and_probes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4000.0, device="cuda").view(4, 1000)
    expected = scanops.cumsum(x, 1)
    for name in ("get_device_properties", "get_device_capability", "get_device_name", "is_available", "device_count"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: pytest.fail(f"torch.cuda.{name}"))
    monkeypatch.setattr("scanops.runtime.kernels.obtain", None)
    monkeypatch.setattr("scanops.ops.dispatch.checked", None)
    monkeypatch.setattr(type(os.environ), "__getitem__", lambda _, name: pytest.fail(f"os.environ[{name!r}]"))
    result = scanops.cumsum(x, 1)
    monkeypatch.undo()
    assert torch.equal(result, expected)
