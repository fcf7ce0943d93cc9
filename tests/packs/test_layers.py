"""Packs as read-only layers below the store: kernels run where nothing can be built, and unsafe files are not used."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, BuildFailure, ScanopsError
from scanops.runtime import kernels
from scanops.store import index, library
from scanops.store.entry import Entry, read_entry
from scanops.store.identity import sources_key
from scanops.store.library import load
from scanops.store.store import Store
from tests.packs.conftest import CHANGES, OTHER, SPEC, flip, kernel
from tests.store.sources import needs_cxx

pytestmark = needs_cxx


def test_a_pack_answers_where_nothing_can_be_built(
    pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path, as_wheel: None
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    deployed.setattr(kernels, "plan_for", lambda *_: pytest.fail("rendered"))  # its index has the fingerprint
    found = kernels.compile(SPEC, "cpu")
    assert found.path.parent == kernel(pack)
    assert found.library.scanops_abi() == 3
    assert not (tmp_path / "absent").exists()


def test_a_pack_of_another_version_is_found_by_the_text(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    shutil.rmtree(pack / "index")
    deployed.setenv("SCANOPS_PACKS", str(pack))
    assert kernels.find(SPEC, "cpu") is not None
    assert kernels.compile(SPEC, "cpu").path.parent == kernel(pack)
    assert Store().find(OTHER.identity) is not None
    assert kernels.find(ScanSpec(op="sum", dtype="float32", length=25), "cpu") is None
    deployed.delenv("SCANOPS_PACKS")
    assert kernels.find(SPEC, "cpu") is None


def test_the_store_comes_before_packs_and_packs_in_their_order(
    pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(pack, tmp_path / "second")
    deployed.setenv("SCANOPS_PACKS", f"{pack}{os.pathsep}{tmp_path / 'second'}")
    assert kernels.compile(SPEC, "cpu").path.is_relative_to(pack)
    shutil.copytree(pack, tmp_path / "absent")
    assert kernels.compile(SPEC, "cpu").path.is_relative_to(tmp_path / "absent")


def test_stores_other_than_the_users_have_no_packs(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    assert Store(tmp_path / "own").find(OTHER.identity) is None


def test_the_store_keeps_no_index_record_of_a_kernel_of_a_pack(
    pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.rmtree(pack / "index")
    (tmp_path / "absent").mkdir(mode=0o700)
    deployed.setenv("SCANOPS_PACKS", str(pack))
    kernels.compile(SPEC, "cpu")
    assert list((tmp_path / "absent").iterdir()) == []


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.so", "manifest.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_kernels_are_misses_and_stay_where_they_are(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, change: str
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    CHANGES[change](kernel(pack) / name)
    with pytest.raises(BuildFailure):
        kernels.compile(SPEC, "cpu")
    assert kernel(pack).is_dir()
    assert caplog.text.count("is not used") == 1
    assert "scanops store verify" in caplog.text


def linked(entry: Path) -> None:
    entry.rename(entry.parents[1] / "elsewhere")
    entry.symlink_to(entry.parents[1] / "elsewhere")


UNSAFE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (linked, "symbolic link"),
    **{
        f"others may write its {what}": (lambda entry, path=path: (entry / path).chmod(0o777), "chmod")
        for what, path in (("root", ".."), ("folder", "."), ("file", "kernel.so"))
    },
    **{
        f"another owner of its {what}": (lambda entry, path=path: os.chown(entry / path, 12345, -1), "uid 12345")
        for what, path in (("root", ".."), ("folder", "."), ("file", "kernel.so"))
    },
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_kernels_are_not_used(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    if "owner" in name and os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    deployed.setenv("SCANOPS_PACKS", str(pack))
    change, words = UNSAFE[name]
    change(kernel(pack))
    with pytest.raises(ScanopsError) as caught:
        kernels.compile(SPEC, "cpu")
    assert words in caplog.text + str(caught.value)


@pytest.mark.parametrize(
    "text", ["a = __main__", "a = nothing-here:", "a = ", "a = ..", "a = absent.below", "malformed"]
)
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
    found = kernels.compile(SPEC, "cpu")
    assert found.path.is_relative_to(tmp_path / "site" / "good_kernels")
    assert caplog.text.count("ignoring") == 1


def test_missing_packs_are_errors(deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(tmp_path / "typo"))
    with pytest.raises(BadStoreEntry, match="SCANOPS_PACKS"):
        kernels.compile(SPEC, "cpu")


def test_an_index_record_that_leads_out_is_a_miss(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    key = sources_key(SPEC, "cpu")
    assert key
    identity, _ = index.read(pack, key) or ("", "")
    (record,) = (pack / "index").glob("*/*.json")
    record.write_bytes(index.record(key, identity, f"../pack/x-{identity[:16]}"))
    assert index.read(pack, key) is None


def test_a_library_swapped_after_it_was_read_changes_nothing(
    pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = read_entry(kernel(pack))
    original = library.loadable

    def swapped(handle: int, path: Path) -> str:
        path.rename(tmp_path / "moved.so")
        path.write_bytes(b"another")
        return original(handle, path)

    monkeypatch.setattr("scanops.store.library.loadable", swapped)
    assert load(entry).scanops_abi() == 3


def test_handles_used_again_do_not_lead_to_the_library_before(pack: Path) -> None:
    first, second = (load(read_entry(path)) for path in sorted(pack.glob("*-*")) if path.name != "index")
    assert first._handle != second._handle
    assert load(read_entry(kernel(pack)))._handle in (first._handle, second._handle)  # one file is loaded once


def test_without_proc_the_path_is_loaded(pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_OPENED", tmp_path / "no-proc")
    assert load(read_entry(kernel(pack))).scanops_abi() == 3


def another_processor(entry: Entry) -> None:
    data = bytearray(entry.library_path.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # RISC-V
    entry.library_path.write_bytes(data)
    entry.manifest["files"]["kernel.so"]["sha256"] = hashlib.sha256(data).hexdigest()


FOREIGN: dict[str, tuple[Callable[[Entry], object], str]] = {
    "an older ABI": (lambda entry: entry.manifest.update(abi=2), "ABI"),
    "an ABI of another type": (lambda entry: entry.manifest.update(abi="3"), "ABI"),
    "another processor": (another_processor, "ELF machine 243"),
    "a flipped bit": (lambda entry: flip(entry.library_path), "SHA-256"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_libraries_are_refused_before_they_are_opened(
    pack: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    entry = read_entry(kernel(pack))
    change, words = FOREIGN[name]
    change(entry)
    monkeypatch.setattr("scanops.store.library._open", lambda *_: pytest.fail("opened"))
    with pytest.raises(BadStoreEntry, match=words):
        load(entry)
