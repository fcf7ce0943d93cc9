"""What only a GPU can show of each strategy, and of models: streams, graphs, synchronisation, devices, addresses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

import scanops
from tests.numbers.oracle import CASES, Case, selection, values
from tests.torch_integration.columns import GPU_COLUMNS, need, nothing_waits
from tests.torch_integration.rows import LENGTH, Row, Tensors, close

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
@pytest.mark.parametrize("name", ["lanes", "persistent", "column_loop", "split"])
@pytest.mark.parametrize("column", ["CUDA graph", "waits for nothing", "side stream", "another GPU"])
def test_every_strategy(name: str, column: str) -> None:
    need(GPU_COLUMNS[column].gpus)
    GPU_COLUMNS[column].check(masked(name))


@pytest.mark.parametrize("behind", [(), (3,), (64,)], ids=["rows", "few columns", "columns"])
@pytest.mark.parametrize("chunk", [None, 4])
def test_offsets_are_read_at_every_launch(chunk: int | None, behind: tuple[int, ...]) -> None:
    """A graph that is replayed after other offsets were copied into the buffer, and a write on another stream."""
    x = torch.randint(-9, 9, (40, *behind), device="cuda")
    offsets = torch.tensor([0, 10, 40], device="cuda", dtype=torch.int32)

    def call() -> torch.Tensor:
        return scanops.cumsum(x, 0, offsets=offsets, chunk=chunk)

    def wanted() -> torch.Tensor:
        return scanops.cumsum(x, 0, offsets=offsets.clone(), chunk=chunk)

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for middle in (13, 40, 0, 10):
        offsets.data.copy_(torch.tensor([0, middle, 40]))  # no write for PyTorch's version counter
        expected = wanted()
        graph.replay()
        assert torch.equal(y, expected)
        with nothing_waits():
            found = call()
        assert torch.equal(found, expected)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.equal(call(), expected)


def test_chunks_of_lines_do_not_wait() -> None:
    x = torch.randint(-9, 9, (2, 100, 64), device="cuda")
    wanted = torch.cat([part.cumsum(1) for part in x.split(16, 1)], 1)
    scanops.cumsum(x, 1, chunk=16)
    torch.cuda.synchronize()
    with nothing_waits():
        found = scanops.cumsum(x, 1, chunk=16)
    assert torch.equal(found, wanted)


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


@pytest.mark.parametrize("name", ["one_thread_a_row", "lanes", "one_tile", "persistent", "column_loop", "split"])
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


# ---- whole models: in CUDA graphs, threads and on two devices


class Model(torch.nn.Module):
    """Scans of each sort of gradient, and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.total = scanops.nn.CumSum(dim=1, reverse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, 8) to the same shape."""
        h = scanops.linear_scan(torch.sigmoid(self.gate(x)), self.value(x), 1)
        return self.total(scanops.cummax(h, 1).values + scanops.logcumsumexp(h, 1))


@pytest.fixture
def model() -> Model:
    """A model in float64, in which the order of additions does not show."""
    torch.manual_seed(0)
    return Model().double()


def slopes(model: torch.nn.Module, k: int, device: str = "cuda") -> list[torch.Tensor]:
    """Return the gradients of all weights for the k-th batch, on the CPU."""
    x = torch.rand(6, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(k)).to(device)
    found = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    return [each.cpu() for each in found]


def test_by_inductor_with_its_own_graphs(model: Model) -> None:
    """mode="reduce-overhead" captures CUDA graphs itself, of the forward and of the backward pass."""
    pytest.importorskip("triton", reason="inductor writes Triton for a GPU")
    torch.compiler.reset()
    expected = [slopes(model, k, "cpu") for k in range(4)]
    call = torch.compile(model.cuda(), fullgraph=True, mode="reduce-overhead")
    for wanted, k in zip(expected, range(4), strict=True):  # compiles, warms up, records, replays
        torch.compiler.cudagraph_mark_step_begin()
        close(slopes(call, k), wanted)


def test_threads_with_a_stream_each(model: Model) -> None:
    expected = [slopes(model, k, "cpu") for k in range(8)]
    model.cuda()

    def work(k: int) -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            return slopes(model, k)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip([pool.submit(work, k) for k in range(8)], expected, strict=True):
            close(found.result(timeout=300), wanted)


def test_data_parallel(model: Model) -> None:
    """Copies of a module on two GPUs, a thread each; forwards, and backwards into one module's weights."""
    need(2)
    expected = slopes(model, 0, "cpu")
    close(slopes(torch.nn.DataParallel(model.to("cuda:0"), device_ids=[0, 1]), 0), expected)
    assert torch.cuda.current_device() == 0
