"""Packs as read-only layers below the store, where nothing can be built, and what pack.json says of them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanops
from scanops.artifact import ABI, BuildRequest, sources_key
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.runtime import kernels
from scanops.store import library
from scanops.store.entry import MANIFEST, SOURCE, facts_of, read_entry
from scanops.store.library import load
from scanops.store.packing import finish, verify
from scanops.store.packs import PACK, files_of, following, parse, read
from scanops.store.root import read_index
from scanops.store.store import Store
from tests.packs.conftest import OTHER, SPEC, edit_pack, kernel
from tests.store.sources import CPU_SOURCE, ENTRIES, RECORDS, Harm, each_case, resealed, umask


@pytest.mark.usefixtures("as_wheel")
def test_a_pack_answers_where_nothing_can_be_built(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    with deployed.context() as patch:
        patch.setattr(kernels, "plan_for", lambda *_: pytest.fail("rendered"))  # its index has the kernel
        found = scanops.compile(SPEC, "cpu")
    assert found.path.parent == kernel(pack)
    assert found.code.scanops_abi() == ABI
    assert not (tmp_path / "absent").exists()
    assert Store(tmp_path / "own").find(OTHER.identity) is None  # packs are below the user's store and no other
    shutil.rmtree(pack / "index")  # as in a pack of another version: found by the text, and not recorded in the store
    (tmp_path / "absent").mkdir(mode=0o700)
    assert scanops.compile(SPEC, "cpu").path.parent == kernel(pack)
    assert Store().find(OTHER.identity) is not None
    assert kernels.find(ScanSpec(op="sum", dtype="float32", length=25), "cpu") is None
    assert list((tmp_path / "absent").iterdir()) == []
    deployed.delenv("SCANOPS_PACKS")
    assert kernels.find(SPEC, "cpu") is None
    # Packs are searched in their order, after the store.
    deployed.setenv("SCANOPS_PACKS", f"{shutil.copytree(pack, tmp_path / 'first')}{os.pathsep}{pack}")
    assert scanops.compile(SPEC, "cpu").path.is_relative_to(tmp_path / "first")
    shutil.copytree(pack, tmp_path / "absent", dirs_exist_ok=True)
    assert scanops.compile(SPEC, "cpu").path.is_relative_to(tmp_path / "absent")


def test_a_source_that_the_pack_lacks_is_rendered_and_compared(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    text = (kernel(pack) / SOURCE).read_text()
    (kernel(pack) / SOURCE).unlink()
    found = scanops.compile(SPEC, "cpu")
    assert found.path.parent == kernel(pack) and verify(pack) and finish(pack)
    with deployed.context() as patch:
        patch.setattr("scanops.artifact.request_of", lambda *_: OTHER)  # as another version may render
        with pytest.raises(BadStoreEntry, match="another text"):
            _ = found.source
    assert found.source == text


@each_case(ENTRIES)
def test_damaged_kernels_are_misses_that_verify_names_and_nobody_packs(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    entry, part = kernel(pack), what.split()[0]
    ENTRIES[what](entry)
    with pytest.raises(BuildFailure):
        scanops.compile(SPEC, "cpu")
    assert entry.is_dir()  # stays where it is
    assert caplog.text.count("is not used") == 1 and "scanops store verify" in caplog.text
    with pytest.raises(BadStoreEntry) as caught:
        verify(pack)
    assert entry.name in str(caught.value.value) and part.replace("folder", "") in str(caught.value.value)
    if (entry / MANIFEST).is_file():  # else the folder holds no kernel
        with pytest.raises(BadStoreEntry):
            finish(pack)


# What is wrong with the root of a pack -> how, and what the error names
ROOTS: dict[str, tuple[Harm, str]] = {
    "absent": (shutil.rmtree, "SCANOPS_PACKS"),
    "an archive": (lambda pack: (shutil.rmtree(pack), pack.touch()), "scanops unpack"),
    "for others to write": (lambda pack: pack.chmod(0o777), "chmod"),
    "of another user": (lambda pack: os.chown(pack, 12345, -1), "owned by uid 12345"),
}


@each_case(ROOTS)
def test_unsafe_packs_are_errors(pack: Path, deployed: pytest.MonkeyPatch, what: str) -> None:
    harm, words = ROOTS[what]
    harm(pack)
    deployed.setenv("SCANOPS_PACKS", str(pack))
    with pytest.raises(BadStoreEntry, match=words):
        scanops.compile(SPEC, "cpu")


@pytest.mark.parametrize("text", ["a = __main__", "a = nothing-here:", "a = ", "a = ..", "a = absent.below"])
def test_entry_points_that_lead_to_no_pack_are_skipped_with_one_warning(
    pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    for name, line in (("broken", text), ("good", "good = good_kernels")):
        facts = tmp_path / "site" / f"{name}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[scanops.packs]\n{line}\n")
    (tmp_path / "site" / "good_kernels").mkdir()
    (tmp_path / "site" / "good_kernels" / "__init__.py").touch()
    shutil.copytree(pack, tmp_path / "site" / "good_kernels" / "pack")
    deployed.syspath_prepend(tmp_path / "site")
    found = scanops.compile(SPEC, "cpu")
    assert found.path.is_relative_to(tmp_path / "site" / "good_kernels")
    assert caplog.text.count("ignoring") == 1


def test_a_library_swapped_after_reading_is_unused(pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = library.loadable

    def swapped(handle: int, path: Path) -> str:
        path.rename(tmp_path / "moved.so")
        path.write_bytes(b"another")
        return original(handle, path)

    monkeypatch.setattr(library, "loadable", swapped)
    assert load(read_entry(kernel(pack))).scanops_abi() == ABI


def test_handles_used_again_do_not_lead_to_the_library_before(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (load(read_entry(path)) for path in sorted(pack.glob("*-*")) if path.name != "index")
    assert first._handle != second._handle
    assert load(read_entry(kernel(pack)))._handle in (first._handle, second._handle)  # one file is loaded once
    monkeypatch.setattr(library, "_OPENED", pack / "no-proc")  # then its path is loaded
    assert load(read_entry(kernel(pack))).scanops_abi() == ABI


# ---- pack.json: what is written, and every way a pack can differ from it


def test_pack_json_lists_every_file_without_times_and_paths(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finishing the pack once more writes nothing."""
    contents = read(pack)
    assert [entry["slug"] for entry in contents["entries"]] == ["of-a-user", SPEC.slug]
    assert [entry["spec"] for entry in contents["entries"]] == [
        None,
        {"op": "sum", "dtype": "float32", "length": 24, "out_dtype": "float32"},
    ]
    assert {path: facts_of((pack / path).read_bytes()) for path in files_of(contents)} == files_of(contents)
    assert {path: (pack / path).read_bytes() for path, _ in following(contents)} == dict(following(contents))
    text = (pack / PACK).read_text() + "".join(path.read_text() for path in pack.glob("*/manifest.json"))
    assert "built" not in text
    assert str(pack.parent) not in text
    assert list(contents) == sorted(contents)
    assert read_entry(kernel(pack)).build_seconds == 0.0
    for name in ("write_text", "write_bytes", "replace", "unlink"):
        monkeypatch.setattr(Path, name, lambda *_: pytest.fail("wrote"))
    monkeypatch.setattr(os, "utime", lambda *_: pytest.fail("wrote"))
    assert finish(pack) == contents


