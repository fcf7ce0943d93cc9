"""NVRTC: where it is found, what it builds without tools, and who is asked when it does not build."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scanops.artifact import BuildReport
from scanops.builders import build, nvrtc
from scanops.errors import BuildFailure, MissingCompiler, ScanopsError, UnsupportedRequest
from scanops.runtime.policies import AHEAD, POLICIES
from tests.scripts import ran
from tests.store.sources import CUDA, needs_nvrtc

CALL = POLICIES["build"].builders
ALONE = """
import runpy, sys
def refuse(event, words):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"):
        sys.exit(f"{event}: {words}")
sys.addaudithook(refuse)
sys.argv = ["scanops", "build", "sum-f32-n32768", "--target", "sm_90"]
runpy.run_module("scanops", run_name="__main__")
"""


@needs_nvrtc
def test_a_kernel_is_built_with_an_empty_path_and_no_process(tmp_path: Path) -> None:
    words = {"PATH": "", "SCANOPS_BUILDER": "nvrtc", "SCANOPS_STORE": str(tmp_path / "store")}
    said = ran(sys.executable, "-c", ALONE, **words).stdout
    assert said.count("  built  ") == said.count("kernel.cubin, by nvrtc") == said.count("no spills") == 2


def test_the_order_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the process, the newest wheel, a toolkit; nothing older than CUDA 12, and nothing twice."""
    files = ("loaded/libnvrtc.so.12.4.127", "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "home/lib64/libnvrtc.so.13")
    for name in (*files, "site/nvidia/cu13/lib/libnvrtc.so.13", "home/lib64/libnvrtc.so.11.2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 0 00:00 1   {tmp_path / files[0]}\n" * 2 + "7f02-7f03 rw-p 0 00:00 0\n")
    monkeypatch.setattr(nvrtc, "_MAPS", maps)
    monkeypatch.setattr(nvrtc, "_USUAL_ROOT", tmp_path / "absent")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "site")])
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SCANOPS_NVRTC", raising=False)
    found = [(how, path.relative_to(tmp_path).parts[0], path.name) for how, path in nvrtc._places()]
    assert found == [
        ("this process", "loaded", "libnvrtc.so.12.4.127"),
        ("wheel", "site", "libnvrtc.so.13"),
        ("wheel", "site", "libnvrtc.so.12"),
        ("CUDA_HOME", "home", "libnvrtc.so.13"),
    ]
    with pytest.raises(MissingCompiler, match=r"libnvrtc\.so\.12\.4\.127") as caught:  # none of the files is a library
        nvrtc.require("sm_90")
    assert "pip install nvidia-cuda-nvrtc" in caught.value.hint


NAMED = """
import os, sys
from scanops.builders import nvrtc
from scanops.errors import ScanopsError
for path, target in zip(sys.argv[1::2], sys.argv[2::2]):
    os.environ["SCANOPS_NVRTC"] = path
    try:
        print(nvrtc.require(target).found_by)
    except ScanopsError as problem:
        print(type(problem).__name__, problem.value, problem.hint)
"""


@needs_nvrtc
def test_a_named_library_is_used_and_no_other(tmp_path: Path) -> None:
    """In a process that has loaded none: where its builtins are loaded, a library does without a copy beside it."""
    real, bare = nvrtc.require("sm_90").path, tmp_path / "libnvrtc.so.13"
    os.link(real, bare) if real.stat().st_dev == tmp_path.stat().st_dev else bare.write_bytes(real.read_bytes())
    pairs = ((bare, "sm_90"), ("/nowhere", "sm_90"), (sys.executable, "sm_90"), (real, "sm_90"), (real, "sm_20"))
    lines = ran(sys.executable, "-c", NAMED, *(word for pair in pairs for word in pair)).stdout.splitlines()
    kinds = ("MissingCompiler", "MissingCompiler", "MissingCompiler", "SCANOPS_NVRTC", "UnsupportedRequest")
    words = ("libnvrtc-builtins.so", "No such file", "correct SCANOPS_NVRTC", "", "set SCANOPS_NVRTC")
    assert all(line.startswith(kind) and word in line for line, kind, word in zip(lines, kinds, words, strict=True))


REFUSED = BuildFailure("build", allowed="", value="refused", hint="")
ABSENT = MissingCompiler("find it", allowed="", value="absent", hint="")
UNKNOWN = UnsupportedRequest("target", allowed="", value="unknown", hint="")
# Who may build, what each says, who is asked, and what comes of it: a builder, or an error that names these
ORDERS: dict[str, tuple[tuple[str, ...], dict[str, ScanopsError], list[str], str]] = {
    "ahead of time": (AHEAD, {}, ["load_inline"], "load_inline"),
    "a torch without CUDA": (AHEAD, {"load_inline": ABSENT}, ["load_inline", "nvcc"], "nvcc"),
    "torch alone": (AHEAD, dict.fromkeys(AHEAD[:2], ABSENT), list(AHEAD), "nvrtc"),
    "a host compiler that nvcc refuses": (AHEAD, {"load_inline": REFUSED}, ["load_inline", "nvrtc"], "nvrtc"),
    "a call": (CALL, {}, ["nvrtc"], "nvrtc"),
    "a call without NVRTC": (CALL, {"nvrtc": ABSENT}, ["nvrtc", "load_inline"], "load_inline"),
    "names that NVRTC lacks": (CALL, {"nvrtc": REFUSED}, ["nvrtc", "load_inline"], "load_inline"),
    "a target that NVRTC lacks": (CALL, {"nvrtc": UNKNOWN, "load_inline": ABSENT}, list(CALL), "nvcc"),
    "a mistake": (CALL, {"nvrtc": UNKNOWN, "load_inline": REFUSED}, ["nvrtc", "load_inline"], "refused"),
    "a mistake, and NVRTC alone": (CALL, {"nvrtc": REFUSED, **dict.fromkeys(AHEAD[:2], ABSENT)}, list(CALL), "refused"),
    "nobody": (CALL, dict.fromkeys(CALL, ABSENT), list(CALL), "absent"),
    "one that is named": (("nvcc",), {"nvcc": ABSENT}, ["nvcc"], "absent"),
}


@pytest.mark.parametrize("what", ORDERS)
def test_who_is_asked(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders, problems, order, outcome = ORDERS[what]
    asked: list[str] = []

    def built(name: str) -> BuildReport:
        asked.append(name)
        if name in problems:
            raise problems[name]
        return BuildReport(file=tmp_path / "kernel", seconds=0, resources=None, toolchain={"route": name})

    for name in AHEAD:
        stub = SimpleNamespace(require=id, build=lambda request, directory, name=name: built(name))
        monkeypatch.setitem(build._BUILDERS, name, stub)
    request = replace(CUDA, builders=builders)
    if outcome in AHEAD:
        assert build.build(request, tmp_path).toolchain == {"route": outcome}
    else:
        with pytest.raises(ScanopsError, match=outcome) as caught:
            build.build(request, tmp_path)
        assert isinstance(caught.value, MissingCompiler) is (outcome == "absent")
    assert asked == order
