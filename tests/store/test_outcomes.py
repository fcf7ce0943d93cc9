"""Damaged, unsafe and contested stores: the rows of docs/store.md."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import scanops
from scanops import build_request
from scanops.build_request import sources_key
from scanops.codegen.abi import ABI
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, MissingKernel
from scanops.runtime import kernels
from scanops.runtime.kernels import obtain
from scanops.runtime.policies import POLICIES, STRICT, policy
from scanops.store import Store
from scanops.store.entry import Entry, read_entry, verify_entry
from scanops.store.library import load, machine_problem
from scanops.store.root import read_index, write_index
from tests.store.sources import (
    CPU_SOURCE,
    ENTRIES,
    RECORDS,
    Harm,
    each_case,
    flipped,
    linked,
    relisted,
    replaced,
    resealed,
)

SPEC, OTHER = (ScanSpec(op="sum", dtype="float32", length=length) for length in (24, 25))


def folder(root: Path, spec: ScanSpec = SPEC) -> Path:
    return next(root.glob(f"{spec.slug}-*"))


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the kernels of SPEC and OTHER; not to be changed."""
    root = tmp_path_factory.mktemp("filled") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANOPS_STORE", str(root))  # what kernels are linked with is copied along
        for spec in (SPEC, OTHER):
            obtain(KernelKey(spec, "cpu"), STRICT, Store(root))
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be harmed, which is the user's store."""
    root = tmp_path / "store"
    shutil.copytree(filled, root)
    monkeypatch.setenv("SCANOPS_STORE", str(root))
    return root


def altered(path: Path, change: Callable[[bytes], bytes]) -> None:
    replaced(path, change(path.read_bytes()))


def swapped_folders(root: Path) -> None:
    a, b = folder(root), folder(root, OTHER)
    a.rename(root / "c")
    b.rename(a)
    (root / "c").rename(b)


def of_another_machine(entry: Path) -> None:
    """A library for RISC-V, and a manifest that goes with it."""
    library = entry / "kernel.so"
    altered(library, lambda data: data[:18] + (243).to_bytes(2, "little") + data[20:])
    relisted(entry)


def of_no_emulator(entry: Path) -> None:
    """Put a sound library in place that is no emulated kernel's."""
    source = entry.parent.parent / "plain.cpp"
    source.write_text(CPU_SOURCE.replace("scanops_emulator_configure", "configure"))
    library = source.with_suffix(".so")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    replaced(entry / "kernel.so", library.read_bytes())
    relisted(entry)


def record(root: Path, spec: ScanSpec = SPEC) -> Path:
    """The index's file of a spec."""
    wanted = folder(root, spec).name
    return next(path for path in root.glob("index/*/*") if path.read_text() == wanted)


def exchanged(root: Path, name: str) -> None:
    """Put a file of another entry in place of one of this."""
    replaced(folder(root) / name, (folder(root, OTHER) / name).read_bytes())


# What is wrong with an entry, and with an index record, of the user's store -> how it came
CORRUPT: dict[str, Harm] = {
    "kernel.so of another": lambda root: exchanged(root, "kernel.so"),
    "manifest.json of another": lambda root: exchanged(root, "manifest.json"),
    "folders swapped": swapped_folders,
    **{what: lambda root, harm=harm: harm(folder(root)) for what, harm in ENTRIES.items()},
}
REBUILT = ("kernel.so a link", "kernel.so of another user", "folder a link", "folders swapped")  # as the rest would be
MISLED: dict[str, Harm] = {
    "of another": lambda root: replaced(record(root), record(root, OTHER).read_bytes()),
    "leads out": lambda root: altered(record(root), lambda data: b"../store/" + data),
    **{what: lambda root, harm=harm: harm(record(root)) for what, harm in RECORDS.items()},
}
# -> what the error names
REFUSED: dict[str, tuple[Harm, str]] = {
    "root for all to write": (lambda root: root.chmod(0o777), "mode 0777"),
    "root for a group to write": (lambda root: root.chmod(0o770), "mode 0770"),
    "root of another user": (lambda root: os.chown(root, 12345, -1), "owned by uid 12345"),
    "root a link of another user": (lambda root: (linked(root), os.lchown(root, 12345, -1)), "owned by uid 12345"),
    "root a file": (lambda root: (shutil.rmtree(root), root.touch()), "a file of that name"),
    "root below a file": (lambda root: os.environ.update(SCANOPS_STORE="/dev/null/store"), "/dev/null/store"),
    "kernel.so of another ABI": (lambda root: resealed(folder(root), lambda manifest: manifest.update(abi=2)), "ABI 2"),
    "kernel.so without the functions of an emulated kernel": (
        lambda root: of_no_emulator(folder(root)),
        "scanops_emulator_configure",
    ),
    "kernel.so of another processor": (lambda root: of_another_machine(folder(root)), "ELF machine 243"),
}


