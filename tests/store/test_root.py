"""Who may have written a store: its root and everything below it, whatever the umask was."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.store.entry import MANIFEST, unsafe
from scanops.store.root import check_root, read_index
from scanops.store.store import Store
from tests.store.sources import KERNEL, each_case, needs_root, relisted, umask


def test_the_environment_is_read_at_call_time_and_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
