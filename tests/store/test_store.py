"""Builds, cache hits, publication and loading in one store, and who may have written it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import scanops.builders.build
from scanops.artifact import ABI, BuildReport, BuildRequest
from scanops.builders import toolchain
from scanops.errors import BadStoreEntry, BuildFailure, UnsupportedRequest
from scanops.store import usage
from scanops.store.entry import MANIFEST, unsafe
from scanops.store.library import load
from scanops.store.root import building, check_root, read_index
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE, KERNEL, each_case, needs_root, relisted, replaced, umask


def test_a_kernel_is_built_once_and_found_under_any_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has three files and no trace of the build."""
    assert store.find(KERNEL.identity) is None and store.lookup("sum-f32", "cpu", "key") is None
    assert not store.root.exists()
    entry = store.get_or_build(KERNEL)
    assert entry.directory == store.root / f"sum-f32-{KERNEL.identity[:16]}"
    assert sorted(path.name for path in entry.directory.iterdir()) == ["kernel.cu", "kernel.so", "manifest.json"]
    assert entry.source_path.read_text() == KERNEL.source
    assert list((store.root / ".staging").iterdir()) == []
    assert str(store.root) not in (entry.directory / "manifest.json").read_text()
    assert (entry.resources, entry.build_seconds > 0, store.root.stat().st_mode & 0o777) == (None, True, 0o700)
    store.remember("key", entry)
    monkeypatch.setattr(scanops.builders.build, "build", lambda *_: pytest.fail("built again"))
    later = Store(store.root)
    assert later.get_or_build(KERNEL) == later.get_or_build(replace(KERNEL, name="another-name")) == entry
    assert later.lookup("sum-f32", "cpu", "other", "key") == entry
    assert later.find("0" * 64) is later.lookup("sum-f32", "cpu", "another key") is None
    # A record leads to no kernel of another spec, however it came there: the kernel must state spec and target.
    assert later.lookup("prod-f32", "cpu", "key") is later.lookup("sum-f32", "sm_90", "key") is None
    shutil.rmtree(entry.directory)
    assert Store(store.root).lookup("sum-f32", "cpu", "key") is None


