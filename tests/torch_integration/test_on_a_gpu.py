"""What needs a GPU beside the cells of docs/pytorch.md: whole models in CUDA graphs, threads and on two devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import scanops
from tests.torch_integration.comparing import close
from tests.torch_integration.on_gpus import need

pytestmark = pytest.mark.gpu


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
