"""The emulator's host object: compiled once, linked into each kernel, and no reason for a failed build."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scanops.artifact import ABI, BuildRequest
from scanops.store.entry import Entry
from scanops.store.library import load
from scanops.store.store import Store
from tests.scripts import ran
from tests.store.sources import CPU_SOURCE, CUDA_SOURCE, counting_cxx

KERNEL = BuildRequest(name="sum-f32", source=CUDA_SOURCE, target="cpu")
ANOTHER = replace(KERNEL, source=CUDA_SOURCE.replace("+ g.lines", "- g.lines"))


class Arguments(ctypes.Structure):
    """ScanArguments of CUDA_SOURCE."""

    _fields_ = (*[(name, ctypes.c_void_p) for name in ("x", "mask", "out", "workspace")], ("lines", ctypes.c_longlong))


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many sources were compiled so far, into a store of the test's own."""
    compiler, count = counting_cxx(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", str(compiler))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    return lambda: len(count.read_text().split())


def answers(entry: Entry) -> list[float]:
    """What the first warp of the kernel gives for 0, 1, 2, ..."""
    x, out = (ctypes.c_float * 512)(*range(512)), (ctypes.c_float * 512)()
    arguments = Arguments(x=ctypes.addressof(x), out=ctypes.addressof(out), lines=1)
    assert load(entry).scanops_launch(ctypes.byref(arguments), None) == 0
    return list(out)[:32]


def test_it_is_compiled_once_for_each_compiler_and_its_flags(compiled: Callable[[], int]) -> None:
    plain = Store().get_or_build(replace(KERNEL, source=CPU_SOURCE))  # uses no emulator
    assert compiled() == 1
    assert load(plain).scanops_abi() == ABI
    first = Store().get_or_build(KERNEL)
    assert compiled() == 3
    second = Store().get_or_build(ANOTHER)
    assert compiled() == 4
    assert answers(first) == [1, *range(1, 32)]
    assert answers(second) == [-1, *range(-1, 30)]
    Store().get_or_build(replace(KERNEL, options=("-DNOTHING",)))
    assert compiled() == 6


def test_nothing_of_it_is_seen_outside_a_library(tmp_path: Path) -> None:
    """A kernel that calls into the emulator of another library would run on that one's threads."""
    entry = Store(tmp_path / "store").get_or_build(KERNEL)
    symbols = ran("nm", "-D", "--defined-only", entry.library_path).stdout.split()[2::3]
    ours = {name for name in symbols if not name.startswith(("__start_", "__stop_"))}
    functions = ("abi", "emulator_configure", "error_string", "launch", "workspace_bytes")
    assert ours == {f"scanops_{name}" for name in functions}
    assert answers(entry) == [1, *range(1, 32)]