@each_case(RECORDS)
def test_index_records_that_are_not_sound_are_written_anew(pack: Path, what: str) -> None:
    key = str(sources_key(SPEC, "cpu"))
    expected = read_index(pack, key)
    (record,) = (pack / "index").glob("*/*.json")
    RECORDS[what](record)
    finish(pack)
    assert read_index(pack, key) == expected is not None
    shutil.rmtree(kernel(pack))
    contents = finish(pack)  # without its kernel a record goes
    assert (len(contents["entries"]), contents["index"]) == (1, {})
    assert verify(pack) == contents
    shutil.rmtree(pack / contents["entries"][0]["directory"])
    with pytest.raises(BadStoreEntry, match="at least one kernel"):
        finish(pack)


def test_verify_names_unlisted_and_swapped_files(pack: Path) -> None:
    Store(pack).get_or_build(BuildRequest(name="later", source=CPU_SOURCE + "// later\n", target="cpu"))
    with pytest.raises(BadStoreEntry, match="later-") as caught:
        verify(pack)
    assert f"scanops pack {pack}" in caught.value.hint
    finish(pack)
    verify(pack)
    first, second = (kernel(pack), next(pack.glob("of-a-user-*")))
    (first / "kernel.so").rename(pack.parent / "first")
    (second / "kernel.so").rename(first / "kernel.so")
    (pack.parent / "first").rename(second / "kernel.so")
    (first / "more.so").touch()
    with pytest.raises(BadStoreEntry, match=r"more\.so: not in pack\.json") as caught:
        verify(pack)
    assert str(caught.value.value).count("kernel.so") == 2


