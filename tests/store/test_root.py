from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from scanops.artifact import BuildRequest
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.store.layers import unsafe
from scanops.store.library import load
from scanops.store.root import check_root
from scanops.store.store import Store
from tests.store.sources import needs_cxx

pytestmark = [needs_cxx, pytest.mark.usefixtures("without_torch")]


def read_only(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_store_of_another_user_is_refused(
    store: Store, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.get_or_build(request_cpu)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(BadStoreEntry, match=f"owned by uid {mine}"):
        Store(store.root).find(request_cpu.identity)


def test_what_is_to_be_typed_can_be(tmp_path: Path) -> None:
    """A hint is a command for a shell, whatever the folder is called."""
    root = tmp_path / "two words"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(BadStoreEntry) as caught:
        check_root(root)
    assert subprocess.run(caught.value.hint, shell=True, check=False).returncode == 0
    assert check_root(root)


def test_a_file_in_place_of_the_store(tmp_path: Path, request_cpu: BuildRequest) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadStoreEntry) as caught:
            Store(root).get_or_build(request_cpu)
        assert "SCANOPS_STORE" in caught.value.hint


def test_a_read_only_store_can_be_read(
    store: Store, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.get_or_build(request_cpu)
    store.remember("key", entry.identity)
    for name in ("mkdir", "rename", "replace", "write_text", "write_bytes", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, read_only)
    later = Store(store.root)
    assert later.alias("key") == entry.identity
    assert later.find(entry.identity) == entry
    assert later.get_or_build(request_cpu) == entry
    assert load(entry).scanops_abi() == 3
    later.remember("other", entry.identity)
    other = BuildRequest(name="other", source=request_cpu.source + "//", target="cpu")
    with pytest.raises(BadStoreEntry, match="Read-only") as caught:
        later.get_or_build(other)
    assert "SCANOPS_STORE" in caught.value.hint


def test_a_corrupt_entry_of_a_read_only_store_is_a_miss(
    store: Store, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.get_or_build(request_cpu)
    (entry.directory / "manifest.json").write_text("{")
    for name in ("mkdir", "rename"):
        monkeypatch.setattr(Path, name, read_only)
    assert Store(store.root).find(entry.identity) is None
    assert entry.directory.exists()


def test_a_folder_without_write_permission(tmp_path: Path, request_cpu: BuildRequest) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions do not stop root")
    store = Store(tmp_path / "store")
    entry = store.get_or_build(request_cpu)
    store.root.chmod(0o500)
    try:
        assert Store(store.root).find(entry.identity) == entry
        closed = Store(store.root / "inner")
        with pytest.raises(BadStoreEntry):
            closed.get_or_build(request_cpu)
    finally:
        store.root.chmod(0o700)


def test_the_root_comes_from_the_environment_at_call_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "chosen"))
    assert Store().root == tmp_path / "chosen"
    monkeypatch.delenv("SCANOPS_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store().root == tmp_path / "cache" / "scanops"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("system", [False, True])
def test_a_root_that_this_user_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: bool) -> None:
    """As a pack is that the administrator has built: a folder of mode 0700."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(BadStoreEntry, match="can read") as caught:
        check_root(tmp_path, system=system)
    assert "chmod -R go+rX" in caught.value.hint


def test_nobody_else_may_write_what_is_built_whatever_the_umask(store: Store, request_cpu: BuildRequest) -> None:
    """Distributions give people a umask of 002; in a pack what a group may write is not used."""
    before = os.umask(0)
    try:
        entry = store.get_or_build(request_cpu)
    finally:
        os.umask(before)
    assert unsafe(entry.directory) is None


def test_a_limit_that_makes_no_sense_shows_before_anything_is_built(
    tmp_path: Path, request_cpu: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SCANOPS_MAX_STORE", "much")
    built: list[BuildRequest] = []
    with pytest.raises(UnsupportedRequest, match="SCANOPS_MAX_STORE"):
        Store().get_or_build(request_cpu, on_build=built.append)
    assert not built


def test_an_archive_in_place_of_a_pack(tmp_path: Path) -> None:
    (tmp_path / "kernels.tar.gz").touch()
    with pytest.raises(BadStoreEntry, match="use the pack") as caught:
        check_root(tmp_path / "kernels.tar.gz", system=True)
    assert "scanops unpack" in caught.value.hint
