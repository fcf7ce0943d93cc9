"""Who may have written a store: its root and everything below it, whatever the umask was."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.store.entry import unsafe
from scanops.store.root import check_root, read_index
from scanops.store.store import Store
from tests.store.sources import needs_cxx, needs_root, relisted

pytestmark = needs_cxx


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_environment_is_read_at_call_time_and_before_a_build(
    tmp_path: Path, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCANOPS_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store().root == tmp_path / "cache" / "scanops"
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    assert Store().root == tmp_path / "store"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SCANOPS_MAX_STORE", "much")
    monkeypatch.setattr("scanops.builders.build.build", lambda *_: pytest.fail("built"))
    with pytest.raises(UnsupportedRequest, match="SCANOPS_MAX_STORE"):
        Store().get_or_build(request_cpu)


@pytest.mark.parametrize("system", [False, True])
@needs_root
def test_a_root_that_this_user_may_not_read(tmp_path: Path, system: bool) -> None:
    """Refuse a folder of mode 0700 that root has made, and one below it, as a HOME of another user is."""
    tmp_path.chmod(0o700)
    for root in (tmp_path, tmp_path / "below", tmp_path / ("x" * 300)):
        with as_user(12345), pytest.raises(BadStoreEntry, match="can read") as caught:
            check_root(root, system=system)
        assert "chmod -R go+rX" in caught.value.hint


@pytest.mark.parametrize("planted", ["in place", "as a new file", "as a new entry"])
def test_what_others_could_have_written_is_not_loaded_after_the_hint(
    request_cpu: BuildRequest, planted: str, tmp_path: Path
) -> None:
    """Remove a resealed library from a store that was open to others, by the command of the hint."""
    built = Store(tmp_path / "made").get_or_build(request_cpu).directory  # has it loaded: what is changed is a copy
    store = Store(tmp_path / "two words")
    directory = shutil.copytree(built.parent, store.root) / built.name
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o777)
    library = directory / "kernel.so"
    if planted == "as a new entry":
        directory.rename(store.root / "aside")
        shutil.copytree(store.root / "aside", directory)
    if planted != "in place":
        data = library.read_bytes()
        library.unlink()
        library.write_bytes(data)
        library.chmod(0o644)
        if os.geteuid() == 0:
            for path in (library, directory) if planted == "as a new entry" else (library,):
                os.chown(path, 12345, -1)
                path.chmod(0o755)
    library.write_bytes(library.read_bytes() + b"evil")
    relisted(directory)
    with pytest.raises(BadStoreEntry, match="mode 0777") as caught:
        Store(store.root).find(request_cpu.identity)
    assert subprocess.run(caught.value.hint, shell=True, check=False).returncode == 0
    assert Store(store.root).find(request_cpu.identity) is None
    assert b"evil" not in Store(store.root).get_or_build(request_cpu).library_path.read_bytes()


def test_a_store_opened_to_others_while_it_is_used_loses_no_entry(store: Store, request_cpu: BuildRequest) -> None:
    """Refuse the store, and do not blame its entries."""
    entry = store.get_or_build(request_cpu)
    store.root.chmod(0o777)
    with pytest.raises(BadStoreEntry, match="mode 0777"):
        store.find(request_cpu.identity)
    assert entry.directory.exists()


def test_nobody_else_may_write_what_is_built_whatever_the_umask(store: Store, request_cpu: BuildRequest) -> None:
    """Distributions give people a umask of 002; in a pack what a group may write is not used."""
    before = os.umask(0)
    try:
        entry = store.get_or_build(request_cpu)
        store.remember("key", entry)
    finally:
        os.umask(before)
    assert unsafe(entry.directory) is None
    (record,) = store.root.glob("index/*/*.json")
    assert [record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    assert read_index(store.root, "key") == (entry.identity, entry.directory.name)
