"""What only a GPU can show of each row, one function a column, as in columns.py; and what one has shown before.

``python -m tests.torch_integration.page --gpu`` tries them and keeps what held in on_gpus.json, for the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.torch_integration.comparing import GPU, YES, close, floating, gradients
from tests.torch_integration.rows import DIM, LENGTH, Row, Tensors

__all__ = ["GPU_COLUMNS", "RECORD", "GpuColumn", "recorded"]

RECORD = Path(__file__).with_name("on_gpus.json")
TWO = "on two GPUs"
BUSY_CYCLES = 100_000_000  # some 0.05 s of a stream that does nothing
HALF = {"rtol": 2e-2, "atol": 2e-2}  # sums of five items in float16, which has 11 bits

Cells = dict[str, dict[str, str]]  # by the name of a column, then by that of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuColumn:
    """A check that needs GPUs."""

    check: Callable[[Row], str]
    gpus: int = 1

    @property
    def untried(self) -> str:
        """The cell where nobody has tried."""
        return GPU if self.gpus == 1 else TWO


def recorded() -> Cells:
    """What held on a GPU."""
    if not RECORD.is_file():
        return {}
    found: Cells = json.loads(RECORD.read_text(encoding="utf-8"))["cells"]
    return found


def _leaves(row: Row, seed: int, device: str = "cuda") -> tuple[Tensors, list[torch.Tensor]]:
    tensors = tuple(each.to(device) for each in row.tensors(LENGTH, seed))
    return tensors, [each.requires_grad_() for each in floating(tensors)]


def _step(row: Row, tensors: Tensors, wanted: list[torch.Tensor]) -> tuple[Tensors, Tensors]:
    """Results and gradients."""
    found = row(*tensors)
    return found, gradients(found, wanted) if wanted else ()


def _hold(row: Row, seed: int, found: Tensors, slopes: Tensors) -> None:
    """Compare with torch's operations on the CPU."""
    tensors = row.tensors(LENGTH, seed)
    wanted = [each.requires_grad_() for each in floating(tensors)]
    expected = row.by_torch(*tensors)
    assert all(y.is_contiguous() for y in found)
    close((y.cpu() for y in found), expected)
    close((each.cpu() for each in slopes), gradients(expected, wanted) if wanted else ())


def _change(row: Row, tensors: Tensors, others: Tensors) -> None:
    """Other data in the same memory. Offsets stay: to look at their values again would be to wait."""
    for word, place, other in zip(row.operands, tensors, others, strict=True):
        if word != "offsets":
            place.detach().copy_(other)


def captured(row: Row) -> str:
    """In a CUDA graph forwards and backwards, replayed with other data."""
    tensors, wanted = _leaves(row, seed=0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # builds what is to be built, and looks at offsets
            _step(row, tensors, wanted)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, slopes = _step(row, tensors, wanted)
    for seed in (1, 2):
        _change(row, tensors, row.tensors(LENGTH, seed))
        graph.replay()
        _hold(row, seed, tuple(y.detach() for y in found), slopes)
    return YES


@contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits_for_nothing(row: Row) -> str:
    """``set_sync_debug_mode("error")``: the second call and its backward pass never wait for the GPU."""
    tensors, wanted = _leaves(row, seed=0)
    _step(row, tensors, wanted)
    with _no_waiting():
        found, slopes = _step(row, tensors, wanted)
    _hold(row, 0, found, slopes)
    return YES


def on_a_side_stream(row: Row) -> str:
    """A stream that is busy when the scan is queued; operands are let go of at once, results used elsewhere."""
    tensors, wanted = _leaves(row, seed=0)
    others = tuple(each.cuda() for each in row.tensors(LENGTH, 1))
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _step(row, tensors, wanted)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)
        _change(row, tensors, others)
        found, slopes = _step(row, tensors, wanted)
    found = tuple(y.detach() for y in found)
    sizes = [each.numel() for each in (*tensors, *others)]
    for each in (*tensors, *others):
        each.record_stream(side)
    del tensors, wanted, others, each
    junk = [torch.full((size,), 77.0, dtype=torch.float64, device="cuda") for size in sizes]  # not into their memory
    main.wait_stream(side)
    for each in (*found, *slopes):
        each.record_stream(main)
    _hold(row, 1, found, slopes)
    assert len(junk) == len(sizes)
    return YES


def autocast(row: Row) -> str:
    """``torch.autocast("cuda")`` on float16: dtypes are torch's where torch has the scan, values those of float64."""
    tensors, _ = _leaves(row, seed=0)
    halves = tuple(each.detach().half() if each.is_floating_point() else each for each in tensors)
    wanted = [each.requires_grad_() for each in floating(halves)]
    plain = [y.dtype for y in row(*halves)]
    with torch.autocast("cuda", dtype=torch.float16):
        found = row(*halves)
        if row.torch_name:
            by_torch = getattr(torch, row.torch_name)(halves[0], DIM)
            assert found[0].dtype == (by_torch if isinstance(by_torch, torch.Tensor) else by_torch[0]).dtype
    dtypes = [y.dtype for y in found]
    wide = tuple(each.detach().double() if each.is_floating_point() else each.detach() for each in halves)
    asked = [each.requires_grad_() for each in floating(wide)]
    expected = row.by_torch(*wide)
    for y, right in zip(found, expected, strict=True):
        torch.testing.assert_close(y.to(right.dtype), right, **HALF)
    if wanted:
        ours = torch.autograd.grad([y.sum() for y in floating(found)], wanted)
        theirs = torch.autograd.grad([y.sum() for y in floating(expected)], asked)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == torch.float16
            torch.testing.assert_close(one.double(), other, **HALF)
    return "float32" if dtypes != plain else "as given"


def on_another_gpu(row: Row) -> str:
    """Than the current one, which stays it; each by turns."""
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            tensors, wanted = _leaves(row, 0, device)
            found, slopes = _step(row, tensors, wanted)
            assert {str(each.device) for each in (*found, *slopes)} == {device}
            assert torch.cuda.current_device() == 0
            _hold(row, 0, found, slopes)
    return YES


GPU_COLUMNS: dict[str, GpuColumn] = {
    "CUDA graph": GpuColumn(check=captured),
    "waits for nothing": GpuColumn(check=waits_for_nothing),
    "side stream": GpuColumn(check=on_a_side_stream),
    "AMP, float16": GpuColumn(check=autocast),
    "another GPU": GpuColumn(check=on_another_gpu, gpus=2),
}
