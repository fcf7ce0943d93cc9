"""What a look-up knows of the sources without reading them, and that an edit is never missed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scanops import sources
from scanops.store import fingerprint

TARGET = "sm_90"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Templates of our own, and a store that keeps digests of files as young as these."""
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "tree" / "stages").mkdir(parents=True)
    for name in ("rows.cu.j2", "stages/ring.cuh.j2"):
        (tmp_path / "tree" / name).write_text(f"text of {name}")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    monkeypatch.setitem(fingerprint._TREES, "templates", str(tmp_path / "tree"))
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", -1)
    return tmp_path / "tree"


def answer() -> str:
    """That of a new process."""
    return fingerprint.fingerprint.__wrapped__(TARGET)


def in_place(tree: Path) -> None:
    """The hardest edit to see: same size, same inode, its time put back."""
    path = tree / "rows.cu.j2"
    facts = path.stat()
    path.write_text(path.read_text().replace("text", "TEXT"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)


EDITS: dict[str, Callable[[Path], object]] = {
    "in place": in_place,
    "replaced": lambda tree: (tree / "stages" / "ring.cuh.j2").replace(tree / "rows.cu.j2"),
    "added": lambda tree: (tree / "stages" / "new.cuh.j2").write_text(""),
    "removed": lambda tree: (tree / "stages" / "ring.cuh.j2").unlink(),
    "renamed": lambda tree: (tree / "rows.cu.j2").rename(tree / "columns.cu.j2"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edit_gives_another_digest(edit: Callable[[Path], object], tree: Path) -> None:
    before = answer()
    edit(tree)
    after = answer()
    assert after != before
    assert answer() == after


def test_a_kept_digest_saves_reading(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer()
    monkeypatch.setattr(sources, "digest", lambda _: pytest.fail("read"))
    assert answer() == before


@pytest.mark.parametrize("damage", ["flipped", "emptied", "gone"])
def test_a_damaged_record_is_read_again(damage: str, tree: Path) -> None:
    before = answer()
    for part in (tree.parent / "store" / ".parts").iterdir():
        data = part.read_bytes()
        part.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:] if damage == "flipped" else b"")
        if damage == "gone":
            part.unlink()
    assert answer() == before


def test_nothing_is_kept_of_what_may_still_change(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", 3600 * 10**9)
    os.utime(tree / "rows.cu.j2")
    assert answer() == answer()
    names = [path.name for path in (tree.parent / "store").rglob("sources-*")]
    assert fingerprint._sha256(str(tree))[:32] not in " ".join(names)


def test_flags_and_targets_are_part_of_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer()
    assert fingerprint.fingerprint.__wrapped__("sm_80") != before
    monkeypatch.setattr("scanops.artifact._CUDA_FLAGS", ("-std=c++17", "-O1"))
    assert answer() != before
