"""Real compilers, both routes: what comes out, and what is said when nothing does."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanops.artifact import BuildRequest
from scanops.builders import inline, toolchain
from scanops.builders.build import build, build_folder
from scanops.errors import BuildFailure, UnsupportedRequest
from scanops.processes import at_once
from scanops.store.library import load
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE, CUDA_SOURCE, needed, needs_cxx, needs_nvcc, script

CUDA = BuildRequest(name="sum-f32", source=CUDA_SOURCE, target="sm_90")
CPU = BuildRequest(name="sum-f32", source=CPU_SOURCE, target="cpu")
FOREIGN = ("torch", "c10", "python", "ubsan")


@pytest.fixture
def with_torch() -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.utils.cpp_extension")
    return torch


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "unavailable", lambda target: "not in this test")


@pytest.fixture
def torch_with_cuda(with_torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU-only torch made to look, to load_inline and to the linker, like one built for CUDA."""
    if with_torch.version.cuda is not None:
        return
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("c10_cuda", "torch_cuda"):
        command = ["g++", "-shared", "-o", str(stubs / f"lib{name}.so"), "-x", "c++", os.devnull]
        subprocess.run(command, check=True)
    monkeypatch.setenv("LIBRARY_PATH", str(stubs))
    monkeypatch.setattr(with_torch.version, "cuda", toolchain.find_nvcc().version)


def check_cuda(store: Store, route: str) -> None:
    entry = store.get_or_build(CUDA)
    assert entry.manifest["toolchain"]["route"] == route
    assert entry.resources is not None
    assert entry.resources.registers and entry.resources.registers < 64
    assert (entry.resources.shared_bytes, entry.resources.spill_store_bytes) == (64, 0)
    names = needed(entry.library_path)
    assert any(name.startswith("libcudart.so.") for name in names)
    assert not [name for name in names if any(word in name for word in FOREIGN)]
    assert entry.library_path.stat().st_size < 200_000
    loaded = load(entry)
    assert loaded.scanops_abi() == 3
    assert loaded.scanops_error_string(0) == b"no error"


@needs_nvcc
@pytest.mark.usefixtures("without_torch")
def test_cuda_by_the_compilers(tmp_path: Path) -> None:
    check_cuda(Store(tmp_path / "store"), "nvcc")


@needs_nvcc
@pytest.mark.usefixtures("torch_with_cuda")
def test_cuda_by_load_inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from torch.utils import cpp_extension

    # As in a process started without an activated environment: no ninja on PATH.
    folders = [Path(text) for text in os.environ["PATH"].split(os.pathsep)]
    kept = [str(folder) for folder in folders if not (folder / "ninja").exists() or (folder / "g++").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(kept))
    before = (dict(os.environ), cpp_extension.CUDA_HOME)
    check_cuda(Store(tmp_path / "store"), "load_inline")
    assert (dict(os.environ), cpp_extension.CUDA_HOME) == before
    assert capfd.readouterr() == ("", "")


@needs_nvcc
@pytest.mark.usefixtures("torch_with_cuda")
def test_what_load_inline_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    told: dict[str, Any] = {}

    def spy(**arguments: Any) -> str:
        told.update(arguments, home=cpp_extension.CUDA_HOME, variables=dict(os.environ))
        (tmp_path / "nvcc.log").write_text("ptxas info    : Used 11 registers\n")
        return str(tmp_path / "x.so")

    monkeypatch.setattr(cpp_extension, "load_inline", spy)
    report = build(CUDA, tmp_path)
    assert report.library == tmp_path / "x.so"
    assert report.resources is not None and report.resources.registers == 11
    toolkit = toolchain.find_nvcc()
    assert told["home"] == str(toolkit.root)
    assert told["cuda_sources"] == [CUDA_SOURCE]
    assert told["no_implicit_headers"] is True and told["is_python_module"] is False
    assert told["build_directory"] == str(tmp_path)
    assert set(CUDA.flags) < set(told["extra_cuda_cflags"])
    assert told["extra_ldflags"][0] == "-Wl,--as-needed"
    assert told["variables"]["PATH"].split(os.pathsep)[0] == str(toolchain.find_ninja().path.parent)
    assert told["variables"]["CXX"] == str(toolchain.find_cxx().path)


