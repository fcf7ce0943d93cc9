"""Builds, cache hits, publication and loading in one store."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

import scanops.builders.build
from scanops.artifact import ABI, BuildReport, BuildRequest
from scanops.builders import toolchain
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.store import usage
from scanops.store.library import load
from scanops.store.root import building
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE, KERNEL, replaced


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


def test_who_publishes_second_replaces_a_corrupt_entry_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
