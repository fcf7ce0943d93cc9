"""Cubins through an emulated driver: the results of libraries, one load for each GPU, contexts of threads, errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import scanops
from scanops.errors import BadStoreEntry, LaunchFailure, MissingRequirement
from scanops.requests.geometry import ScanArguments
from scanops.store.entry import facts_of
from scanops.store.library import load
from tests.native.conftest import Counted
from tests.numbers import matrix, oracle
from tests.numbers.matrix import Cell
from tests.requests.checks import refused
from tests.store.drivers import Driver, entry_of
from tests.store.drivers import cuda as cuda
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

X = torch.arange(120.0).reshape(3, 40)
LINE = torch.ones(1, 300000)  # split over blocks, which exchange totals in a workspace
ROUTES = (
    *("lanes", "staged_pieces", "one_tile_odd", "wave_odd", "split_odd", "column_loop", "panels_chain"),
    *("transposed_rows", "any_lanes", "any_staged", "any_one_tile", "any_wave_odd", "any_split_odd"),
    *("any_short_columns", "any_panels_few", "any_transposed_columns"),
)


@pytest.mark.parametrize("number", range(len(ROUTES)), ids=ROUTES)
def test_every_strategy(number: int, cuda: Driver) -> None:
    """With carries and masks, and by turns with strides, head flags and offsets; again with what a launch left."""
    cell = Cell(
        route=ROUTES[number], op="affine", dtype="float32", reverse=("forward", "reverse")[number % 2],
        exclusive="inclusive", mask="bool", carry="both", segments=("none", "flags", "int32")[number % 3],
        layout=("dense", "sparse")[number // 2 % 2],
    )  # fmt: skip
    with oracle.affine_in_table(), scanops.emulate():
        given = matrix.operands(cell)
        for _ in range(3):
            oracle.compare(cell.op, matrix.run(cell, given), matrix.expected(cell, given))
    assert len(cuda.calls("cuLaunchKernel")) == 3 + 1  # the first lacked a context


@pytest.fixture
def kernel(cuda: Driver) -> scanops.Kernel:
    """A cubin that takes more shared memory than a GPU gives by itself."""
    return scanops.compile(scanops.ScanSpec.parse("prod-f32-n131072"), "cpu")


def bound(kernel: scanops.Kernel, device: int, lines: int = 3) -> Any:
    """The launch on a GPU."""
    return kernel.code.bind(ScanArguments(lines=lines, length=kernel.spec.length, multiprocessors=3), device)


def test_it_is_loaded_once_and_made_ready_for_each_gpu(kernel: scanops.Kernel, cuda: Driver) -> None:
    shared = kernel.plan.launch.shared_bytes
    assert shared > 48 * 1024
    for device in (0, 1, 0):
        kernel.code.ready(device)
        bound(kernel, device)
    load, name = "cuLibraryLoadData 0 0 0 0", "cuLibraryGetKernel 0 0 0 0"
    each = [
        [
            f"cuDevicePrimaryCtxRetain {n} 0 0 0",
            f"cuKernelGetFunction {n} 0 0 0",
            f"cuKernelSetAttribute 8 {shared} {n} 0",
        ]
        for n in range(2)
    ]
    assert cuda.calls() == [load, name, *each[0], *each[1]]


def test_a_grid_that_no_gpu_launches(kernel: scanops.Kernel) -> None:
    found = bound(kernel, 0, lines=2**40)
    assert found.recovers(201)
    assert found.launch(found.refer(ScanArguments()), 0) == 1


@pytest.mark.parametrize(
    "function", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuDevicePrimaryCtxRetain", "cuKernelGetFunction"]
)
def test_a_load_that_fails_and_is_tried_again(function: str, cuda: Driver) -> None:
    with scanops.emulate():
        cuda.fail(function)
        error = refused(
            LaunchFailure, lambda: scanops.cumsum(X, 1), f"error 999 of {function}: CUDA_ERROR_UNKNOWN: unknown error"
        )
        assert "sum-f32-n40 for sm_90" in error.asked
        cuda.fail("")
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))


@pytest.mark.parametrize("harm", ["none", "old"])
def test_a_driver_that_cannot_load_cubins(harm: str, cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.version.value = 11080
    if harm == "none":
        monkeypatch.setattr("scanops.store.driver.PATH", "libcuda.so.0")
    words = {"none": "libcuda.so.0", "old": "CUDA 11.8"}[harm]
    with scanops.emulate():
        refused(MissingRequirement, lambda: scanops.cumsum(X, 1), words)


# What is wrong -> the change to the cubin, and what the error names
HARMS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit": (lambda data: data[:-2] + b"x\0", "SHA-256"),
    "a byte less": (lambda data: data[:-1], "bytes instead of"),
    "no ELF": (lambda data: b"x" + data[1:], "no ELF"),
    "another processor": (lambda data: data[:18] + b"\x3e" + data[19:], "machine 62"),
    "another target": (lambda data: data[:49] + b"\x50" + data[50:], "sm_80"),
}


@pytest.mark.parametrize("harm", [*HARMS, "launch", "mode", "gone"])
def test_what_is_not_loaded(harm: str, kernel: scanops.Kernel, cuda: Driver, tmp_path: Path) -> None:
    entry = entry_of(kernel, tmp_path)
    path, words = entry.directory / "kernel.cubin", "No such file"
    assert load(entry)
    if harm in HARMS:
        change, words = HARMS[harm]
        path.write_bytes(change(path.read_bytes()))
        if "SHA-256" not in words and "bytes" not in words:
            entry.manifest["files"]["kernel.cubin"] = facts_of(path)
    elif harm == "launch":
        entry.manifest["launch"]["threads"], words = 33, "no kernel has"
    elif harm == "mode":
        path.chmod(0o666)
        words = "others may write"
    else:
        path.unlink()
    refused(BadStoreEntry, lambda: load(entry), words)
    assert cuda.calls() == []


def test_a_thread_binds_its_context_once_in_python_and_in_c(cuda: Driver, counted: Counted) -> None:
    """By the emulator's threads: the first launch of each is refused, and made again."""

    def served() -> tuple[int, int, int]:
        before = counted.calls
        with scanops.emulate():
            found = [scanops.cumsum(X, 1) for _ in range(3)]
        assert all(y.equal(X.cumsum(1)) for y in found)
        log = cuda.calls()
        return counted.calls - before, *(sum(name in line for line in log) for name in ("LaunchKernel", "SetCurrent"))

    assert [served(), served()] == [(1, 4, 1), (3, 3, 0)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(served).result() == (3, 4, 1)


def test_python_and_c_launch_alike(cuda: Driver, counted: Counted) -> None:
    def call() -> tuple[torch.Tensor, ...]:
        return scanops.cumsum(X, 0, initial=torch.ones(40), return_final=True)

    found = [call() for _ in range(4)]
    assert counted.calls == 2 and all(torch.equal(a, b) for y in found for a, b in zip(y, found[0], strict=True))
    assert len(set(cuda.calls("cuLaunchKernel"))) == 1


@pytest.mark.parametrize("where", ["python", "c"])
def test_a_launch_that_fails(where: str, cuda: Driver, counted: Counted) -> None:
    x = X if where == "c" else LINE
    for _ in range(3):
        scanops.cumsum(x, 1)
    before = counted.calls
    for codes in ([999], [201, 201]):
        cuda.codes[: len(codes)] = codes
        error = refused(
            LaunchFailure, lambda: scanops.cumsum(x, 1), f"error {codes[0]}", ("unknown", "UNKNOWN")[codes == [999]]
        )
        assert "for sm_90" not in error.asked
    assert scanops.cumsum(x, 1).equal(x.cumsum(1))
    assert counted.calls - before == (where == "c")


def test_threads_share_a_launcher(cuda: Driver) -> None:
    inputs = [torch.randn(3, 40) for _ in range(4)]

    def work(number: int) -> None:
        with scanops.emulate():
            for turn in range(40):
                x = inputs[(number + turn) % 4]
                torch.testing.assert_close(scanops.cumsum(x, 1), x.cumsum(1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(cuda.calls("cuLibraryLoadData")) == 1


def test_a_fork_launches_what_the_parent_loaded(cuda: Driver) -> None:
    with scanops.emulate():
        assert scanops.cumsum(LINE, 1).equal(LINE.cumsum(1))
        child = os.fork()
        if child == 0:
            os._exit(not scanops.cumsum(LINE, 1).equal(LINE.cumsum(1)))
    assert os.waitpid(child, 0)[1] == 0
