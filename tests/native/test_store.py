"""The library as an entry of the store: found, packed, verified, refused, built when it pays."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import scanops
from scanops import environment
from scanops.cli import doctor, main
from scanops.errors import BadStoreEntry, MissingCompiler
from scanops.packs import manifest
from scanops.runtime import background, native
from scanops.runtime.native import building
from scanops.store.store import Store
from tests.native.conftest import Counted
from tests.requests.checks import refused
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

PROGRAM = """
import torch, scanops
from scanops.runtime import native
assert native.get(build=False)
with scanops.emulate():
    for _ in range(3):
        y = scanops.cumsum(torch.ones(3, 40), 1)
    assert y.equal(torch.ones(3, 40).cumsum(1)) and native.learnt() == 1
print("served")
"""


@pytest.fixture
def pack(counted: Counted, tmp_path: Path) -> Path:
    """A pack with one kernel and the library, of which nothing is compiled again."""
    entry, folder, specs = building.found(), tmp_path / "pack", tmp_path / "specs.toml"
    assert entry is not None
    folder.mkdir(mode=0o700)
    shutil.copytree(entry.directory, folder / entry.directory.name)
    specs.write_text('targets = ["cpu"]\nspecs = ["sum-f32-n40"]\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["precompile", str(specs), "-o", str(folder), "--native", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.slow
def test_a_pack_serves_where_nothing_can_be_built(pack: Path, tmp_path: Path) -> None:
    contents = manifest.verify(pack)
    assert contents["targets"] == ["cpu", "host"] and len(contents["entries"]) == 2
    nothing = {**os.environ, "SCANOPS_STORE": str(tmp_path / "none"), "SCANOPS_PACKS": str(pack), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=nothing, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr


def test_a_changed_library_is_not_loaded(counted: Counted, tmp_path: Path) -> None:
    entry = building.found()
    assert entry is not None
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    copy = root / entry.directory.name
    shutil.copytree(entry.directory, copy)
    kept = building.found(Store(root))
    assert kept is not None and kept.directory == copy
    data = bytearray((copy / "kernel.so").read_bytes())
    data[-1] ^= 1
    (copy / "kernel.so").write_bytes(data)
    refused(BadStoreEntry, lambda: building.module_of(kept), "SHA-256")
    assert building.found(Store(root)) is None  # moved aside


def test_what_it_is_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that its binary follows from, and no path."""
    ours = building.request()
    assert str(Path(torch.__file__).parent) not in ours.source + "".join(ours.flags)
    assert '#include "' not in ours.source and ours.source.count("PyInit_scanops_native") == 1
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert building.request().identity != ours.identity


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_CXX", "absent-compiler")
    refused(MissingCompiler, building.built, "absent-compiler")
    finding = doctor.native_calls()
    assert finding.status == "missing" and "from Python" in finding.summary
    monkeypatch.setattr(native, "_MODULES", [])
    native.prepared("sm_90")  # says so in the log
    assert not native.loaded()


def test_what_the_doctor_says(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.native_calls()
    assert finding.ok and finding.facts["identity"] == building.request().identity
    monkeypatch.setenv("SCANOPS_NATIVE", "0")
    assert not environment.native()
    assert (doctor.native_calls().status, doctor.native_calls().next) == ("missing", "unset SCANOPS_NATIVE")


@pytest.mark.parametrize(
    ("setting", "policy", "wanted"),
    [("1", "build", [False, "run", False]), ("1", "never", [False]), ("0", "build", [])],
)
def test_it_comes_when_calls_repeat(
    setting: str, policy: str, wanted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for once, by the worker; built by a process of its own where it is not there and the policy allows it."""
    done: list[object] = []

    def get(*, build: bool) -> bool:
        done.append(build)
        return False

    def at_once(key: object, what: str, work: Callable[[], object]) -> None:
        work()

    monkeypatch.setenv("SCANOPS_NATIVE", setting)
    monkeypatch.setattr(native, "_counted", itertools.count(1))
    monkeypatch.setattr(native, "get", get)
    monkeypatch.setattr(background.WORKER, "run_later", at_once)
    monkeypatch.setattr(background.WORKER, "run", lambda command: done.append("run"))
    with scanops.policy(policy):
        for _ in range(native._REPEATS - 1):
            native.repeated("sm_90")
        assert done == []
        for _ in range(3):
            native.repeated("sm_90")
    assert done == wanted
