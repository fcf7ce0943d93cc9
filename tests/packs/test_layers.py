"""Packs as read-only layers below the store: kernels run where nothing can be built, and unsafe files are not used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import scanops
from scanops.artifact import ABI
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, BuildFailure
from scanops.runtime import kernels
from scanops.store import library
from scanops.store.entry import MANIFEST, SOURCE, read_entry
from scanops.store.library import load
from scanops.store.packing import finish, verify
from scanops.store.store import Store
from tests.packs.conftest import OTHER, SPEC, kernel
from tests.store.sources import ENTRIES, Harm, each_case


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
