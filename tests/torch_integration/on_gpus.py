"""The columns of docs/pytorch.md that need a GPU, as in columns.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.testing import assert_close

from tests.torch_integration.columns import Column, autocast_cell
from tests.torch_integration.rows import Row, Tensors, close, gradients, leaves

BUSY_CYCLES = 400_000_000  # some 0.2 s of a stream that does nothing
HALF = {"rtol": 2e-2, "atol": 2e-2}  # sums of five items in float16, which has 11 bits


def need(gpus: int) -> None:
    """Skip a test where fewer GPUs are visible."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{gpus} GPUs are needed, {torch.cuda.device_count()} visible")


def _on(device: str, tensors: Tensors) -> Tensors:
    return tuple(each.to(device) for each in tensors)


def _step(row: Row, tensors: Tensors, wanted: list[torch.Tensor]) -> tuple[Tensors, Tensors]:
    found = row(*tensors)
    return tuple(y.detach() for y in found), gradients(found, wanted)


def _hold(row: Row, seed: int, found: Tensors, slopes: Tensors) -> None:
    """Compare with torch's operations on the CPU."""
    tensors, wanted = leaves(row.tensors(seed=seed))
    expected = row.by_torch(*tensors)
    assert all(y.is_contiguous() for y in found)
    close(_on("cpu", found), [y.detach() for y in expected])
    close(_on("cpu", slopes), gradients(expected, wanted))


def _change(row: Row, tensors: Tensors, others: Tensors) -> None:
    """Write other data into the same memory, but offsets: to look at their values again would be to wait."""
    for word, place, other in zip(row.operands, tensors, others, strict=True):
        if word != "offsets":
            place.detach().copy_(other)


def captured(row: Row) -> None:
    """Capture both passes in a CUDA graph, and replay it with other data."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
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
        _change(row, tensors, row.tensors(seed=seed))
        for _ in range(2):  # a workspace that one launch leaves behind serves the next
            graph.replay()
        _hold(row, seed, found, slopes)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Fail where the block waits for the GPU, by torch or by anything else: the stream is busy until after it."""
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.current_stream().record_event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
        assert not busy.query(), "the block waited for the stream"
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits_for_nothing(row: Row) -> None:
    """The second call and its backward pass are queued while the GPU is busy."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
    _step(row, tensors, wanted)
    with nothing_waits():
        found, slopes = _step(row, tensors, wanted)
    _hold(row, 0, found, slopes)


def on_a_side_stream(row: Row) -> None:
    """The stream is busy when the scan is queued; operands are let go of at once, results used on another stream."""
    tensors, wanted = leaves(_on("cuda", row.tensors()))
    others = _on("cuda", row.tensors(seed=1))
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _step(row, tensors, wanted)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), nothing_waits():
        _change(row, tensors, others)
        found, slopes = _step(row, tensors, wanted)
    for each in (*tensors, *others):
        each.record_stream(side)
    sizes = [(each.numel(), each.dtype) for each in (*tensors, *others)]
    del tensors, wanted, others, each
    junk = [torch.full((size,), 77, dtype=torch.int64, device="cuda").to(dtype) for size, dtype in sizes]
    main.wait_stream(side)
    for each in (*found, *slopes):
        each.record_stream(main)
    _hold(row, 1, found, slopes)
    assert len(junk) == len(sizes)


def autocast(row: Row) -> str:
    """Hold results of float16 under autocast to those of float64, and gradients to their dtype."""
    halves, wanted = leaves(
        tuple(each.half() if each.is_floating_point() else each for each in _on("cuda", row.tensors()))
    )
    found, cell = autocast_cell(row, halves)
    wide = tuple(each.detach().double() if each.is_floating_point() else each for each in halves)
    for y, right in zip(found, row.by_torch(*wide), strict=True):
        assert_close(y.to(right.dtype), right, **HALF)
    assert all(slope.dtype == torch.float16 for slope in gradients(found, wanted))
    return cell


def on_another_gpu(row: Row) -> None:
    """Scan on the GPU that is not the current one, and on the current one, by turns."""
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            found, slopes = _step(row, *leaves(_on(device, row.tensors())))
            assert {str(each.device) for each in (*found, *slopes)} == {device}
            assert torch.cuda.current_device() == 0
            _hold(row, 0, found, slopes)


GPU_COLUMNS: dict[str, Column] = {
    "CUDA graph": Column(check=captured, gpus=1),
    "waits for nothing": Column(check=waits_for_nothing, gpus=1),
    "side stream": Column(check=on_a_side_stream, gpus=1),
    "AMP, float16": Column(check=autocast, gpus=1),
    "another GPU": Column(check=on_another_gpu, gpus=2),
}
