"""Builds, cache hits, publication and loading in one store, and who may have written it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import scanops
import scanops.builders
import scanops.store
from scanops.build_request import BuildReport, BuildRequest
from scanops.builders import toolchain
from scanops.codegen.abi import ABI
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, BuildFailure, MissingKernel
from scanops.files import format_size, secure, size_of
from scanops.runtime import kernels
from scanops.store import Store
from scanops.store.entry import Entry, read_entry, verify_entry
from scanops.store.library import load
from scanops.store.locks import hold_build_lock
from scanops.store.packs import finish, verify
from scanops.store.root import check_root, read_index
from scanops.store.usage import prune
from tests.store.sources import BEGIN, CPU_SOURCE, KERNEL, each_case, needs_root, python, relisted, replaced, umask


def test_a_kernel_is_built_once_and_found_under_any_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has three files and no trace of the build."""
    assert store.find(KERNEL.identity) is None and store.lookup("sum-f32", "cpu", "key") is None
    assert not store.root.exists()
    entry = store.get_or_build(KERNEL)
    assert entry.directory == store.root / f"sum-f32-{KERNEL.identity[:16]}"
    assert sorted(path.name for path in entry.directory.iterdir()) == ["kernel.cu", "kernel.so", "manifest.json"]
    assert entry.source_path.read_text() == KERNEL.source
    assert list((store.root / ".staging").iterdir()) == []
    assert str(store.root) not in (entry.directory / "manifest.json").read_text()
    assert (entry.resources, entry.build_seconds > 0, store.root.stat().st_mode & 0o777) == (None, True, 0o700)
    store.remember("key", entry)
    monkeypatch.setattr(scanops.builders, "build", lambda *_: pytest.fail("built again"))
    later = Store(store.root)
    assert later.get_or_build(KERNEL) == later.get_or_build(replace(KERNEL, name="another-name")) == entry
    assert later.lookup("sum-f32", "cpu", "other", "key") == entry
    assert later.find("0" * 64) is later.lookup("sum-f32", "cpu", "another key") is None
    # A record leads to no kernel of another spec, however it came there: the kernel must state spec and target.
    assert later.lookup("prod-f32", "cpu", "key") is later.lookup("sum-f32", "sm_90", "key") is None
    shutil.rmtree(entry.directory)
    assert Store(store.root).lookup("sum-f32", "cpu", "key") is None


