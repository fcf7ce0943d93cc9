"""The library as an entry of the store: found, packed, verified, refused, built when it pays."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import scanops
from scanops import environment
from scanops.cli import doctor, main
from scanops.cli.doctor import Finding, finding
from scanops.errors import BadStoreEntry, MissingCompiler
from scanops.runtime import background, native
from scanops.runtime.native import building
from scanops.store import packing
from scanops.store.store import Store
from tests.native.conftest import Counted
from tests.requests.checks import refused
from tests.scripts import ran

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


def copied(folder: Path) -> Path:
    """Copy the library's entry into a folder, so that nothing is compiled again."""
    entry = building.found()
    assert entry is not None
    folder.mkdir(mode=0o700)
    return Path(shutil.copytree(entry.directory, folder / entry.directory.name))


@pytest.mark.slow
def test_a_pack_serves_where_nothing_can_be_built(counted: Counted, tmp_path: Path) -> None:
    """A pack with one kernel and the library."""
    folder, specs = tmp_path / "pack", tmp_path / "specs.toml"
    copied(folder)
    specs.write_text('targets = ["cpu"]\nspecs = ["sum-f32-n40"]\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["precompile", str(specs), "-o", str(folder), "--native", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    contents = packing.verify(folder)
    assert contents["targets"] == ["cpu", "host"] and len(contents["entries"]) == 2
    nothing = {"SCANOPS_STORE": str(tmp_path / "none"), "SCANOPS_PACKS": str(folder), "PATH": ""}
    assert ran(sys.executable, "-c", PROGRAM, **nothing).stdout == "served\n"


@pytest.mark.parametrize("place", ["store", "wheel"])
def test_a_changed_library_is_not_loaded(
    place: str, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a store nor from the installed wheel, which serves where the store has none."""
    monkeypatch.setattr(building, "PREBUILT", tmp_path / "wheel")
    copy, store = copied(tmp_path / place), Store(tmp_path / "store")
    kept = building.found(store)
    assert kept is not None and kept.directory == copy and building.module_of(kept).size() == 0
    data = bytearray((copy / "kernel.so").read_bytes())
    data[-1] ^= 1
    (copy / "kernel.so").unlink()  # the library that was loaded stays as it is
    (copy / "kernel.so").write_bytes(data)
    refused(BadStoreEntry, lambda: building.module_of(kept), "SHA-256")
    assert building.found(store) is None  # moved aside in the store


def test_the_identity_has_all_that_the_binary_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = building.request()
    assert str(Path(torch.__file__).parent) not in ours.source + "".join(ours.flags)
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert building.request().identity != ours.identity


def native_finding() -> Finding:
    return finding("native calls", doctor.native_calls)


def test_what_the_doctor_says(counted: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether the library is there, switched off, or cannot be built: then calls go through Python."""
    finding = native_finding()
    assert finding.ok and finding.facts["identity"] == building.request().identity
    with monkeypatch.context() as patch:
        patch.setenv("SCANOPS_NATIVE", "0")
        assert not environment.native()
        assert native_finding().status == "missing" and "unset SCANOPS_NATIVE" in str(native_finding().next)
        patch.delenv("SCANOPS_NATIVE")
        patch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
        assert not environment.native()  # its table has no lock of its own
        assert "PYTHON_GIL" in str(native_finding().next)
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_CXX", "absent-compiler")
    refused(MissingCompiler, building.built, "absent-compiler")
    finding = native_finding()
    assert finding.status == "missing" and "from Python" in finding.summary
    native.served = None
    monkeypatch.setattr(native, "_MODULES", [])
    native.prepared("sm_90")  # says so in the log
    assert native.served is None


@pytest.mark.parametrize(
    ("setting", "policy", "wanted"),
    [("1", "build", [True]), ("1", "never", [False]), ("0", "build", [])],
)
def test_it_comes_when_calls_repeat(
    setting: str, policy: str, wanted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for once, by the worker; built where it is not there and the policy allows it."""
    done: list[object] = []
    monkeypatch.setenv("SCANOPS_NATIVE", setting)
    monkeypatch.setattr(native, "_counted", itertools.count(1))
    monkeypatch.setattr(native, "get", lambda *, build: done.append(build))
    monkeypatch.setattr(background.WORKER, "run_later", lambda key, what, work: work())
    with scanops.policy(policy):
        for _ in range(native._REPEATS - 1):
            native.repeated("sm_90")
        assert done == []
        for _ in range(3):
            native.repeated("sm_90")
    assert done == wanted