FACTS = {"size": 0, "sha256": 64 * "0"}
# What a pack.json states that none states -> how, and what the error names
FORMS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "directory": (lambda pack: pack["entries"][0].update(directory=f"../x-{OTHER.identity[:16]}"), "'directory'"),
    "other directory": (lambda pack: pack["entries"][0].update(directory="x-0123456789abcdef"), "its identity"),
    "identity": (lambda pack: pack["entries"][0].update(identity="x"), "'identity' of .* is 'x'"),
    "targets": (lambda pack: pack.update(targets=[None]), r"'targets' of pack.json\[0\]"),
    "platform": (lambda pack: pack.update(platform="a\n"), "'platform'"),
    "abi": (lambda pack: pack.update(abi=True), "'abi'"),
    "entry": (lambda pack: pack["entries"].append([]), r"'entries' of pack.json\[2\] is \[\]"),
    "no source": (lambda pack: pack["entries"][0]["files"].pop("kernel.cu"), "'files' of"),
    "form": (lambda pack: pack["entries"][0].update(form="cubin"), "'files' of"),
    "resources": (lambda pack: pack["entries"][0].update(resources={"registers": [[]]}), "'registers' of 'resources'"),
    "kind of resources": (lambda pack: pack["entries"][0].update(resources=[1]), "'resources' of"),
    "nested toolchain": (lambda pack: pack["entries"][0]["toolchain"].update(nvcc=[[]]), "'nvcc' of 'toolchain'"),
    "more files": (lambda pack: pack["entries"][0]["files"].update({"../x": FACTS}), "'files'"),
    "size": (lambda pack: pack["entries"][0]["files"]["kernel.so"].update(size=-1), "'size'"),
    "no such entry": (lambda pack: pack["index"].update(dict.fromkeys(pack["index"], "x")), "'x', which is no entry"),
    "no digest": (lambda pack: pack["entries"][0]["files"]["kernel.so"].pop("sha256"), "'sha256'"),
    "path of an entry": (lambda pack: pack["index"].update(dict.fromkeys(pack["index"], "../x")), "of 'index'"),
}
for bad in ("../out", "/etc/passwd", "a/../../b", ".staging/x", "a//b", "index/00/x.json"):
    FORMS[f"path {bad}"] = (lambda pack, path=bad: pack["index"].update({path: "x"}), "a name in 'index'")
for field in ("schema", "scanops", "abi", "platform", "targets", "entries", "index"):
    FORMS[f"no {field}"] = (lambda pack, name=field: pack.pop(name), f"'{field}' of pack.json is missing")


@pytest.mark.parametrize("name", FORMS)
def test_pack_json_of_another_form_is_refused_by_the_field(pack: Path, name: str) -> None:
    change, words = FORMS[name]
    edit_pack(pack, change)
    for reader in (read, verify):
        with pytest.raises(BadStoreEntry, match=words):
            reader(pack)


TEXTS = ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 2}', "[" * 100_000, "9" * 5000, "\xff", '{"schema": "é"}']


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_pack_json_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadStoreEntry, match="read the pack"):
        parse(text.encode("latin-1"), "x")


def test_no_umask_lets_others_write_what_is_finished(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for manifest in pack.glob("*/manifest.json"):  # as a build leaves it: with times
        resealed(manifest.parent, lambda fields: fields.update(built="once"))
    (pack / PACK).unlink()
    shutil.rmtree(pack / "index")
    with umask(0):
        finish(pack)
    assert len(read(pack)["index"]) == 1
    assert not [path for path in (pack, *pack.rglob("*")) if path.stat().st_mode & 0o022]

    def refuses(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (pack / PACK).unlink()
    monkeypatch.setattr(Path, "replace", refuses)
    with pytest.raises(BadStoreEntry, match="Read-only"):
        finish(pack)
