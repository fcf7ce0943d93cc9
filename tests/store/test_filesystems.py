"""A disk that is full, a store and a HOME that are read-only: on file systems mounted for the test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scanops.store.store import Store
from tests.store.sources import BEGIN, KERNEL, python

OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
FILE_SYSTEMS = """
import scanops
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, MissingKernel
from scanops.runtime.policies import policy
from scanops.store.entry import checked
from scanops.store.root import read_index
def refused(words, action):
    try:
        action()
    except BadStoreEntry as problem:
        assert words in str(problem.value), problem
        assert "SCANOPS_STORE" in problem.hint
        return True
    return False
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """Where ``run`` mounts."""
    trial = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(trial, capture_output=True).returncode != 0:
        pytest.skip("needs a user namespace in which to mount")
    folder = tmp_path / "mounted"
    folder.mkdir()
    return folder


def run(prepare: str, code: str, folder: Path, *more: str, **environment: str) -> None:
    """Run ``code`` where the shell commands of ``prepare``, in which $3 is the folder, have mounted what it needs."""
    prefix = (*OWN_MOUNTS, "sh", "-ec", prepare + '\nexec "$0" "$@"')
    process = python(code, folder, *more, begin=BEGIN + FILE_SYSTEMS, prefix=prefix, **environment)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, out + error


def test_a_full_disk_at_every_step(mounted: Path) -> None:
    """From no room at all to enough for the build, a page at a time where a build writes its files."""
    code = """
store, ballast = root / "store", root / "ballast"
outcomes = []
for left in (0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 128):  # KiB
    with ballast.open("wb", buffering=0) as file:
        room = os.statvfs(root)
        file.write(bytes(max(0, room.f_bavail * room.f_frsize - left * 1024)))
    full = refused("No space left on device", lambda: Store(store).get_or_build(request))
    outcomes.append(full)
    ballast.unlink()
    if not full:
        break
    assert Store(store).find(request.identity) is None
    assert not store.exists() or not list((store / ".staging").glob("*"))
    assert not (store / ".quarantine").exists()
assert outcomes[0] and len(outcomes) > 3 and not outcomes[-1], outcomes
entry = Store(store).find(request.identity)
assert load(entry).scanops_abi() == ABI and checked(entry.directory, entry.identity) == entry
"""
    run('mount -t tmpfs -o size=4m,mode=700 tmpfs "$3"', code, mounted)


def test_a_read_only_store_and_a_read_only_home(mounted: Path, store: Store) -> None:
    store.remember("key", store.get_or_build(KERNEL))
    shutil.copytree(store.root, mounted.parent / "again")
    manifest = next((mounted.parent / "again").glob("sum-f32-*/manifest.json"))
    manifest.write_bytes(b"{")
    code = """
other = BuildRequest(name="other", source=CPU_SOURCE + "//", target="cpu")
good = Store(root / "good")
entry = good.lookup("sum-f32", "cpu", "key")
assert entry == good.get_or_build(request)
assert load(entry).scanops_abi() == ABI
good.remember("another key", entry)
assert read_index(good.root, "another key") is None
assert refused("Read-only file system", lambda: good.get_or_build(other))

corrupt = Store(root / "corrupt")
assert corrupt.find(request.identity) is None
assert refused("Read-only file system", lambda: corrupt.get_or_build(request))
assert len(list((root / "corrupt").glob("sum-f32-*"))) == 1 and not (root / "corrupt" / ".quarantine").exists()

spec = ScanSpec(op="sum", dtype="float32", length=24)
assert refused("Read-only file system", lambda: scanops.compile(spec, "cpu"))
try:
    with policy("never"):
        scanops.compile(spec, "cpu")
except MissingKernel:
    sys.exit(0)
sys.exit("no error")
"""
    prepare = """
        mount -t tmpfs -o mode=700 tmpfs "$3"
        cp -r "$4" "$3/good"
        cp -r "$5" "$3/corrupt"
        mkdir "$3/home"
        mount -o remount,ro "$3"
    """
    places = (str(store.root), str(mounted.parent / "again"))
    run(prepare, code, mounted, *places, HOME=str(mounted / "home"), XDG_CACHE_HOME="", SCANOPS_STORE="")
