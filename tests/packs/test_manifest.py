"""pack.json: what is written, and every way a pack can differ from it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scanops.artifact import BuildRequest
from scanops.errors import BadStoreEntry
from scanops.packs.manifest import finish, verify
from scanops.store.entry import manifest_bytes, read_entry
from scanops.store.packs import PACK, files_of, read
from scanops.store.store import Store
from tests.packs.conftest import SPEC
from tests.store.sources import CPU_SOURCE, needs_cxx

pytestmark = needs_cxx


def kernel(pack: Path) -> Path:
    return next(pack.glob(f"{SPEC.slug}-*"))


def test_it_says_what_is_there_and_no_time_and_no_path(pack: Path) -> None:
    contents = read(pack)
    assert [entry["slug"] for entry in contents["entries"]] == ["of-a-user", SPEC.slug]
    assert [entry["spec"] for entry in contents["entries"]] == [
        None,
        {"op": "sum", "dtype": "float32", "length": 24, "out_dtype": "float32"},
    ]
    for path, facts in files_of(contents).items():
        data = (pack / path).read_bytes()
        assert facts == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = (pack / PACK).read_text() + "".join(path.read_text() for path in pack.glob("*/manifest.json"))
    assert "built" not in text
    assert str(pack.parent) not in text
    assert list(contents) == sorted(contents)
    assert read_entry(kernel(pack)).build_seconds == 0.0


def test_finishing_twice_changes_nothing(pack: Path) -> None:
    before = {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    finish(pack)
    assert {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()} == before


def test_an_entry_that_goes_takes_its_index_record_along(pack: Path) -> None:
    assert len(read(pack)["index"]) == 1
    shutil.rmtree(kernel(pack))
    contents = finish(pack)
    assert (len(contents["entries"]), contents["index"]) == (1, {})
    assert verify(pack) == contents


def test_an_empty_folder_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(BadStoreEntry, match="at least one kernel"):
        finish(tmp_path)
    with pytest.raises(BadStoreEntry, match=PACK):
        read(tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


CHANGES: dict[str, Callable[[Path], object]] = {
    "flip": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "gone": Path.unlink,
    "link": link,
}


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.so", "manifest.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_named(pack: Path, name: str, change: str) -> None:
    CHANGES[change](kernel(pack) / name)
    with pytest.raises(BadStoreEntry) as caught:
        verify(pack)
    assert name in str(caught.value.value)
    assert kernel(pack).name in str(caught.value.value)


def test_a_file_that_is_not_listed_is_named(pack: Path) -> None:
    (kernel(pack) / "more.so").write_bytes(b"")
    with pytest.raises(BadStoreEntry, match=r"more\.so: not in pack\.json"):
        verify(pack)


def test_what_was_built_into_a_pack_since(pack: Path) -> None:
    """A store that was packed once is one, and goes on being a store."""
    Store(pack).get_or_build(BuildRequest(name="later", source=CPU_SOURCE + "// later\n", target="cpu"))
    with pytest.raises(BadStoreEntry, match="later-") as caught:
        verify(pack)
    assert f"scanops pack {pack}" in caught.value.hint
    finish(pack)
    verify(pack)


def test_swapped_kernels_are_found(pack: Path) -> None:
    first, second = sorted(pack.glob("*-*/kernel.so"))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    with pytest.raises(BadStoreEntry) as caught:
        verify(pack)
    assert str(caught.value.value).count("kernel.so") == 2


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", ".staging/x", "a//b"])
def test_a_listed_path_that_leads_out_is_refused(pack: Path, path: str) -> None:
    contents = json.loads((pack / PACK).read_bytes())
    contents["index"][path] = {"size": 0, "sha256": 64 * "0"}
    (pack / PACK).write_text(json.dumps(contents))
    with pytest.raises(BadStoreEntry, match="plain relative path"):
        read(pack)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 2}', "[" * 100_000])
def test_a_manifest_of_another_form_is_a_typed_error(pack: Path, text: str) -> None:
    (pack / PACK).write_text(text)
    with pytest.raises(BadStoreEntry, match="read the pack"):
        read(pack)


def test_a_bad_entry_is_not_packed(pack: Path) -> None:
    flip(kernel(pack) / "kernel.so")
    with pytest.raises(BadStoreEntry, match="SHA-256 differs"):
        finish(pack)


def test_a_finished_pack_needs_no_permission_to_write(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("write_text", "write_bytes", "replace"):
        monkeypatch.setattr(Path, name, lambda *_: pytest.fail("wrote"))
    monkeypatch.setattr(os, "utime", lambda *_: pytest.fail("wrote"))
    finish(pack)


def test_nobody_else_may_write_what_is_finished_whatever_the_umask(pack: Path) -> None:
    for manifest in pack.glob("*/manifest.json"):  # as it is before the first time: with times
        fields = {**json.loads(manifest.read_bytes()), "built": "once"}
        manifest.write_bytes(manifest_bytes(fields))
    (pack / PACK).unlink()
    before = os.umask(0)
    try:
        finish(pack)
    finally:
        os.umask(before)
    assert not [path for path in (pack / PACK, *pack.glob("*/manifest.json")) if path.stat().st_mode & 0o022]


def test_a_folder_that_cannot_be_written_is_a_typed_error(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pack / PACK).unlink()

    def refuses(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuses)
    with pytest.raises(BadStoreEntry, match="Read-only"):
        finish(pack)
