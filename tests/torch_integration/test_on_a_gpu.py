"""What needs a GPU: each cell of docs/pytorch.md that does, and whole models in graphs, threads and on two devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import scanops
from tests.torch_integration.comparing import close
from tests.torch_integration.on_gpus import GPU_COLUMNS, recorded
from tests.torch_integration.rows import ROWS

pytestmark = pytest.mark.gpu


def need(gpus: int) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{gpus} GPUs are needed, {torch.cuda.device_count()} visible")


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says so where a gradient of its own is slow
@pytest.mark.parametrize("column", GPU_COLUMNS)
@pytest.mark.parametrize("name", ROWS)
def test_a_cell(name: str, column: str) -> None:
    need(GPU_COLUMNS[column].gpus)
    cell = GPU_COLUMNS[column].check(ROWS[name])
    assert cell == recorded().get(column, {}).get(name, cell), "python -m tests.torch_integration.page --gpu writes it"


@pytest.mark.parametrize("name", ROWS)
def test_a_compiled_function_in_a_graph(name: str) -> None:
    row = ROWS[name]
    tensors = tuple(each.cuda() for each in row.tensors())
    torch.compiler.reset()
    call = torch.compile(row, fullgraph=True, backend="aot_eager")
    for _ in range(2):  # builds what is to be built, and looks at offsets
        call(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(*tensors)
    others = row.tensors(seed=1)
    for place, other in zip(tensors, others, strict=True):
        place.copy_(other)
    graph.replay()
    close((y.cpu() for y in found), row.by_torch(*others))


class Model(torch.nn.Module):
    """Scans of each sort of gradient, and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.total = scanops.nn.CumSum(dim=1, reverse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, 8)."""
        h = scanops.linear_scan(torch.sigmoid(self.gate(x)), self.value(x), 1)
        return self.total(scanops.cummax(h, 1).values + scanops.logcumsumexp(h, 1))


def model_and_data(rows: int) -> tuple[Model, torch.Tensor]:
    torch.manual_seed(0)
    model = Model().double()  # whose order of additions does not show
    return model, torch.rand(rows, 40, 8, dtype=torch.float64)


def slopes(model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))


def test_by_inductor_with_its_own_graphs() -> None:
    """mode="reduce-overhead" captures CUDA graphs itself, of the forward and of the backward pass."""
    pytest.importorskip("triton", reason="inductor writes Triton for a GPU")
    torch.compiler.reset()
    model, x = model_and_data(6)
    expected = [slopes(model, x + k) for k in range(4)]
    model.cuda()
    call = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for k in range(4):  # compiles, warms up, records, replays
        torch.compiler.cudagraph_mark_step_begin()
        found = [each.clone() for each in slopes(call, (x + k).cuda())]
        for one, other in zip(found, expected[k], strict=True):
            torch.testing.assert_close(one.cpu(), other)


def test_threads_with_a_stream_each() -> None:
    model, x = model_and_data(8)
    expected = [slopes(model, x + k) for k in range(8)]
    model.cuda()

    def work(k: int) -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = slopes(model, (x + k).cuda())
            return [each.cpu() for each in found]

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip([pool.submit(work, k) for k in range(8)], expected, strict=True):
            for one, other in zip(found.result(timeout=300), wanted, strict=True):
                torch.testing.assert_close(one, other)


def test_data_parallel() -> None:
    """Copies of a module on two GPUs, a thread each; forwards, and backwards into one module's weights."""
    need(2)
    model, x = model_and_data(6)
    expected = slopes(model, x)
    found = slopes(torch.nn.DataParallel(model.to("cuda:0"), device_ids=[0, 1]), x.to("cuda:0"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    assert torch.cuda.current_device() == 0