# What is wrong with a source, and with the library -> the change, and what the error names
UNFIT = {
    "no C++": (lambda text: text + "int f( { nonsense; }", "nonsense"),
    "another ABI": (lambda text: text.replace(f"return {ABI};", "return 99;"), r"scanops_abi\(\) = 99"),
    "no launch": (lambda text: text.replace("scanops_launch", "launch"), "scanops_launch"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_nothing_of_a_failed_build_is_published(store: Store, what: str) -> None:
    change, words = UNFIT[what]
    bad = BuildRequest(name="bad", source=change(CPU_SOURCE), target="cpu")
    with pytest.raises(BuildFailure, match=words) as caught:
        store.get_or_build(bad)
    kept = store.root / ".failed" / f"bad-{bad.identity[:16]}"
    assert str(kept / "kernel.cu") in caught.value.hint
    assert (kept / "kernel.cu").read_text() == bad.source
    if what == "no C++":
        assert "kernel.cu:" in str(caught.value.value)
        assert "nonsense" in (kept / "build.log").read_text()
    assert store.find(bad.identity) is None
    assert list((store.root / ".staging").iterdir()) == []


def test_a_second_publisher_replaces_a_corrupt_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner, loser = Store(tmp_path / "winner"), Store(tmp_path / "loser")
    entry = winner.get_or_build(KERNEL)
    replaced(entry.library_path, entry.library_path.read_bytes()[:-1])
    honest = scanops.builders.build

    def overtaken(request: BuildRequest, directory: Path) -> BuildReport:
        report = honest(request, directory)
        entry.directory.rename(loser.root / entry.directory.name)
        return report

    monkeypatch.setattr(scanops.builders, "build", overtaken)
    used = loser.get_or_build(KERNEL)
    assert used.directory.parent == loser.root
    assert list((loser.root / ".staging").iterdir()) == []
    assert Store(loser.root).find(KERNEL.identity) == used


def test_what_cannot_be_published_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    final = store.root / f"sum-f32-{KERNEL.identity[:16]}"
    (final / "in the way").mkdir(parents=True)
    store.root.chmod(0o700)
    honest = Path.rename

    def stuck(path: Path, target: Path) -> Path:
        if path == final:
            raise PermissionError("it may not be moved")
        return honest(path, target)

    monkeypatch.setattr(Path, "rename", stuck)
    with pytest.raises(BadStoreEntry, match="write to the store"):
        store.get_or_build(KERNEL)
    assert list((store.root / ".staging").iterdir()) == []


def test_what_dead_builders_left_is_swept_after_an_hour(store: Store) -> None:
    store.get_or_build(KERNEL)
    old, held, young = (store.root / ".staging" / f"{digit * 16}-1-{digit * 8}" for digit in "abc")
    for stage in (old, held, young):
        (stage / "work").mkdir(parents=True)
    for path in (old, held):
        os.utime(path, (time.time() - 4000,) * 2)
    with hold_build_lock(store.root / ".locks", "b" * 64, "held", 1.0):
        store.get_or_build(replace(KERNEL, source=CPU_SOURCE + "// more"))
    assert [stage.exists() for stage in (old, held, young)] == [False, True, True]


def test_what_builds_did_not_make_is_never_swept(store: Store) -> None:
    """A folder of the user's that is the store may have a .staging of its own."""
    store.get_or_build(KERNEL)
    own = store.root / ".staging" / "release"
    own.mkdir()
    os.utime(own, (time.time() - 4000,) * 2)
    store.get_or_build(replace(KERNEL, source=CPU_SOURCE + "// another"))
    assert own.is_dir()


def test_variables_of_compilers_change_no_library(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of one identity are the same bytes, whatever the environment of the program that builds them."""
    header = tmp_path / "headers" / "cmath"
    header.parent.mkdir()
    header.write_text("#error not for kernels\n", encoding="utf-8")
    plain = store.get_or_build(KERNEL)
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "LD_RUN_PATH", "COMPILER_PATH", "DEPENDENCIES_OUTPUT"):
        monkeypatch.setenv(name, str(header.parent))
    built = Store(tmp_path / "other").get_or_build(KERNEL)
    assert built.identity == plain.identity
    assert built.library_path.read_bytes() == plain.library_path.read_bytes()


def test_no_cuda_runtime_anywhere(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = store.get_or_build(KERNEL)

    def no_toolkit() -> None:
        raise BuildFailure("find nvcc", allowed="", value="", hint="")

    def no_runtime(*_: object, **__: object) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(toolchain, "find_nvcc", no_toolkit)
    monkeypatch.setattr("scanops.store.library.Library", no_runtime)
    with pytest.raises(BadStoreEntry, match=r"libcudart\.so\.13") as caught:
        load(entry)
    assert "CUDA 13" in caught.value.allowed
    assert "nvidia-cuda-runtime" in caught.value.hint


def test_the_environment_is_read_at_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCANOPS_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store().root == tmp_path / "cache" / "scanops"
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path / "store"))
    assert Store().root == tmp_path / "store"
    assert list(tmp_path.iterdir()) == []


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
    """The hint leaves a store that was open to others, with its resealed library, alone: it names a new folder."""
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
    assert "a folder that does not exist yet" in caught.value.hint and "chmod does not repair" in caught.value.hint
    new = Store(tmp_path / "new")
    assert new.find(KERNEL.identity) is None
    assert b"evil" not in new.get_or_build(KERNEL).library_path.read_bytes()


@pytest.mark.parametrize("system", [False, True])
def test_no_hint_deletes_what_is_in_a_folder(system: bool, tmp_path: Path) -> None:
    """A folder of a project that a group may write, named as a store or a pack by mistake."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.csv").write_text("precious")
    for mode in (0o775, 0o777):
        project.chmod(mode)
        with pytest.raises(BadStoreEntry, match="only its owner may write") as caught:
            check_root(project, system=system)
        assert not {"rm", "find", "-delete", "-exec"} & {*caught.value.hint.split()}
    assert (project / "data.csv").read_text() == "precious"


def test_a_store_that_is_a_link_of_its_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store on another disk, for example: kernels are built, found, indexed, packed and pruned through the link."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = Store(tmp_path / "link")
    entry = store.get_or_build(KERNEL)
    store.remember("key", entry)
    assert Store(store.root).find(KERNEL.identity) == Store(store.root).lookup("sum-f32", "cpu", "key") == entry
    assert load(entry).scanops_abi() == ABI and (tmp_path / "real" / entry.directory.name).is_dir()
    assert finish(store.root) == verify(store.root)
    os.utime(entry.directory / "manifest.json", (0, 0))
    size = size_of(entry.directory)
    assert prune(store.root, 1) == [(entry.directory, size)] and not entry.directory.exists()
    assert caplog.text == ""


def test_what_fails_after_publication_fails_no_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = secure

    def fails(path: Path, **options: bool) -> None:
        if path == store.root:
            raise OSError(errno.EIO, "Input/output error")
        honest(path, **options)

    monkeypatch.setattr(scanops.store, "secure", fails)
    assert Store(store.root).find(store.get_or_build(KERNEL).identity) is not None


def test_nobody_else_may_write_what_is_built_whatever_the_umask(store: Store) -> None:
    """Distributions give people a umask of 002; in a pack what a group may write is not used."""
    with umask(0):
        entry = store.get_or_build(KERNEL)
        store.remember("key", entry)
    assert verify_entry(entry.directory, entry.identity) == entry
    (record,) = store.root.glob("index/*/*")
    assert [record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    assert read_index(store.root, "key") == entry.directory.name
    store.root.chmod(0o777)  # while it is used: the store is refused, and no entry of it is to blame
    with pytest.raises(BadStoreEntry, match="mode 0777"):
        store.find(KERNEL.identity)
    assert entry.directory.exists()


# ---- the space of a store: pruning, where the kernel used longest ago goes first; disks that are full or read-only


@pytest.fixture
def entries(store: Store, tmp_path: Path) -> list[Entry]:
    """Kernels last used two hours ago, 25 hours ago, and, by a clock that was wrong, in years."""
    made, found, now = Store(tmp_path / "made"), [], time.time()
    for number in range(3):
        entry = made.get_or_build(replace(KERNEL, source=KERNEL.source + f"// {number}\n"))
        made.remember(f"key {number}", entry)
    shutil.copytree(made.root, store.root)
    for number, used in enumerate((now - 2 * 3600, now - 25 * 3600, now + 1e8)):
        entry = read_entry(store.root / str(read_index(store.root, f"key {number}")))
        os.utime(entry.directory / "manifest.json", (used, used))
        found.append(entry)
    return found


def there(entries: list[Entry]) -> list[bool]:
    return [entry.directory.exists() for entry in entries]


def test_what_was_not_used_for_days_goes(store: Store, entries: list[Entry]) -> None:
    """With its index record; and failed builds."""
    bad = store.root / ".failed" / "x"
    bad.mkdir(parents=True)
    os.utime(bad, (0, 0))
    (store.root / "pack.json").touch()
    expected = {(each, size_of(each)) for each in (bad, *(entry.directory for entry in entries[1:]))}
    assert {*prune(store.root, 1, dry_run=True)} == expected and there(entries) == [True] * 3
    assert {*prune(store.root, 1)} == expected and there(entries) == [True, False, False] and not bad.exists()
    assert read_index(store.root, "key 1") is None and len(list(store.root.glob("index/*/*"))) == 1
    library = load(entries[0])  # runs on when its file is removed
    assert len(prune(store.root, 0)) == 1 and library.scanops_abi() == ABI


def test_what_was_looked_up_stays(store: Store, entries: list[Entry]) -> None:
    """A lookup corrects the time of a wrong clock; what was used within the hour stays."""
    assert [Store(store.root).find(entry.identity) is not None for entry in entries] == [True] * 3
    assert prune(store.root, 0) == [] and there(entries) == [True] * 3


def test_a_kernel_evicted_before_its_load_is_asked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANOPS_STORE", str(store.root))
    spec = ScanSpec(op="sum", dtype="float32", length=5)
    scanops.compile(spec, "cpu")
    found = [kernels.find(KernelKey(spec, "cpu")) for _ in range(3)]
    shutil.rmtree(found[0].path.parent)
    with scanops.policy("never"), pytest.raises(MissingKernel, match="scanops build sum-f32-n5 --target cpu"):
        _ = found[0].code
    text = found[1].source
    assert found[0].code.scanops_abi() == found[2].code.scanops_abi() == ABI
    assert text == found[0].source == scanops.generate(spec)


def test_sizes(tmp_path: Path) -> None:
    shown = {0: "0 B", 999: "999 B", 1000: "1.0 KB", 123_456: "123.5 KB", 5 * 10**9: "5.0 GB"}
    assert {size: format_size(size) for size in shown} == shown
    (tmp_path / "up").symlink_to(tmp_path)  # which is not followed
    assert size_of(tmp_path) < 10_000


OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
FILE_SYSTEMS = """
import scanops
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, MissingKernel
from scanops.runtime.policies import policy
from scanops.store.entry import verify_entry
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
assert outcomes[0] and len(outcomes) > 3 and not outcomes[-1], outcomes
entry = Store(store).find(request.identity)
assert load(entry).scanops_abi() == ABI and verify_entry(entry.directory, entry.identity) == entry
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
assert len(list((root / "corrupt").glob("sum-f32-*"))) == 1

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