# What is wrong with a source, and with the library -> the change, and what the error names
UNFIT = {
    "no C++": (lambda text: text + "int f( { nonsense; }", "nonsense"),
    "another ABI": (lambda text: text.replace(f"return {ABI};", "return 99;"), r"scanops_abi\(\) = 99"),
    "no launch": (lambda text: text.replace("scanops_launch", "launch"), "scanops_launch"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_nothing_of_a_failed_build_is_published(store: Store, what: str) -> None:
    change, words = UNFIT[what]
    bad = BuildRequest(name="bad", source=change(CPU_SOURCE), target="cpu")
    with pytest.raises(BuildFailure, match=words) as caught:
        store.get_or_build(bad)
    kept = store.root / ".failed" / f"bad-{bad.identity[:16]}"
    assert str(kept / "kernel.cu") in caught.value.hint
    assert (kept / "kernel.cu").read_text() == bad.source
    if what == "no C++":
        assert "kernel.cu:" in str(caught.value.value)
        assert "nonsense" in (kept / "build.log").read_text()
    assert store.find(bad.identity) is None
    assert list((store.root / ".staging").iterdir()) == []


def test_a_second_publisher_replaces_a_corrupt_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner, loser = Store(tmp_path / "winner"), Store(tmp_path / "loser")
    entry = winner.get_or_build(KERNEL)
    replaced(entry.library_path, entry.library_path.read_bytes()[:-1])
    honest = scanops.builders.build.build

    def overtaken(request: BuildRequest, directory: Path) -> BuildReport:
        report = honest(request, directory)
        entry.directory.rename(loser.root / entry.directory.name)
        return report

    monkeypatch.setattr(scanops.builders.build, "build", overtaken)
    used = loser.get_or_build(KERNEL)
    assert used.directory.parent == loser.root
    assert list((loser.root / ".staging").iterdir()) == []
    assert Store(loser.root).find(KERNEL.identity) == used


def test_where_publishing_fails_the_private_copy_serves(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    final = store.root / f"sum-f32-{KERNEL.identity[:16]}"
    final.mkdir(parents=True)
    store.root.chmod(0o700)
    (final / "in the way").touch()
    monkeypatch.setattr(Store, "_quarantine", lambda *_: None)
    entry = store.get_or_build(KERNEL)
    assert entry.directory.parent.parent == store.root / ".staging"
    assert load(entry).scanops_abi() == ABI
    store.remember("key", entry)
    assert not (store.root / "index").exists()  # which leads to published entries only


def test_what_dead_builders_left_is_swept_after_an_hour(store: Store) -> None:
    store.get_or_build(KERNEL)
    old, held, young = (store.root / ".staging" / f"{digit * 16}-1-x" for digit in "abc")
    draft = store.root / "index" / "ab" / ".1.tmp"
    draft.parent.mkdir(parents=True)
    draft.touch()
    for stage in (old, held, young):
        (stage / "work").mkdir(parents=True)
    for path in (old, held, draft):
        os.utime(path, (time.time() - 4000,) * 2)
    with building(store.root / ".locks", "b" * 64, "held", 1.0):
        store.get_or_build(replace(KERNEL, source=CPU_SOURCE + "// more"))
        usage.evict()
    assert [stage.exists() for stage in (old, held, young)] == [False, True, True]
    assert not draft.exists()


def test_no_cuda_runtime_anywhere(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = store.get_or_build(KERNEL)

    def no_toolkit() -> None:
        raise BuildFailure("find nvcc", allowed="", value="", hint="")

    def no_runtime(*_: object, **__: object) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(toolchain, "find_nvcc", no_toolkit)
    monkeypatch.setattr("scanops.store.library.Library", no_runtime)
    with pytest.raises(BadStoreEntry, match=r"libcudart\.so\.13") as caught:
        load(entry)
    assert "CUDA 13" in caught.value.allowed
    assert "nvidia-cuda-runtime" in caught.value.hint


def test_the_environment_is_read_at_calls_and_before_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCANOPS_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store().root == tmp_path / "cache" / "scanops"
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    assert Store().root == tmp_path / "store"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SCANOPS_MAX_STORE", "much")
    monkeypatch.setattr("scanops.builders.build.build", lambda *_: pytest.fail("built"))
    with pytest.raises(UnsupportedRequest, match="SCANOPS_MAX_STORE"):
        Store().get_or_build(KERNEL)


@pytest.mark.parametrize("system", [False, True])
@needs_root
def test_a_root_that_this_user_may_not_read(tmp_path: Path, system: bool) -> None:
    """Refuse a folder of mode 0700 that root has made, and one below it, as a HOME of another user is."""
    tmp_path.chmod(0o700)
    os.seteuid(12345)
    try:
        for root in (tmp_path, tmp_path / "below", tmp_path / ("x" * 300)):
            with pytest.raises(BadStoreEntry, match="can read") as caught:
                check_root(root, system=system)
            assert "chmod -R go+rX" in caught.value.hint
    finally:
        os.seteuid(0)


@each_case(("in place", "by another user"))
def test_what_others_could_have_written_is_not_loaded_after_the_hint(what: str, tmp_path: Path) -> None:
    """Remove a resealed library from a store that was open to others, by the command of the hint."""
    built = Store(tmp_path / "made").get_or_build(KERNEL).directory  # has it loaded: what is changed is a copy
    store = Store(tmp_path / "two words")
    directory = shutil.copytree(built.parent, store.root) / built.name
    (directory / "kernel.so").write_bytes((built / "kernel.so").read_bytes() + b"evil")
    relisted(directory)
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o777)
    for path in (directory, *directory.iterdir()) if what == "by another user" else ():
        path.chmod(0o755)
        os.chown(path, 12345, -1)
    with pytest.raises(BadStoreEntry, match="mode 0777") as caught:
        store.find(KERNEL.identity)
    assert subprocess.run(caught.value.hint, shell=True, check=False).returncode == 0
    assert store.find(KERNEL.identity) is None
    assert b"evil" not in store.get_or_build(KERNEL).library_path.read_bytes()


def test_nobody_else_may_write_what_is_built_whatever_the_umask(store: Store) -> None:
    """Distributions give people a umask of 002; in a pack what a group may write is not used."""
    with umask(0):
        entry = store.get_or_build(KERNEL)
        store.remember("key", entry)
    assert unsafe(entry.directory, (*entry.manifest["files"], MANIFEST)) is None
    (record,) = store.root.glob("index/*/*.json")
    assert [record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    assert read_index(store.root, "key") == (entry.identity, entry.directory.name)
    store.root.chmod(0o777)  # while it is used: the store is refused, and no entry of it is to blame
    with pytest.raises(BadStoreEntry, match="mode 0777"):
        store.find(KERNEL.identity)
    assert entry.directory.exists()
