"""Compilers, targets and stores that are missing or unfit, kernels on the wrong tensors, and errors as values."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

import scanops
from scanops import environment, errors
from scanops.builders import toolchain
from scanops.errors import BadStoreEntry, MissingCompiler, ScanopsError, UnsupportedRequest
from tests.builders.test_toolchain import pip_toolkit
from tests.requests.checks import refused
from tests.store.sources import needs_cxx

SPEC = scanops.ScanSpec(op="sum", dtype="float32", length=20)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, no toolkit anywhere, g++ as it is: the folder for more."""
    for row in environment.VARIABLES:
        monkeypatch.delenv(row.name, raising=False)
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    folders = [folder for folder in os.get_exec_path() if not (Path(folder) / "nvcc").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    monkeypatch.setattr(toolchain, "_pathfinder_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "_USUAL_ROOT", tmp_path / "usual")
    return tmp_path


def test_no_nvcc(bare: Path) -> None:
    error = refused(MissingCompiler, lambda: scanops.compile(SPEC, "sm_90"), "PATH")
    assert "nvcc" in error.asked


def test_no_host_compiler(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    refused(MissingCompiler, lambda: scanops.compile(SPEC, "cpu"), "'no-such-compiler'")
    with scanops.emulate():
        refused(MissingCompiler, lambda: scanops.cumsum(torch.ones(3, 7771), 1), "'no-such-compiler'")


def test_a_host_compiler_that_appears_later_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is not remembered."""
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    x = torch.ones(3, 7772)
    with scanops.emulate():
        refused(MissingCompiler, lambda: scanops.cumsum(x, 1))
        monkeypatch.delenv("SCANOPS_CXX")
        assert torch.equal(scanops.cumsum(x, 1), torch.cumsum(x, 1))


@pytest.mark.parametrize("target", ["sm_12", "sm_90x", "SM_90", "", "cuda", "gfx90a"])
def test_a_target_nobody_knows(target: str) -> None:
    refused(UnsupportedRequest, lambda: scanops.compile(SPEC, target), repr(target))
    refused(UnsupportedRequest, lambda: scanops.generate(SPEC, target), repr(target))


def test_a_target_that_is_no_name() -> None:
    refused(UnsupportedRequest, lambda: scanops.compile(SPEC, 90), "90")  # type: ignore[arg-type]


@needs_cxx
def test_a_target_this_nvcc_does_not_know(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_NVCC", str(pip_toolkit(bare / "toolkit")))
    error = refused(UnsupportedRequest, lambda: scanops.compile(SPEC, "sm_100"), "'sm_100'")
    assert "sm_80, sm_90, sm_120" in error.allowed  # what this nvcc lists


def test_a_file_in_place_of_the_store(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "file").write_text("not a folder")
    monkeypatch.setenv("SCANOPS_STORE", str(bare / "file"))
    error = refused(BadStoreEntry, lambda: scanops.compile(SPEC, "cpu"), "file")
    assert str(bare / "file") in error.asked
    with scanops.emulate():
        refused(BadStoreEntry, lambda: scanops.cumsum(torch.ones(3, 7773), 1), "file")
    assert (bare / "file").read_text() == "not a folder"


# Where nobody can make a folder, root included.
@pytest.mark.parametrize("root", ["/proc/scanops-store", "/dev/null/scanops-store"])
def test_a_store_that_cannot_be_made(root: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", root)
    error = refused(BadStoreEntry, lambda: scanops.compile(SPEC, "cpu"))
    assert root in error.asked and "SCANOPS_STORE" in error.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_without_permission(bare: Path) -> None:
    (bare / "store").mkdir(mode=0o500)
    refused(BadStoreEntry, lambda: scanops.compile(SPEC, "cpu"), "Permission denied")


def test_the_fallback_needs_neither_compiler_nor_store(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    assert scanops.cumsum(torch.ones(3), 0).tolist() == [1, 2, 3]
    assert not (bare / "store").exists()


MASKED = scanops.ScanSpec(op="sum", dtype="float32", length=20, mask="bool")


@pytest.mark.parametrize(
    ("spec", "shape", "options", "word"),
    [
        (SPEC, (3, 21), {}, "length=21"),
        (SPEC, (3, 20), {"dtype": torch.float64}, "dtype='torch.float64'"),
        (SPEC, (20, 3), {"dim": 0}, "inner=3"),
        (SPEC, (3, 20), {"mask": True}, "mask='bool'"),
        (SPEC, (3, 20), {"transposed": True}, "input_layout='strided'"),
        (MASKED, (3, 20), {}, "mask=None"),
        (MASKED, (3, 20), {"mask": 1.0}, "mask='float32'"),
    ],
    ids=["length", "dtype", "dim", "a mask", "strides", "no mask", "another mask"],
)
def test_a_kernel_on_tensors_of_another_spec(
    spec: scanops.ScanSpec, shape: tuple[int, ...], options: dict[str, object], word: str, kernels: str
) -> None:
    kernel = scanops.compile(spec)
    x = torch.ones(shape, dtype=options.get("dtype", torch.float32), device=kernels)  # type: ignore[call-overload]
    x = x.t().contiguous().t() if options.get("transposed") else x
    mask = torch.full(shape, options["mask"], device=kernels) if "mask" in options else None  # type: ignore[call-overload]
    if "dtype" in options:
        word = word.replace("torch.", "")
    error = refused(UnsupportedRequest, lambda: kernel(x, options.get("dim", -1), mask=mask), word)  # type: ignore[arg-type]
    assert "scanops.scan" in error.hint


def test_a_kernel_for_a_gpu_reads_no_cpu_tensor(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = scanops.Kernel(SPEC, "sm_90", entry=None)  # type: ignore[arg-type]  # it is refused before it is loaded
    refused(UnsupportedRequest, lambda: kernel(torch.ones(3, 20)), "cpu")
    with scanops.emulate():
        refused(UnsupportedRequest, lambda: kernel(torch.ones(3, 20)), "cpu")


@pytest.mark.gpu
def test_a_kernel_for_the_emulator_reads_no_cuda_tensor() -> None:
    kernel = scanops.compile(SPEC, "cpu")
    refused(UnsupportedRequest, lambda: kernel(torch.ones(3, 20, device="cuda")), "target=")


KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_pickle(kind: type[ScanopsError]) -> None:
    error = kind("asked this", allowed="only that", value={"shape": (1, 2)}, hint="do so")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert str(again) == str(error) and repr(again) == repr(error)
        assert (again.asked, again.allowed, again.value, again.hint) == (
            error.asked, error.allowed, error.value, error.hint,
        )  # fmt: skip
    assert issubclass(kind, ScanopsError)


def test_the_parts_stand_in_the_message_in_order() -> None:
    lines = str(ScanopsError("a", allowed="b", value="c", hint="d")).splitlines()
    assert [line.strip() for line in lines] == ["a: got c", "allowed: b", "next: d"]
    lines = str(ScanopsError("a", allowed="b", value="c\ne", hint="d")).splitlines()
    assert [line.strip() for line in lines] == ["a: got c", "allowed: b", "got: c", "e", "next: d"]
