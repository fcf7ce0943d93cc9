"""Cubins through an emulated driver: the results of libraries, loads for each GPU, contexts of threads, errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import scanops
from scanops.errors import BadStoreEntry, LaunchFailure, MissingRequirement
from scanops.requests.geometry import ScanArguments
from scanops.store.entry import facts_of
from scanops.store.library import load
from tests.native.conftest import Counted, Driver, entry_of
from tests.numbers import matrix, oracle
from tests.requests.checks import refused

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
    cell = matrix.Cell(
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


def test_it_is_loaded_once_and_made_ready_for_each_gpu(kernel: scanops.Kernel, cuda: Driver) -> None:
    shared = kernel.plan.launch.shared_bytes
    assert shared > 48 * 1024
    arguments = ScanArguments(lines=2**40, length=kernel.spec.length, multiprocessors=2**30)
    for device in (0, 1, 0):
        bound = kernel.code.bind(arguments, device)
    made = [
        (
            f"cuDevicePrimaryCtxRetain {n} 0 0 0",
            f"cuKernelGetFunction {n} 0 0 0",
            f"cuKernelSetAttribute 8 {shared} {n} 0",
        )
        for n in range(2)
    ]
    assert cuda.calls() == ["cuLibraryLoadData 0 0 0 0", "cuLibraryGetKernel 0 0 0 0", *made[0], *made[1]]
    assert bound.recovers(201) and bound.launch(bound.refer(arguments), 0) == 1  # a grid that no GPU launches


def test_prepare_leaves_nothing_to_a_first_call(cuda: Driver) -> None:
    with scanops.emulate():
        scanops.prepare(["sum-f32-n40"])
        assert cuda.calls("cuKernelGetFunction")
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))
    assert not cuda.calls("cuKernelGetFunction")


@pytest.mark.parametrize(
    "function", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuDevicePrimaryCtxRetain", "cuKernelGetFunction"]
)
def test_a_load_that_fails_and_is_tried_again(function: str, cuda: Driver) -> None:
    with scanops.emulate():
        cuda.fails.value = function.encode()
        error = refused(
            LaunchFailure, lambda: scanops.cumsum(X, 1), f"error 999 of {function}: CUDA_ERROR_UNKNOWN: bad"
        )
        assert "sum-f32-n40 for sm_90" in error.asked
        cuda.fails.value = b""
        assert scanops.cumsum(X, 1).equal(X.cumsum(1))


def test_a_driver_that_cannot_load_cubins(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.version.value = 11080
    for words in ("CUDA 11.8", "libcuda.so.0"):
        with scanops.emulate():
            refused(MissingRequirement, lambda: scanops.cumsum(X, 1), words)
        monkeypatch.setattr("scanops.store.driver.PATH", "libcuda.so.0")


@pytest.mark.parametrize("target", ["sm_90", "sm_90a"])
def test_the_layout_of_cuda_12_is_known_too(target: str, kernel: scanops.Kernel, tmp_path: Path) -> None:
    entry = entry_of(kernel, tmp_path)
    path, data = entry.library_path, entry.library_path.read_bytes()
    path.write_bytes(data[:7] + bytes([51, 7]) + data[9:48] + (0x5A055A).to_bytes(4, "little") + data[52:])
    entry.manifest.update(target=target, files=entry.manifest["files"] | {path.name: facts_of(path.read_bytes())})
    assert load(entry)


# What is wrong -> the change to the cubin, whether the manifest lists it, and what the error names
HARMS: dict[str, tuple[Callable[[bytes], bytes], bool, str]] = {
    "a bit": (lambda data: data[:-2] + b"x\0", False, "SHA-256"),
    "a byte less": (lambda data: data[:-1], False, "bytes instead of"),
    "no ELF": (lambda data: b"x" + data[1:], True, "no ELF"),
    "a part of a header": (lambda data: data[:63], True, "no ELF"),
    "another layout": (lambda data: data[:8] + b"\11" + data[9:], True, "version 9"),
    "another processor": (lambda data: data[:18] + b"\x3e" + data[19:], True, "machine 62"),
    "another target": (lambda data: data[:49] + b"\x50" + data[50:], True, "sm_80"),
}


@pytest.mark.parametrize("harm", [*HARMS, "launch", "mode", "gone"])
def test_what_is_not_loaded(harm: str, kernel: scanops.Kernel, cuda: Driver, tmp_path: Path) -> None:
    entry = entry_of(kernel, tmp_path)
    path, words = entry.library_path, "No such file"
    assert load(entry)
    if harm in HARMS:
        change, listed, words = HARMS[harm]
        path.write_bytes(change(path.read_bytes()))
        entry.manifest["files"] |= {path.name: facts_of(path.read_bytes())} if listed else {}
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
    """The first launch of a thread is refused, and made again; C++ launches as Python does."""
    launches = set()

    def served() -> tuple[int, int, int]:
        before = counted.calls
        with scanops.emulate():
            found = [scanops.cumsum(X, 1, initial=torch.ones(3)) for _ in range(3)]
        assert all(y.equal(X.cumsum(1) + 1) for y in found)
        launched, bound = (cuda.calls(name) for name in ("cuLaunchKernel", "cuCtxSetCurrent"))
        launches.update(launched)
        return counted.calls - before, len(launched), len(bound)

    assert [served(), served()] == [(1, 4, 1), (3, 3, 0)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(served).result() == (3, 4, 1)
    assert len(launches) == 1


@pytest.mark.parametrize("x", [LINE, X], ids=["python", "c"])
def test_a_launch_that_fails(x: torch.Tensor, cuda: Driver, counted: Counted) -> None:
    for _ in range(3):
        scanops.cumsum(x, 1)
    for codes in ([999], [201, 201]):
        cuda.codes[: len(codes)] = codes
        refused(LaunchFailure, lambda: scanops.cumsum(x, 1), f"error {codes[0]}: ")
    assert scanops.cumsum(x, 1).equal(x.cumsum(1)) and counted.calls == (x is X) * 2


def test_a_fork_launches_what_the_parent_loaded(cuda: Driver) -> None:
    """The child runs no operation of torch that takes threads, which a parent's OpenMP does not survive a fork with."""
    with scanops.emulate():
        expected = LINE.cumsum(1).tolist()
        assert scanops.cumsum(LINE, 1).tolist() == expected
        child = os.fork()
        if child == 0:
            os._exit(scanops.cumsum(LINE, 1).tolist() != expected)
    assert os.waitpid(child, 0)[1] == 0
