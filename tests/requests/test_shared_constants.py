"""Constants that calls read on a GPU: a gate that is a number, and the offsets of chunks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import scanops
from scanops.requests import constants
from scanops.requests.constants import make_constant

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gate": lambda x: scanops.linear_scan(0.75, x, 0),
    "chunk": lambda x: scanops.cumprod(x, 0, chunk=100),
}


class Event:
    """An event of a launch that is over after `queries` questions."""

    def __init__(self, queries: int) -> None:
        self.queries = queries

    def query(self) -> bool:
        self.queries -= 1
        return self.queries < 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose streams are these facts; tensors on it lie in the memory of the CPU."""
    state = SimpleNamespace(captures=False, waits=0, device=SimpleNamespace(type="cuda", index=0), made=0)

    def wait(event: Event) -> None:
        state.waits += 1

    stream = SimpleNamespace(record_event=lambda: Event(queries=2), wait_event=wait)
    monkeypatch.setattr(constants, "_CONSTANTS", {})
    monkeypatch.setattr(torch.cuda, "device", mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.captures)
    return state


def ask(gpu: Any, key: object) -> torch.Tensor:
    def make() -> torch.Tensor:
        gpu.made += 1
        return torch.zeros(1)

    return make_constant(make, gpu.device, key)


def test_equal_constants_are_written_once(gpu: Any) -> None:
    first = ask(gpu, 0.5)
    assert all(ask(gpu, 0.5) is first for _ in range(5))
    assert gpu.made == 1
    assert gpu.waits == 2, "calls wait for the launch that writes the constant, until it is over"
    assert ask(gpu, -0.5) is not first
    assert gpu.made == 2


def test_a_capture_reads_only_what_is_written(gpu: Any) -> None:
    """Its graph may run before another stream has written the constant."""
    first, gpu.captures = ask(gpu, 0.5), True
    assert ask(gpu, 0.5) is not first
    assert ask(gpu, 1.5) is not ask(gpu, 1.5)
    gpu.captures = False
    for _ in range(3):
        ask(gpu, 0.5)
    made, gpu.captures = gpu.made, True
    assert ask(gpu, 0.5) is first
    assert gpu.made == made


def test_constants_of_inference_mode_serve_autograd(gpu: Any) -> None:
    with torch.inference_mode():
        first = ask(gpu, 0.5)
    assert not first.is_inference()
    assert ask(gpu, 0.5) is first


def test_modes_see_the_tensor_made(gpu: Any) -> None:
    """All but that of a default device, which makes no tensor another one."""
    first = ask(gpu, 0.5)
    with torch.device("cpu"):
        assert ask(gpu, 0.5) is first
    with FakeTensorMode():
        assert ask(gpu, 0.5) is not first


def test_constants_are_bounded(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MOST_CONSTANTS", 2)
    for key in range(5):
        ask(gpu, key)
    assert len(constants._CONSTANTS) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("differentiates", [False, True])
def test_a_repeated_call_launches_scans_alone(name: str, differentiates: bool) -> None:
    x = torch.rand(250, 3, device="cuda", requires_grad=differentiates)

    def run() -> torch.Tensor:
        y = CALLS[name](x)
        return torch.autograd.grad(y, x, torch.ones_like(x))[0] if differentiates else y

    for _ in range(3):
        expected = run()
        torch.cuda.synchronize()
    ones = torch.ones_like(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        y = CALLS[name](x)
        result = torch.autograd.grad(y, x, ones)[0] if differentiates else y
        torch.cuda.synchronize()
    names = {each.name for each in found.events() if each.device_type == torch.autograd.DeviceType.CUDA}
    assert not [each for each in names if "Fill" in each or "arange" in each], names
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_constants_on_other_streams_and_in_graphs(name: str) -> None:
    x = torch.rand(250, 3, device="cuda")
    expected = CALLS[name](x)
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        found = CALLS[name](x)
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = CALLS[name](x)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
