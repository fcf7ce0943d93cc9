"""Loading the library of an entry: its functions, and what is missing on this machine."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from scanops.artifact import BuildRequest
from scanops.builders import toolchain
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.store import library
from scanops.store.store import Store
from tests.store.sources import needs_cxx

pytestmark = [needs_cxx, pytest.mark.usefixtures("without_torch")]


def test_the_functions_are_declared(store: Store, request_cpu: BuildRequest) -> None:
    loaded = library.load(store.get_or_build(request_cpu))
    assert loaded.scanops_error_string(0) == b"no error"
    assert loaded.scanops_launch(None, None) == 0
    assert loaded.scanops_launch.argtypes == [ctypes.c_void_p, ctypes.c_void_p]


def test_a_library_without_the_functions(store: Store, request_cpu: BuildRequest) -> None:
    source = request_cpu.source.replace("scanops_launch", "launch")
    with pytest.raises(BuildFailure, match="scanops_launch"):
        store.get_or_build(replace(request_cpu, source=source))


def test_no_cuda_runtime_anywhere(store: Store, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = store.get_or_build(request_cpu)

    def no_toolkit() -> None:
        raise BuildFailure("find nvcc", allowed="", value="", hint="")

    def no_runtime(*_: object, **__: object) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(toolchain, "find_nvcc", no_toolkit)
    monkeypatch.setattr(ctypes, "CDLL", no_runtime)
    with pytest.raises(BadStoreEntry, match=r"libcudart\.so\.13") as caught:
        library.load(entry)
    assert "CUDA 13" in caught.value.allowed
    assert "nvidia-cuda-runtime" in caught.value.hint
