"""A pack below the store: kernels run where nothing can be built, and what is not safe is not used."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, BuildFailure, ScanopsError
from scanops.runtime import kernels, obtain
from scanops.store import files, index
from scanops.store.entry import read_entry
from scanops.store.identity import store_key
from scanops.store.library import load
from scanops.store.store import Store
from tests.packs.conftest import CHANGES, OTHER, SPEC, flip, kernel
from tests.store.sources import needs_cxx

pytestmark = needs_cxx


def test_a_pack_answers_where_nothing_can_be_built(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    deployed.setattr(obtain, "plan_for", lambda *_: pytest.fail("rendered"))  # its index has the fingerprint
    found = kernels.compile(SPEC, "cpu")
    assert found.path.parent == kernel(pack)
    assert found.library.scanops_abi() == 3
    assert not (tmp_path / "absent").exists()


def test_without_the_pack_nothing_answers(deployed: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScanopsError):
        kernels.compile(SPEC, "cpu")


def test_a_pack_of_another_version_is_found_by_the_text(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    shutil.rmtree(pack / "index")
    deployed.setenv("SCANOPS_PACKS", str(pack))
    assert kernels.is_built(SPEC, "cpu")
    assert kernels.compile(SPEC, "cpu").path.parent == kernel(pack)
    assert Store().find(OTHER.identity) is not None


def test_the_store_comes_before_packs_and_packs_in_their_order(
    pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(pack, tmp_path / "second")
    deployed.setenv("SCANOPS_PACKS", f"{pack}{os.pathsep}{tmp_path / 'second'}")
    assert kernels.compile(SPEC, "cpu").path.is_relative_to(pack)
    shutil.copytree(pack, tmp_path / "absent")
    assert kernels.compile(SPEC, "cpu").path.is_relative_to(tmp_path / "absent")


def test_a_store_of_its_own_has_no_packs(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    assert Store(tmp_path / "own").find(OTHER.identity) is None


def test_an_installed_pack_is_found(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    deployed.setattr("scanops.store.layers.installed", lambda: (pack,))
    assert kernels.compile(SPEC, "cpu").path.parent == kernel(pack)


def test_nothing_is_remembered_for_a_kernel_of_a_pack(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.rmtree(pack / "index")
    (tmp_path / "absent").mkdir(mode=0o700)
    deployed.setenv("SCANOPS_PACKS", str(pack))
    kernels.compile(SPEC, "cpu")
    assert list((tmp_path / "absent").iterdir()) == []


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.so", "manifest.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_entry_is_a_miss_and_stays(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, change: str
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    CHANGES[change](kernel(pack) / name)
    with pytest.raises(BuildFailure):
        kernels.compile(SPEC, "cpu")
    assert kernel(pack).is_dir()
    assert caplog.text.count("is not used") == 1
    assert "scanops verify" in caplog.text


@pytest.mark.parametrize("what", ["root", "entry", "file"])
def test_what_others_may_write_is_not_used(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    {"root": pack, "entry": kernel(pack), "file": kernel(pack) / "kernel.so"}[what].chmod(0o777)
    with pytest.raises(ScanopsError) as caught:
        kernels.compile(SPEC, "cpu")
    assert "chmod" in (caplog.text or caught.value.hint)


def test_an_entry_that_is_a_link_is_not_used(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    entry = kernel(pack)
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildFailure):
        kernels.compile(SPEC, "cpu")
    assert "symbolic link" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize("what", ["root", "entry", "file"])
def test_what_another_user_owns_is_not_used(
    pack: Path, deployed: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    os.chown({"root": pack, "entry": kernel(pack), "file": kernel(pack) / "kernel.so"}[what], 12345, -1)
    with pytest.raises(ScanopsError) as caught:
        kernels.compile(SPEC, "cpu")
    assert "uid 12345" in caplog.text + str(caught.value)


def test_a_pack_that_is_not_there_is_said(deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(tmp_path / "typo"))
    with pytest.raises(BadStoreEntry, match="SCANOPS_PACKS"):
        kernels.compile(SPEC, "cpu")


def test_an_index_record_that_leads_out_is_a_miss(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    key = store_key(SPEC, "cpu")
    assert key
    identity, _ = index.read(pack, key) or ("", "")
    (record,) = (pack / "index").glob("*/*.json")
    record.write_bytes(index.record(key, identity, f"../pack/x-{identity[:16]}"))
    assert index.read(pack, key) is None


def test_a_library_swapped_after_it_was_read_changes_nothing(
    pack: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = read_entry(kernel(pack))
    original = files.loadable

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
    monkeypatch.setattr(files, "_OPENED", tmp_path / "no-proc")
    assert load(read_entry(kernel(pack))).scanops_abi() == 3


@pytest.mark.parametrize(("field", "value"), [("abi", 2), ("abi", "3")])
def test_another_abi_is_refused_before_anything_runs(
    pack: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    entry = read_entry(kernel(pack))
    entry.manifest[field] = value
    monkeypatch.setattr("scanops.store.library._open", lambda *_: pytest.fail("opened"))
    with pytest.raises(BadStoreEntry, match="ABI"):
        load(entry)


def test_another_processor_is_refused_before_anything_runs(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = read_entry(kernel(pack))
    data = bytearray(entry.library_path.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # RISC-V
    entry.library_path.write_bytes(data)
    entry.manifest["files"]["kernel.so"]["sha256"] = hashlib.sha256(data).hexdigest()
    monkeypatch.setattr("scanops.store.library._open", lambda *_: pytest.fail("opened"))
    with pytest.raises(BadStoreEntry, match="ELF machine 243"):
        load(entry)


def test_a_bad_byte_shows_before_anything_runs(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = read_entry(kernel(pack))
    flip(entry.library_path)
    monkeypatch.setattr("scanops.store.library._open", lambda *_: pytest.fail("opened"))
    with pytest.raises(BadStoreEntry, match="SHA-256"):
        load(entry)


def test_other_specs_miss(pack: Path, deployed: pytest.MonkeyPatch) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    assert not kernels.is_built(ScanSpec(op="sum", dtype="float32", length=25), "cpu")
