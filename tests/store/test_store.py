"""Builds, cache hits and publication in one store."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

import scanops.builders.build
from scanops.artifact import ABI, BuildReport, BuildRequest
from scanops.errors import BuildFailure
from scanops.store.entry import Entry, manifest_bytes
from scanops.store.store import Store
from tests.store.sources import CPU_SOURCE, needs_cxx

pytestmark = [needs_cxx, pytest.mark.usefixtures("without_torch")]


def replaced(path: Path, data: bytes) -> None:
    """Replace a file, never in place: the old one may be mapped into this process."""
    draft = path.with_name("draft")
    draft.write_bytes(data)
    draft.replace(path)


def cut(entry: Entry) -> None:
    replaced(entry.library_path, entry.library_path.read_bytes()[:-1])


def test_an_entry_has_three_files_and_no_trace_of_the_build(store: Store, request_cpu: BuildRequest) -> None:
    entry = store.get_or_build(request_cpu)
    assert entry.directory == store.root / f"sum-f32-{request_cpu.identity[:16]}"
    assert sorted(path.name for path in entry.directory.iterdir()) == ["kernel.cu", "kernel.so", "manifest.json"]
    assert entry.source_path.read_text() == request_cpu.source
    assert list((store.root / ".staging").iterdir()) == []
    assert str(store.root) not in (entry.directory / "manifest.json").read_text()
    assert entry.manifest["files"]["kernel.so"]["size"] == entry.library_path.stat().st_size
    assert entry.resources is None
    assert entry.build_seconds > 0
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_a_second_request_is_a_cache_hit_under_any_name(store: Store, request_cpu: BuildRequest) -> None:
    built: list[BuildRequest] = []
    assert store.find(request_cpu.identity) is None
    assert not store.root.exists()
    first = store.get_or_build(request_cpu, on_build=built.append)
    second = Store(store.root).get_or_build(request_cpu, on_build=built.append)
    renamed = Store(store.root).get_or_build(replace(request_cpu, name="another-name"), on_build=built.append)
    assert first == second == renamed
    assert built == [request_cpu]
    assert Store(store.root).find("0" * 64) is None


def test_an_index_record_outlives_the_process_that_wrote_it(store: Store, request_cpu: BuildRequest) -> None:
    assert store.alias("key") is None
    entry = store.get_or_build(request_cpu)
    store.remember("key", entry.identity)
    later = Store(store.root)
    assert later.alias("key") == entry.identity
    assert later.lookup("key", "sum-f32", "cpu") == entry
    assert later.alias("another key") is None
    Store(store.root).remember("of no entry", "0" * 64)
    assert later.alias("of no entry") is None
    shutil.rmtree(entry.directory)
    assert Store(store.root).alias("key") is None


def test_nothing_of_a_failed_build_is_published(store: Store) -> None:
    bad = BuildRequest(name="bad", source=CPU_SOURCE + "int f( { nonsense; }", target="cpu")
    with pytest.raises(BuildFailure, match="nonsense") as caught:
        store.get_or_build(bad)
    kept = store.root / ".failed" / f"bad-{bad.identity[:16]}"
    assert str(kept / "kernel.cu") in caught.value.hint
    assert str(kept / "kernel.cu") in str(caught.value.value)
    assert (kept / "kernel.cu").read_text() == bad.source
    assert "nonsense" in (kept / "build.log").read_text()
    assert store.find(bad.identity) is None
    assert list((store.root / ".staging").iterdir()) == []


def test_a_library_with_another_abi_is_not_published(store: Store) -> None:
    other = BuildRequest(name="other", source=CPU_SOURCE.replace(f"return {ABI};", "return 99;"), target="cpu")
    with pytest.raises(BuildFailure, match=r"scanops_abi\(\) = 99") as caught:
        store.get_or_build(other)
    kept = store.root / ".failed" / f"other-{other.identity[:16]}" / "kernel.cu"
    assert str(kept) in caught.value.hint
    assert kept.exists()
    assert store.find(other.identity) is None


@pytest.mark.parametrize("theirs_is_good", [True, False])
def test_who_publishes_second_uses_the_entry_of_the_first_if_it_is_sound(
    tmp_path: Path, request_cpu: BuildRequest, theirs_is_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, loser = Store(tmp_path / "winner"), Store(tmp_path / "loser")
    entry = winner.get_or_build(request_cpu)
    manifest = {**entry.manifest, "winner": True}
    replaced(entry.directory / "manifest.json", manifest_bytes(manifest))
    if not theirs_is_good:
        cut(entry)
    honest = scanops.builders.build.build

    def overtaken(request: BuildRequest, directory: Path) -> BuildReport:
        report = honest(request, directory)
        entry.directory.rename(loser.root / entry.directory.name)
        return report

    monkeypatch.setattr(scanops.builders.build, "build", overtaken)
    used = loser.get_or_build(request_cpu)
    assert used.directory.parent == loser.root
    assert ("winner" in used.manifest) is theirs_is_good
    assert list((loser.root / ".staging").iterdir()) == []
    assert Store(loser.root).find(request_cpu.identity) == used


def test_where_publishing_fails_the_private_copy_serves(
    store: Store, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scanops.store.library import load

    final = store.root / f"sum-f32-{request_cpu.identity[:16]}"
    final.mkdir(parents=True)
    store.root.chmod(0o700)
    (final / "in the way").touch()
    monkeypatch.setattr(Store, "_quarantine", lambda *_: None)
    entry = store.get_or_build(request_cpu)
    assert entry.directory.parent.parent == store.root / ".staging"
    assert load(entry).scanops_abi() == ABI


def test_what_dead_builders_left_is_swept_after_an_hour(store: Store, request_cpu: BuildRequest) -> None:
    from scanops.store.lock import building

    store.get_or_build(request_cpu)
    old, held, young = (store.root / ".staging" / f"{digit * 16}-1-x" for digit in "abc")
    drafts = [store.root / "index" / "ab" / ".1.tmp", store.root / ".parts" / ".2.tmp"]
    for draft in drafts:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()
        os.utime(draft, (time.time() - 4000,) * 2)
    for stage in (old, held, young):
        (stage / "work").mkdir(parents=True)
    for stage in (old, held):
        os.utime(stage, (time.time() - 4000,) * 2)
    with building(store.root / ".locks", "b" * 64, "held", 1.0):
        store.get_or_build(replace(request_cpu, source=CPU_SOURCE + "// more"))
    assert [stage.exists() for stage in (old, held, young)] == [False, True, True]
    assert not any(draft.exists() for draft in drafts)
