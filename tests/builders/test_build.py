"""Real compilers: what comes out, and what is said when nothing does; the emulator's host object."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanops import environment
from scanops.build_request import BuildRequest
from scanops.builders import build, toolchain
from scanops.codegen.abi import ABI
from scanops.errors import BuildFailure
from scanops.processes import at_once
from scanops.store import Store
from scanops.store.entry import Entry
from scanops.store.library import load
from tests.scripts import ran
from tests.store.sources import (
    CPU_SOURCE,
    CUDA,
    CUDA_SOURCE,
    KERNEL,
    counting_cxx,
    needed,
    needs_nvcc,
    needs_nvrtc,
    script,
)

BAD = "\n#ifdef __CUDACC_RTC__\n__device__\n#endif\nint f() { return nonsense; }\n"
FOREIGN = ("torch", "c10", "python", "ubsan")
ROUTES = [
    pytest.param(KERNEL, "cpu"),
    pytest.param(replace(CUDA, builders=("load_inline",)), "load_inline", marks=needs_nvcc),
    pytest.param(replace(CUDA, builders=("nvcc",)), "nvcc", marks=needs_nvcc),
    pytest.param(replace(CUDA, builders=("nvrtc",)), "nvrtc", marks=needs_nvrtc),
]
each_route = pytest.mark.parametrize(("kernel", "route"), ROUTES, ids=lambda each: getattr(each, "target", each))


@pytest.fixture
def torch_with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KERNEL-only torch made to look, to load_inline and to the linker, like one built for CUDA."""
    torch: Any = pytest.importorskip("torch")
    if torch.version.cuda is not None or shutil.which("nvcc") is None:
        return
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("c10_cuda", "torch_cuda"):
        command = ["g++", "-shared", "-o", str(stubs / f"lib{name}.so"), "-x", "c++", os.devnull]
        subprocess.run(command, check=True)
    monkeypatch.setenv("LIBRARY_PATH", str(stubs))
    monkeypatch.setattr(environment, "COMPILER_VARIABLES", (*environment.COMPILER_VARIABLES, "LIBRARY_PATH"))
    monkeypatch.setattr(torch.version, "cuda", toolchain.find_nvcc().version)


@pytest.fixture
def usable(request: pytest.FixtureRequest) -> None:
    """Make the route of a test one that builds."""
    if request.getfixturevalue("route") == "load_inline":
        request.getfixturevalue("torch_with_cuda")