def test_a_toolkit_without_the_link_to_its_runtime(tmp_path: Path) -> None:
    runtime = tmp_path / "lib" / "libcudart.so.13"
    runtime.parent.mkdir()
    runtime.touch()
    work = tmp_path / "work"
    work.mkdir()
    folder = inline._folder_to_link(runtime, work)
    assert (folder / "libcudart.so").resolve() == runtime
    (runtime.parent / "libcudart.so").symlink_to(runtime)
    assert inline._folder_to_link(runtime, work) == runtime.parent


@needs_cxx
@pytest.mark.parametrize("route", ["load_inline", "cpu"])
def test_the_cpu_by_both_routes(route: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("with_torch" if route == "load_inline" else "without_torch")
    entry = Store(tmp_path / "store").get_or_build(CPU)
    assert entry.manifest["toolchain"]["route"] == route
    assert not [name for name in needed(entry.library_path) if any(word in name for word in (*FOREIGN, "cudart"))]
    assert load(entry).scanops_abi() == 3


def both_routes(request: BuildRequest, tmp_path: Path) -> list[tuple[str, bytes]]:
    """One by itself, and one of several: the routes, and the libraries."""
    found = []
    for number, count in enumerate((1, 2)):
        folders = [tmp_path / f"{number}-{place}" for place in range(count)]
        for folder in folders:
            folder.mkdir()
        report = at_once(lambda folder: build(request, folder), folders, 1)[0]
        found.append((report.toolchain["route"], report.library.read_bytes()))
    return found


@needs_nvcc
@pytest.mark.usefixtures("torch_with_cuda")
def test_both_routes_to_a_gpu_give_the_same_bytes(tmp_path: Path) -> None:
    (first, alone), (second, beside) = both_routes(CUDA, tmp_path)
    assert (first, second) == ("load_inline", "nvcc")
    assert alone == beside


@needs_cxx
@pytest.mark.usefixtures("with_torch")
def test_both_routes_to_the_emulator_give_the_same_bytes(tmp_path: Path) -> None:
    (first, alone), (second, beside) = both_routes(BuildRequest(name="e", source=CUDA_SOURCE, target="cpu"), tmp_path)
    assert (first, second) == ("load_inline", "cpu")
    assert alone == beside


class Arguments(ctypes.Structure):
    """ScanArguments of CUDA_SOURCE."""

    _fields_ = (*[(name, ctypes.c_void_p) for name in ("x", "mask", "out", "workspace")], ("lines", ctypes.c_longlong))


@needs_cxx
@pytest.mark.usefixtures("without_torch")
def test_the_text_for_nvcc_runs_on_the_cpu(tmp_path: Path) -> None:
    loaded = load(Store(tmp_path / "store").get_or_build(BuildRequest(name="e", source=CUDA_SOURCE, target="cpu")))
    x, out = (ctypes.c_float * 512)(*range(512)), (ctypes.c_float * 512)()
    arguments = Arguments(x=ctypes.addressof(x), out=ctypes.addressof(out), lines=1)
    assert loaded.scanops_launch(ctypes.byref(arguments), None) == 0
    assert list(out)[:32] == [1, *range(1, 32)]  # x[0] + what the lane below has + lines


@needs_cxx
@pytest.mark.parametrize("fixture", ["with_torch", "without_torch"])
def test_a_source_g_plus_plus_refuses(fixture: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(fixture)
    with pytest.raises(BuildFailure) as caught:
        build(BuildRequest(name="bad", source=CPU_SOURCE + "int f() { return nonsense; }", target="cpu"), tmp_path)
    refused(caught.value, tmp_path)


@needs_nvcc
@pytest.mark.parametrize("fixture", ["torch_with_cuda", "without_torch"])
def test_a_source_nvcc_refuses(fixture: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(fixture)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(BuildFailure) as caught:
        build(BuildRequest(name="bad", source=CUDA_SOURCE + "int f() { return nonsense; }", target="sm_90"), work)
    refused(caught.value, work)


def refused(error: BuildFailure, directory: Path) -> None:
    """The command, the compiler's words, and where the source is."""
    assert error.asked.startswith("build bad for ")
    assert "accepts" in error.allowed
    lines = str(error.value).splitlines()
    assert lines[0].startswith("command: ") and "kernel.cu" in lines[0]
    # The first thing after the command is the first complaint, in the file that is kept.
    assert str(directory / "kernel.cu") in lines[1]
    assert "nonsense" in str(error.value)
    assert "ninja" not in str(error.value).replace(lines[0], "")
    assert str(directory / "kernel.cu") in error.hint
    assert "nonsense" in (directory / "build.log").read_text()


@needs_nvcc
@pytest.mark.usefixtures("without_torch")
def test_a_target_nvcc_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedRequest, match="sm_90"):
        build(BuildRequest(name="old", source=CUDA_SOURCE, target="sm_20"), tmp_path)


@pytest.mark.usefixtures("without_torch")
def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "no-such-compiler")
    with pytest.raises(BuildFailure, match="no-such-compiler"):
        build(CPU, tmp_path)


@needs_cxx
def test_a_cpu_only_torch_is_recognised_without_importing_it(tmp_path: Path) -> None:
    from tests.store.sources import python

    pytest.importorskip("torch")
    code = 'import sys\nfrom scanops.builders import inline\nprint(inline.unavailable("sm_90"), "torch" in sys.modules)'
    out, err = python(code).communicate(timeout=60)
    assert err == ""
    if "without CUDA" not in out:
        pytest.skip("this torch is built for CUDA")
    assert out == "this torch is built without CUDA False\n"


@needs_cxx
@pytest.mark.usefixtures("without_torch")
def test_a_build_is_two_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="scanops")
    build(CPU, tmp_path)
    first, second = caplog.messages
    assert first.startswith("building sum-f32 for cpu")
    assert second.startswith("built sum-f32 for cpu in ")


