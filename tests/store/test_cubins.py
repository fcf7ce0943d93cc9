"""Cubins in stores and packs: beside libraries, of no host, verified as they are."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import scanops
from scanops import build_request
from scanops.build_request import CUBIN
from scanops.cli import main
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, MissingKernel, UnsupportedRequest
from scanops.runtime import kernels
from scanops.runtime.policies import POLICIES, STRICT
from scanops.store import Store
from scanops.store.archive import pack as write
from scanops.store.archive import unpack
from scanops.store.entry import Entry, facts_of, read_entry, verify_entry
from scanops.store.library import load, machine_problem
from scanops.store.packs import ANY, finish, read, troubles
from tests.store.sources import flipped, needs_nvcc, needs_nvrtc, python, replaced, resealed

pytestmark = needs_nvrtc

SPEC, TARGETS = ScanSpec(op="sum", dtype="float32", length=24), ("sm_80", "sm_90")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pack of the cubins of SPEC for two targets; not to be changed."""
    root = tmp_path_factory.mktemp("made") / "pack"
    for target in TARGETS:
        kernels.obtain(KernelKey(SPEC, target), STRICT.by("nvrtc"), Store(root))
    finish(root)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be changed, which is the user's store."""
    shutil.copytree(made, tmp_path / "store", ignore=shutil.ignore_patterns(".*"))
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    for name in ("SCANOPS_PACKS", "SCANOPS_BUILDER", "SCANOPS_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "store"


def folder(root: Path, target: str = "sm_90") -> Path:
    return next(path for path in root.glob(f"{SPEC.slug}-*") if read_entry(path).target == target)


def test_truncated_cubins_are_not_loaded(root: Path) -> None:
    """With a manifest that agrees: the driver is not told where a cubin ends."""
    for target in TARGETS:
        entry = read_entry(folder(root, target))
        data = entry.library_path.read_bytes()
        assert machine_problem(data, entry) is None
        for size in (*range(0, len(data), 50), len(data) - 1):
            assert machine_problem(data[:size], entry), size
        cut = data[: len(data) // 2]
        replaced(entry.library_path, cut)
        resealed(entry.directory, lambda manifest, cut=cut: manifest["files"].update({"kernel.cubin": facts_of(cut)}))
        with pytest.raises(BadStoreEntry, match="beyond its end"):
            load(read_entry(entry.directory))


@needs_nvcc
def test_a_named_builder_and_what_serves_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a builder's name and by the variable; looked up by the text and by the index."""
    cubin = scanops.compile(SPEC, "sm_90")  # found: any form serves
    library = scanops.compile(SPEC, "sm_90", builder="nvcc")
    listed = json.loads(CliRunner().invoke(main, ["store", "list", "--json"]).stdout)["kernels"]
    made = {each["directory"]: (each["form"], each["builder"]) for each in listed}
    assert made[str(cubin.path.parent)] == ("cubin", "nvrtc") and made[str(library.path.parent)] == ("library", "nvcc")
    for digests in (build_request.source_digests(), {}):
        monkeypatch.setattr(build_request, "known_digests", lambda digests=digests: digests)
        with monkeypatch.context() as patch:
            assert scanops.compile(SPEC, "sm_90").path == library.path
            assert scanops.compile(SPEC, "sm_90", builder="nvrtc").path == cubin.path
            patch.setenv("SCANOPS_BUILDER", "nvrtc")
            assert kernels.obtain(KernelKey(SPEC, "sm_90"), POLICIES["never"], Store()).path == cubin.path
            patch.setenv("SCANOPS_BUILDER", "load_inline")
            assert scanops.compile(SPEC, "sm_90").path == library.path  # which is the same by load_inline
    monkeypatch.setenv("SCANOPS_BUILDER", "g++")
    for target, builder, wrong in (("sm_90", "gcc", "gcc"), ("cpu", "nvrtc", "nvrtc"), ("sm_90", "auto", "g++")):
        with pytest.raises(UnsupportedRequest) as caught:
            scanops.compile(SPEC, target, builder=builder)
        assert caught.value.value == repr(wrong)


def test_a_cubin_is_of_no_host(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by text and by index on another platform, in a store and in a pack that went through an archive."""
    contents = read(root)
    assert (contents["platform"], contents["targets"]) == (ANY, list(TARGETS))
    write(root, tmp_path / "k.tar.xz")
    unpack(tmp_path / "k.tar.xz", tmp_path / "pack")
    here = kernels.request_of(KernelKey(SPEC, "sm_90"))
    monkeypatch.setattr(build_request, "PLATFORM", "linux-aarch64")
    monkeypatch.setattr("scanops.store.packs.PLATFORM", "linux-aarch64")
    build_request._fingerprint.cache_clear()
    there = replace(here)
    assert there.identity != here.identity and there.identities[CUBIN] == here.identities[CUBIN]
    assert list(troubles(tmp_path / "pack", contents)) == []
    for place, variable in ((root, "SCANOPS_STORE"), (tmp_path / "pack", "SCANOPS_PACKS")):
        monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "absent"))
        monkeypatch.setenv(variable, str(place))
        for digests in (build_request.source_digests(), {}):
            monkeypatch.setattr(build_request, "known_digests", lambda digests=digests: digests)
            found = scanops.compile(SPEC, "sm_90")
            assert found.path == folder(place) / "kernel.cubin"
    build_request._fingerprint.cache_clear()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda entry: resealed(entry, change)


def exchanged(entry: Path, data: bytes) -> None:
    """Put other code in place, with a manifest that agrees."""
    replaced(entry / "kernel.cubin", data)
    facts = facts_of((entry / "kernel.cubin").read_bytes())
    resealed(entry, lambda manifest: manifest["files"].update({"kernel.cubin": facts}))


CORRUPT: dict[str, Callable[[Path], object]] = {
    "flipped": lambda entry: replaced(entry / "kernel.cubin", flipped((entry / "kernel.cubin").read_bytes())),
    "gone": lambda entry: (entry / "kernel.cubin").unlink(),
    "without a launch": edited(lambda manifest: manifest.pop("launch")),
    "with another launch": edited(lambda manifest: manifest["launch"].update(threads=7)),
    "with another name": edited(lambda manifest: manifest["launch"].update(kernel="k;")),
    "with a field more": edited(lambda manifest: manifest["launch"].update(more=7)),
    "of another form": edited(lambda manifest: manifest.update(form="object")),
    "of a form that is none": edited(lambda manifest: manifest.update(form=["cubin"])),
}


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_cubin_is_a_miss(root: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    CORRUPT[what](folder(root))
    with scanops.policy("never"), pytest.raises(MissingKernel):
        scanops.compile(SPEC, "sm_90")
    assert "is corrupt" in caplog.text
    rebuilt = scanops.compile(SPEC, "sm_90", builder="nvrtc")
    assert isinstance(verify_entry(rebuilt.path.parent, read_entry(rebuilt.path.parent).identity), Entry)


def test_a_cubin_for_another_target_is_not_packed(root: Path) -> None:
    exchanged(folder(root), (folder(root, "sm_80") / "kernel.cubin").read_bytes())
    with pytest.raises(scanops.errors.BadStoreEntry, match="built for sm_80"):
        finish(root)


ONE_KEY = """
import logging
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.runtime.kernels import obtain
from scanops.runtime.policies import POLICIES, STRICT
logging.basicConfig(level=logging.INFO, format="%(message)s")
policy = (STRICT, POLICIES["build"])[int(sys.argv[2])]
time.sleep(max(0, float(sys.argv[3]) - time.time()))
print(obtain(KernelKey(ScanSpec(op="sum", dtype="float32", length=24), "sm_90"), policy.by("nvrtc"), Store(root)).path)
"""


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    asking = [python(ONE_KEY, tmp_path / "store", number % 2, time.time() + 3) for number in range(4)]
    said = [process.communicate(timeout=120) for process in asking]
    assert len({out for out, _ in said}) == 1 and said[0][0].endswith("kernel.cubin\n"), said
    assert sum(error.count("building") for _, error in said) == 1