@each_route
@pytest.mark.usefixtures("usable")
def test_a_library_needs_the_cuda_runtime_at_most(
    kernel: BuildRequest, route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # As in a process started without an activated environment: no ninja on PATH.
    folders = [Path(text) for text in os.environ["PATH"].split(os.pathsep)]
    kept = [str(folder) for folder in folders if not (folder / "ninja").exists() or (folder / "g++").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(kept))
    before = dict(os.environ)
    entry = Store(tmp_path / "store").get_or_build(kernel)
    assert dict(os.environ) == before
    assert capfd.readouterr() == ("", "")
    assert (entry.builder, entry.form) == (route, "cubin" if route == "nvrtc" else "library")
    names = [] if route == "nvrtc" else needed(entry.library_path)
    assert any(name.startswith("libcudart.so.") for name in names) is (route in ("load_inline", "nvcc"))
    assert not [name for name in names if any(word in name for word in FOREIGN)]
    assert entry.library_path.stat().st_size < 200_000
    if route != "cpu":
        assert entry.resources is not None
        assert entry.resources.registers and entry.resources.registers < 64
        assert (entry.resources.shared_bytes, entry.resources.spill_store_bytes) == (64, 0)
    else:
        assert entry.resources is None
    assert route == "nvrtc" or load(entry).scanops_error_string(0) == b"no error"


@needs_nvcc
@pytest.mark.usefixtures("torch_with_cuda")
def test_both_routes_give_the_same_bytes(tmp_path: Path) -> None:
    """Build one kernel by itself, by load_inline, and one of several at once, which load_inline may not do."""
    found = []
    for count in (1, 2):
        folders = [tmp_path / f"{count}-{place}" for place in range(count)]
        for folder in folders:
            folder.mkdir()
        report = at_once(lambda folder: build(CUDA, folder), folders, 1)[0]
        found.append((report.toolchain["route"], report.file.read_bytes()))
    (first, alone), (second, beside) = found
    assert (first, second) == ("load_inline", "nvcc")
    assert alone == beside


@each_route
@pytest.mark.usefixtures("usable")
def test_a_source_that_the_compiler_refuses(kernel: BuildRequest, route: str, tmp_path: Path) -> None:
    """Name the command, the compiler's words from the first complaint on, and the source that is kept."""
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(BuildFailure) as caught:
        build(replace(kernel, name="bad", source=kernel.source + BAD), work)
    error, lines = caught.value, str(caught.value.value).splitlines()
    assert lines[-1].startswith("command: ") and "kernel.cu" in lines[-1]
    assert "kernel.cu" in lines[0] and lines[0] in str(error).splitlines()[0]
    assert "nonsense" in str(error.value)
    assert "ninja" not in str(error.value).replace(lines[-1], "") and str(error).count("command: ") == 1
    assert str(work / "kernel.cu") in error.hint
    assert "nonsense" in (work / "build.log").read_text()


# A compiler: none, one that writes nothing, one that is killed -> what the error names
COMPILERS = {
    "no-such-compiler": "no-such-compiler",
    "/bin/true": r"/bin/true succeeded without writing kernel\.o: it is no compiler",
    "killed": "killed was ended by signal 9, which is what happens where memory runs out",
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_compiler_that_compiles_nothing(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'case "$1" in --version) exec {shutil.which("g++")} "$@" ;; esac; kill -9 $$'
    place = script(tmp_path / "killed", body) if compiler == "killed" else compiler
    monkeypatch.setenv("SCANOPS_CXX", str(place))
    with pytest.raises(BuildFailure, match=COMPILERS[compiler]):
        build(KERNEL, tmp_path)


# Names of folders that a shell or ninja would interpret, and the routes on which each is tried
HOSTILE = {
    "$(touch PWNED)": ROUTES,
    "`touch PWNED`": ROUTES[:3:2],
    "a:b": ROUTES[:2],
    **dict.fromkeys(("a b", "line\nend", 'quo"te', "latin\udce9"), ROUTES[::3]),
}


@pytest.mark.parametrize(
    ("name", "kernel", "route"),
    [pytest.param(name, *each.values, marks=each.marks) for name, routes in HOSTILE.items() for each in routes],
    ids=lambda each: repr(getattr(each, "target", each)),
)
@pytest.mark.usefixtures("usable")
def test_names_of_folders_are_read_by_no_shell(
    name: str, kernel: BuildRequest, route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build with the store, the working directory and TMPDIR in a folder whose name nvcc or ninja would interpret."""
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    entry = Store(place / "store").get_or_build(kernel)
    assert entry.builder == route and (route == "nvrtc" or load(entry).scanops_abi() == ABI)
    assert [path for path in Path(tmp_path).rglob("*") if path.name == "PWNED"] == []
    assert [path.name for path in place.iterdir()] == ["store"]
    with pytest.raises(BuildFailure, match="nonsense") as caught:
        Store(place / "store").get_or_build(replace(KERNEL, source="nonsense"))
    assert str(place / "store" / ".failed") in caught.value.hint


def test_where_no_folder_has_a_safe_name_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = tmp_path / "$(id)"
    unsafe.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # no folder for temporary files either
    with pytest.raises(BuildFailure, match=r"\$\(id\)[\s\S]*TMPDIR"):
        build(KERNEL, unsafe)


# ---- the emulator's host object: compiled once, linked into each kernel, and no reason for a failed build

EMULATED = BuildRequest(name="sum-f32", source=CUDA_SOURCE, target="cpu")
ANOTHER = replace(EMULATED, source=CUDA_SOURCE.replace("+ g.lines", "- g.lines"))


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
    given = *(ctypes.c_void_p(ctypes.addressof(each)) for each in (x, out)), ctypes.c_longlong(1)
    parameters = (ctypes.c_void_p * 3)(*map(ctypes.addressof, given))
    assert load(entry).scanops_launch(None, 1, 1, 1, 512, 1, 1, 0, None, parameters, None) == 0
    return list(out)[:32]


def test_it_is_compiled_once_for_each_compiler_and_its_flags(compiled: Callable[[], int]) -> None:
    plain = Store().get_or_build(replace(EMULATED, source=CPU_SOURCE))  # uses no emulator
    assert compiled() == 1
    assert load(plain).scanops_abi() == ABI
    first = Store().get_or_build(EMULATED)
    assert compiled() == 3
    second = Store().get_or_build(ANOTHER)
    assert compiled() == 4
    assert answers(first) == [1, *range(1, 32)]
    assert answers(second) == [-1, *range(-1, 30)]
    Store().get_or_build(replace(EMULATED, options=("-DNOTHING",)))
    assert compiled() == 6


def test_nothing_of_it_is_seen_outside_a_library(tmp_path: Path) -> None:
    """A kernel that calls into the emulator of another library would run on that one's threads."""
    entry = Store(tmp_path / "store").get_or_build(EMULATED)
    symbols = ran("nm", "-D", "--defined-only", entry.library_path).stdout.split()[2::3]
    ours = {name for name in symbols if not name.startswith(("__start_", "__stop_"))}
    functions = ("abi", "emulator_configure", "error_string", "launch")
    assert ours == {f"scanops_{name}" for name in functions}
    assert answers(entry) == [1, *range(1, 32)]