HOSTILE = ("$(touch PWNED)", "`touch PWNED`", "a:b", "a b", "line\nend", 'quo"te', "latin\udce9")


@needs_cxx
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("route", ["load_inline", "compilers", pytest.param("nvcc", marks=needs_nvcc)])
def test_names_of_folders_are_read_by_no_shell(
    route: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Build with the store, the working directory and TMPDIR in a folder whose name nvcc or ninja would interpret."""
    if route == "load_inline" and name not in ("a:b", "$(touch PWNED)"):
        pytest.skip("one name stands for all that go to another folder")
    request.getfixturevalue("with_torch" if route == "load_inline" else "without_torch")
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    entry = Store(place / "store").get_or_build(CUDA if route == "nvcc" else CPU)
    assert entry.manifest["toolchain"]["route"] == {"compilers": "cpu"}.get(route, route)
    assert load(entry).scanops_abi() == 3
    assert [path for path in Path(tmp_path).rglob("*") if path.name == "PWNED"] == []
    assert [path.name for path in place.iterdir()] == ["store"]
    bad = replace(CPU, source="nonsense")
    with pytest.raises(BuildFailure, match="nonsense") as caught:
        Store(place / "store").get_or_build(bad)
    assert str(place / "store" / ".failed") in caught.value.hint


@needs_nvcc
@pytest.mark.usefixtures("without_torch")
def test_compilers_in_a_folder_that_a_shell_would_interpret_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "$(touch PWNED)"
    place.mkdir()
    monkeypatch.setenv("SCANOPS_NVCC", str(script(place / "nvcc", f'exec {shutil.which("nvcc")} "$@"')))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildFailure, match=r"run nvcc with .*touch PWNED"):
        Store(tmp_path / "store").get_or_build(CUDA)
    assert not (tmp_path / "PWNED").exists()


def test_a_build_folder_with_an_unsafe_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = tmp_path / "$(id)"
    unsafe.mkdir()
    with pytest.raises(BuildFailure, match=r"\$\(id\)"):
        build(CPU, unsafe)
    monkeypatch.setattr(os, "access", lambda *_: False)  # no folder for temporary files either
    with pytest.raises(BuildFailure, match="TMPDIR"), build_folder(unsafe):
        pytest.fail("built")


@needs_cxx
@pytest.mark.usefixtures("without_torch")
def test_a_compiler_that_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_CXX", "/bin/true")
    with pytest.raises(BuildFailure, match=r"/bin/true succeeded without writing kernel\.o: it is no compiler"):
        Store(tmp_path / "store").get_or_build(CPU)


@needs_cxx
@pytest.mark.usefixtures("without_torch")
def test_a_compiler_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'case "$1" in --version) exec {shutil.which("g++")} "$@" ;; esac; kill -9 $$'
    monkeypatch.setenv("SCANOPS_CXX", str(script(tmp_path / "cxx", body)))
    with pytest.raises(BuildFailure, match="cxx was ended by signal 9, which is what happens where memory runs out"):
        build(CPU, tmp_path)