@each_case(CORRUPT)
def test_corrupt_entries_are_misses_and_rebuilt(root: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    CORRUPT[what](root)
    with policy("never"), pytest.raises(MissingKernel, match=f"scanops build {SPEC.slug}"):
        scanops.compile(SPEC, "cpu")
    assert "is corrupt" in caplog.text
    if what not in REBUILT:
        return
    kernel = scanops.compile(SPEC, "cpu")
    assert kernel.code.scanops_abi() == ABI
    assert kernel.path.parent == folder(root)
    assert not isinstance(verify_entry(folder(root), read_entry(folder(root)).identity), str)


@each_case(MISLED)
def test_a_record_that_misleads_is_passed_over(root: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = read_index(root, str(sources_key(KernelKey(SPEC, "cpu"))))
    MISLED[what](root)
    assert read_index(root, str(sources_key(KernelKey(SPEC, "cpu")))) in (None, folder(root, OTHER).name)
    with policy("never"):
        assert scanops.compile(SPEC, "cpu").path.parent == folder(root)  # found by its text
    assert read_index(root, str(sources_key(KernelKey(SPEC, "cpu")))) == known  # and written down again


def test_a_checkout_looks_kernels_up_without_rendering(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a source was written after the package was imported: then a kernel is found by its text, and not noted."""
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "request_of", lambda *_: pytest.fail("rendered"))
        assert obtain(KernelKey(SPEC, "cpu"), STRICT, Store(filled)) is not None
    root = tmp_path / "store"
    shutil.copytree(filled, root)
    shutil.rmtree(root / "index")
    monkeypatch.setattr(build_request, "_IMPORTED", 0)
    build_request._digests_of_checkout.cache_clear()
    try:
        assert build_request.store_keys(KernelKey(SPEC, "cpu")) == []
        kernel = obtain(KernelKey(SPEC, "cpu"), POLICIES["never"], Store(root))
        assert kernel is not None and kernel.path.parent == folder(root) and not (root / "index").exists()
    finally:
        build_request._digests_of_checkout.cache_clear()


@each_case(REFUSED)
def test_what_is_refused(root: Path, what: str) -> None:
    harm, words = REFUSED[what]
    harm(root)
    for name in ("never", "build"):
        with policy(name), pytest.raises(BadStoreEntry, match=words) as caught:
            _ = scanops.compile(SPEC, "cpu").code
        assert caught.value.hint


def test_every_byte_of_an_entry_counts(filled: Path, tmp_path: Path) -> None:
    """Manifest and record with a bit of each byte flipped, and cut at each; a hundred places of the other files."""
    chosen, entry = random.Random(5), read_entry(folder(filled))
    copy = tmp_path / entry.directory.name
    shutil.copytree(entry.directory, copy)
    for name in ("manifest.json", "kernel.so", "kernel.cu"):
        path, data = copy / name, (copy / name).read_bytes()
        step = 1 if name == "manifest.json" else len(data) // 100
        changes = [flipped(data, at, 1 << chosen.randrange(8)) for at in range(0, len(data), step)]
        for changed in (*changes, *(data[:size] for size in range(0, len(data), 8 * step))):
            path.write_bytes(changed)
            assert isinstance(verify_entry(copy, entry.identity), str)
        path.write_bytes(data)
    assert verify_entry(copy, entry.identity) == replace(entry, directory=copy)

    key = str(sources_key(KernelKey(SPEC, "cpu")))
    write_index(tmp_path, key, copy.name)
    (path,) = tmp_path.glob("index/*/*")
    data = path.read_bytes()
    assert read_index(tmp_path, key) == copy.name
    for at in range(len(data)):
        for changed in (flipped(data, at, 1 << chosen.randrange(8)), data[:at]):
            path.write_bytes(changed)
            assert read_index(tmp_path, key) is None


def test_truncated_machine_code_is_not_loaded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a manifest that agrees: the loader would map what the file lacks, and end the process."""
    entry = read_entry(folder(root))
    data = entry.library_path.read_bytes()
    assert machine_problem(data, entry) is None
    for size in (*range(0, len(data), 100), len(data) - 1):
        assert machine_problem(data[:size], entry), size
    for at in (32, 40, 54, 56, 58, 60):  # where its headers are, their sizes and how many there are
        assert machine_problem(data[:at] + b"\xff\xff" + data[at + 2 :], entry), at
    replaced(entry.library_path, data[: len(data) // 2])
    relisted(entry.directory)
    monkeypatch.setattr("scanops.store.library.Library", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(BadStoreEntry, match="beyond its end"):
        load(read_entry(entry.directory))


def test_what_changes_between_look_up_and_load_is_not_loaded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Store().find(read_entry(folder(root)).identity)
    assert isinstance(found, Entry)
    data = found.library_path.read_bytes()
    monkeypatch.setattr("scanops.store.library.Library", lambda *_, **__: pytest.fail("opened"))
    for at in range(0, len(data), len(data) // 50):
        for changed in (flipped(data, at), data[:at]):
            replaced(found.library_path, changed)
            with pytest.raises(BadStoreEntry, match=r"SHA-256|bytes instead of"):
                load(found)
    replaced(found.library_path, data)
    for path in (found.library_path, found.directory):
        path.chmod(0o777)
        with pytest.raises(BadStoreEntry, match="others may write it"):
            load(found)
        path.chmod(0o755)


def test_an_entry_that_is_pruned_while_it_is_looked_up_is_a_miss(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = read_entry(folder(root))

    def pruned(directory: Path, identity: str) -> Entry | str:
        found = verify_entry(directory, identity)
        shutil.rmtree(directory)
        return found

    monkeypatch.setattr("scanops.store.layers.verify_entry", pruned)
    assert Store().find(entry.identity) is None
    assert "corrupt" not in caplog.text
