"""Packs: archives that harm nobody, layers below the store, what pack.json says, and signatures."""

from __future__ import annotations

import errno
import functools
import io
import json
import lzma
import os
import random
import shutil
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("cryptography", exc_type=ImportError)

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import scanops
from scanops.build_request import BuildRequest, sources_key
from scanops.cli import main
from scanops.cli.doctor import settings
from scanops.codegen.abi import ABI
from scanops.codegen.headers import inline_headers
from scanops.codegen.kernel_key import KernelKey
from scanops.codegen.spec import ScanSpec
from scanops.errors import (
    BadSignature,
    BadStoreEntry,
    BuildFailure,
    MissingKernel,
    MissingRequirement,
    UnsupportedRequest,
    UnusableFile,
)
from scanops.runtime import kernels
from scanops.store import Store, archive, library
from scanops.store import signatures as signing
from scanops.store.archive import pack as write
from scanops.store.archive import unpack
from scanops.store.entry import MANIFEST, SOURCE, Entry, facts_of, manifest_bytes, read_entry, verify_entry
from scanops.store.library import load
from scanops.store.packs import PACK, SIGNATURE, files_of, finish, following, parse, read, verify
from scanops.store.root import read_index
from tests.packs.conftest import OTHER, PKCS8, PRIVATE, SPEC, SPKI, edit_pack, keep, kernel
from tests.scripts import ran
from tests.store.sources import (
    CPU_SOURCE,
    DAMAGES,
    ENTRIES,
    RECORDS,
    Harm,
    each_case,
    flipped,
    linked,
    replaced,
    resealed,
    umask,
)


def test_an_archive_is_reproducible(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It unpacks to the same files, whatever the times and modes of the files and the umask of who unpacks them."""
    copy, first, second = tmp_path / "copy", tmp_path / "a" / "k.tar.xz", tmp_path / "b" / "k.tar.xz"
    first.parent.mkdir()
    second.parent.mkdir()
    write(pack, first)
    total = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file() and path.name != SOURCE)
    assert "at most" in refused(first, max_bytes=total - 1)
    shutil.copytree(pack, copy, ignore=shutil.ignore_patterns(SOURCE))  # no archive holds sources
    for path in copy.rglob("*"):
        os.utime(path, (time.time() - 1e6,) * 2)
    (copy / PACK).chmod(0o600)
    write(copy, second)
    assert first.read_bytes() == second.read_bytes()

    def private(draft: Path) -> dict[str, Any]:
        assert draft.stat().st_mode & 0o077 == 0  # until the files are checked
        return verify(draft)

    monkeypatch.setattr(archive, "verify", private)
    for mask in (0, 0o077):
        out = tmp_path / f"out{mask}"
        with umask(mask):
            assert unpack(first, out, max_bytes=total) == verify(out) == read(pack)
        assert {path.stat().st_mode & 0o7777 for path in (out, *out.rglob("*"))} == {0o755, 0o644}
        assert {path.relative_to(out) for path in out.rglob("*")} == {
            path.relative_to(copy) for path in copy.rglob("*")
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "copy", "out0", "out63", "pack"]
    with tarfile.open(first) as tar:
        assert tar.getnames() == [PACK, *files_of(read(pack))]


def test_a_folder_name_too_long_for_tar_is_refused(pack: Path, tmp_path: Path) -> None:
    contents = read(pack)
    folder = next(iter(contents["entries"]))
    longer = f"{'x' * 145}{folder[-17:]}"
    (pack / folder).rename(pack / longer)
    renamed(contents, longer)
    (pack / PACK).write_text(json.dumps(contents))
    with pytest.raises(UnsupportedRequest, match="SCANOPS_PACKS takes it"):
        write(pack, tmp_path / "k.tar.xz")


def test_places_that_exist_or_cannot_be_written_are_typed_errors(pack: Path, tmp_path: Path) -> None:
    for name in ("kernels.tar.gz", ".tar.xz", "kernels.tar", "kernels.xz"):
        with pytest.raises(UnsupportedRequest):
            write(pack, tmp_path / name)
        assert not (tmp_path / name).exists()
    for file in (tmp_path / "absent" / "k.tar.xz", pack / PACK / "k.tar.xz"):
        with pytest.raises(UnusableFile, match="write the archive"):
            write(pack, file)
    write(pack, tmp_path / "k.tar.xz")
    with pytest.raises(UnsupportedRequest, match="does not exist yet"):
        unpack(tmp_path / "k.tar.xz", pack)
    with pytest.raises(BadStoreEntry, match="can be written") as caught:
        unpack(tmp_path / "k.tar.xz", tmp_path / "k.tar.xz" / "below" / "out")
    assert "another folder" in caught.value.hint


def refused(file: Path, **limits: int) -> str:
    """Unpack ``file``, which must be refused and leave nothing behind. Returns the message."""
    out = file.parent / "out"
    with pytest.raises(BadStoreEntry) as caught:
        unpack(file, out, **limits)
    assert not out.exists()
    assert not list(file.parent.glob(".out*"))
    return str(caught.value)


def tar(pack: Path, *extra: tarfile.TarInfo, without: str = "\0", **options: object) -> Path:
    """Write the archive of a pack with ``extra`` members after pack.json and without members of some names."""
    file = pack.with_name("bad.tar.xz")
    write(pack, file.with_name("good.tar.xz"))
    with tarfile.open(file.with_name("good.tar.xz")) as good, tarfile.open(file, "w:xz", **options) as bad:
        members = [item for item in good if without not in item.name]
        for item in members[:1] + list(extra) + members[1:]:
            data = good.extractfile(item) if item in members else io.BytesIO(b"x" * item.size)
            bad.addfile(item, data if item.isreg() else None)
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    """Return the header of an archive member."""
    item = tarfile.TarInfo(name)
    item.type, item.linkname, item.size = kind, target, size
    return item


UNLISTED = [
    *(member(name, size=3) for name in ("../escaped", "/escaped", "a/../../escaped", "unlisted.so", PACK)),
    *(member("link", kind, target) for kind, target in ((tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, PACK))),
    *(member("special", kind) for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)),
    member(SIGNATURE, size=65),
]


@pytest.mark.parametrize("extra", UNLISTED, ids=lambda item: f"{item.name} {item.type.decode()}")
def test_members_that_pack_json_does_not_list_are_refused(pack: Path, tmp_path: Path, extra: tarfile.TarInfo) -> None:
    assert repr(extra.name) in refused(tar(pack, extra))
    assert not (tmp_path / "escaped").exists()


def test_members_that_differ_from_pack_json_are_refused(pack: Path) -> None:
    name = f"{kernel(pack).name}/kernel.so"
    size = (pack / name).stat().st_size
    assert "plain files" in refused(tar(pack, member(name, tarfile.SYMTYPE, "/etc/passwd"), without=name))
    assert "No such file" in refused(tar(pack, without=name))
    assert "SHA-256" in refused(tar(pack, member(name, size=size), without=name))
    assert "sizes" in refused(tar(pack, member(name, size=size + 1), without=name))
    assert "once" in refused(tar(pack, *2 * [member(SIGNATURE, size=64)]))
    assert "first member" in refused(tar(pack, without=PACK))


def damaged(data: bytes, contents: bytes, draw: random.Random) -> bytes:
    """The archive ``data``, whose contents are ``contents`` and zeros, damaged in one thing that is drawn."""
    kind, block = draw.randrange(7), 512 * draw.randrange(len(contents) // 512)
    if kind == 0:
        return flipped(data, draw.randrange(len(data)), 1 << draw.randrange(8))
    if kind == 1:
        return data[: draw.randrange(len(data))] + draw.choice((b"", draw.randbytes(draw.randrange(64))))
    tar = bytearray(contents)
    if kind == 2:  # anywhere, with a right checksum of the stream
        tar[draw.randrange(len(tar))] ^= 1 << draw.randrange(8)
    elif kind == 3:  # in a header, whose checksum is right: name, size, type, prefix
        header = draw.choice([at for at in range(0, len(tar), 512) if tar[at + 257 : at + 262] == b"ustar"])
        field, size = draw.choice(((0, 100), (0, 8), (124, 12), (156, 1), (345, 155)))
        text = draw.choice((b"\0", b"7" * 11, b"../x", b"/x", b"L", b"x", b"S", b"1", b"2", b"5", draw.randbytes(9)))
        tar[header + field : header + field + size] = text[:size].ljust(size, b"\0")
        tar[header + 148 : header + 156] = b" " * 8
        tar[header + 148 : header + 156] = b"%06o\0 " % sum(tar[header : header + 512])
    elif kind == 4:
        del tar[block : block + 512 * draw.randrange(1, 4)]
    elif kind == 5:
        tar[block:block] = tar[(other := 512 * draw.randrange(len(tar) // 512)) : other + 512 * draw.randrange(1, 4)]
    else:
        at = tar.index(b"{") + draw.randrange(500)
        tar[at : at + 1] = draw.choice((b"9", b'"', b"}", b"[", b",", b"", b"-1", draw.randbytes(1)))
    tar += bytes(-len(contents) % 512 + 1024)
    return lzma.compress(bytes(tar), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**16}])


def test_damaged_archives_are_refused_or_give_the_same_pack(pack: Path, tmp_path: Path) -> None:
    """500 archives of a small kernel, each damaged in one thing."""
    (other,) = pack.glob("of-a-user-*")
    shutil.rmtree(other)
    replaced(kernel(pack) / "kernel.so", b"code" * 200)
    edit_pack(pack, lambda contents: contents["entries"].pop(other.name, None))
    for path, text in following(contents := read(pack)):
        (pack / path).write_bytes(text)
    file, place = tmp_path / "archives" / "k.tar.xz", tmp_path / "archives" / "out"
    file.parent.mkdir()
    write(pack, file)
    data = file.read_bytes()
    was_there = Path("/x").exists()  # a path that damaged members name
    tar, draw, outcomes = lzma.decompress(data).rstrip(b"\0"), random.Random(1), Counter[str]()
    expected = {path: (pack / path).read_bytes() for path in (*files_of(contents), *dict(following(contents)))}
    for _ in range(500):
        file.write_bytes(damaged(data, tar, draw))
        try:
            found = unpack(file, place)
        except BadStoreEntry as problem:
            outcomes[problem.allowed] += 1
        else:  # what nothing reads, such as a time
            outcomes[""] += 1
            assert verify(place) == found
            assert found != contents or all((place / path).read_bytes() == expected[path] for path in expected)
            shutil.rmtree(place)
        assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert Path("/x").exists() == was_there and not (tmp_path / "x").exists()
    assert outcomes.total() == 500 and outcomes[""] < 60 and len(outcomes) > 4, outcomes


def test_a_limit_of_bytes_is_checked_before_files_are_written(pack: Path, tmp_path: Path) -> None:
    """Of the sizes that pack.json states, and of pack.json itself."""
    contents = read(pack)
    manifest = first(contents)
    files = {**manifest["files"], "kernel.so": {"size": 2**26 - 1, "sha256": 64 * "0"}}
    names = [f"x-{number:016x}" for number in range(300)]
    entries = {name: {**manifest, "files": files, "identity": f"{name[2:]}{48 * '0'}"} for name in names}
    text = json.dumps({**contents, "entries": entries, "index": {}}).encode()
    for data, words in (
        (text, "at most 17.2 GB"),
        (b"[" + 2**22 * b"[]," + b"[]]", "first member"),
        (b"[" * 9999, PACK),
    ):
        item = member(PACK, size=len(data)).tobuf() + data + bytes(-len(data) % 512 + 1024)
        (tmp_path / "k.tar.xz").write_bytes(lzma.compress(item, preset=0))
        assert words in refused(tmp_path / "k.tar.xz")


def test_pip_installs_a_package_and_its_pack_is_found(pack: Path, tmp_path: Path) -> None:
    """The project is that of docs/deployment.md."""
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(pack, project / "my_kernels" / "pack", ignore=shutil.ignore_patterns(SOURCE))
    (project / "my_kernels" / "__init__.py").touch()
    (project / "pyproject.toml").write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    ran(*pip, "--target", site, project, PIP_DISABLE_PIP_VERSION_CHECK="1")
    for path in (site, *site.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    code = "from scanops.store.layers import installed; import sys; print(*installed(), 'my_kernels' in sys.modules)"
    found = ran(sys.executable, "-c", code, PYTHONPATH=str(site)).stdout.split()
    assert found == [str(site / "my_kernels" / "pack"), "False"]
    assert verify(site / "my_kernels" / "pack") == read(pack)


# ---- packs as read-only layers below the store, what pack.json says of them, and signatures


def test_a_pack_answers_where_nothing_can_be_built(pack: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployed.setenv("SCANOPS_PACKS", str(pack))
    with deployed.context() as patch:
        patch.setattr(kernels, "plan_for", lambda *_: pytest.fail("rendered"))  # its index has the kernel
        found = scanops.compile(SPEC, "cpu")
    assert found.path.parent == kernel(pack)
    assert found.code.scanops_abi() == ABI
    deployed.setattr(kernels, "_KERNELS", {})
    with scanops.calls() as made, scanops.emulate():
        scanops.cumsum(torch.ones(2, 24), 1)
    assert (made[0].found, made[0].hit, made[0].path) == ("pack", True, str(kernel(pack)))
    assert not (tmp_path / "absent").exists()
    assert Store(tmp_path / "own").find(OTHER.identity) is None  # packs are below the user's store and no other
    shutil.rmtree(pack / "index")  # as in a pack of another version: found by the text, and not recorded in the store
    (tmp_path / "absent").mkdir(mode=0o700)
    assert scanops.compile(SPEC, "cpu").path.parent == kernel(pack)
    assert Store().find(OTHER.identity) is not None
    assert kernels.find(KernelKey(ScanSpec(op="sum", dtype="float32", length=25), "cpu")) is None
    assert list((tmp_path / "absent").iterdir()) == []
    deployed.delenv("SCANOPS_PACKS")
    assert kernels.find(KernelKey(SPEC, "cpu")) is None
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
        patch.setattr("scanops.build_request.request_of", lambda *_: OTHER)  # as another version may render
        with pytest.raises(BadStoreEntry, match="another text"):
            _ = found.source
    assert found.source == inline_headers(text)


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


# ---- pack.json: what is written, and every way a pack can differ from it


def test_pack_json_lists_every_file_without_times_and_paths(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finishing the pack once more writes nothing."""
    contents = read(pack)
    assert [manifest["name"] for manifest in contents["entries"].values()] == ["of-a-user", SPEC.slug]
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
    key = str(sources_key(KernelKey(SPEC, "cpu")))
    expected = read_index(pack, key)
    (record,) = (pack / "index").glob("*/*")
    RECORDS[what](record)
    finish(pack)
    assert read_index(pack, key) == expected is not None
    shutil.rmtree(kernel(pack))
    contents = finish(pack)  # without its kernel a record goes
    assert (len(contents["entries"]), contents["index"]) == (1, {})
    assert verify(pack) == contents
    shutil.rmtree(pack / next(iter(contents["entries"])))
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


def first(pack: dict[str, Any]) -> dict[str, Any]:
    return next(iter(pack["entries"].values()))


def renamed(pack: dict[str, Any], folder: str) -> None:
    pack["entries"][folder] = pack["entries"].pop(next(iter(pack["entries"])))


NO_ENTRY = f"x-{'0' * 16}"
FACTS = {"size": 0, "sha256": 64 * "0"}
# What a pack.json states that none states -> how, and what the error names
FORMS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "directory": (lambda pack: renamed(pack, f"../x-{OTHER.identity[:16]}"), "a name in 'entries'"),
    "another directory": (lambda pack: renamed(pack, NO_ENTRY), "does not end in its identity"),
    "identity": (lambda pack: first(pack).update(identity="x"), "'identity' of .* is 'x'"),
    "targets": (lambda pack: pack.update(targets=[None]), r"'targets' of pack.json\[0\]"),
    "platform": (lambda pack: pack.update(platform="a\n"), "'platform'"),
    "abi": (lambda pack: pack.update(abi=True), "'abi'"),
    "entry": (lambda pack: pack["entries"].update({NO_ENTRY: []}), "' of 'entries' .* is \\[\\]"),
    "no source": (lambda pack: first(pack)["files"].pop("kernel.cu"), "'files' of"),
    "form": (lambda pack: first(pack).update(form="cubin"), "'files' of"),
    "resources": (lambda pack: first(pack).update(resources=[1]), "'resources' of"),
    "nested toolchain": (lambda pack: first(pack)["toolchain"].update(nvcc=[[]]), "'nvcc' of 'toolchain'"),
    "more files": (lambda pack: first(pack)["files"].update({"../x": FACTS}), "'files'"),
    "size": (lambda pack: first(pack)["files"]["kernel.so"].update(size=-1), "'size'"),
    "no such entry": (lambda pack: pack["index"].update(dict.fromkeys(pack["index"], NO_ENTRY)), "which is no entry"),
    "no digest": (lambda pack: first(pack)["files"]["kernel.so"].pop("sha256"), "'sha256'"),
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


DEEP: Any = [[[[[["x"] * 100]]]]]
ODD = (None, True, -1, 0, 2**63, 1e300, float("nan"), "", "x" * 5000, "\x1b[2J", [], {}, ["x"], {"x": 1}, DEEP, [None])


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places_of(value[key], (*path, key))


def changed(manifest: dict[str, Any], path: tuple[Any, ...], odd: object) -> dict[str, Any]:
    """Return a manifest with another value in a place, or without the place."""
    copy = json.loads(json.dumps(manifest))
    where = functools.reduce(lambda value, key: value[key], path[:-1], copy)
    if odd == "removed":
        del where[path[-1]]
    else:
        where[path[-1]] = odd
    return copy


def test_changed_manifests_are_refused_by_each_reader_or_by_none(pack: Path) -> None:
    """Each value is replaced or removed, and the manifest sealed again: one validator decides, with typed errors."""
    entry, contents, outcomes = kernel(pack), read(pack), Counter[bool]()
    good = contents["entries"][entry.name]
    for path in places_of(good):
        for odd in (*ODD, "removed"):
            manifest = changed(good, path, odd)
            replaced(entry / MANIFEST, manifest_bytes(manifest))
            verdict = verify_entry(entry, good["identity"])
            sound = isinstance(verdict, Entry) or "kernel." in verdict or "identity" in verdict
            contents["entries"][entry.name] = manifest
            try:
                parse(json.dumps(contents).encode(), "x")
                assert sound, (path, odd)
            except BadStoreEntry as problem:
                assert len(str(problem)) < 1000
                assert not isinstance(verdict, Entry), (path, odd)
            if isinstance(verdict, Entry):
                assert verdict.builder and verdict.form and verdict.build_seconds == 0 and not verdict.resources
            else:
                assert len(verdict) < 1000
            outcomes[sound] += 1
    assert outcomes[False] > 300 and outcomes[True] > 10


# What a manifest of another kernel states -> how it is changed
MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a launch that is a number": lambda manifest: manifest.update(launch=5),
    "a launch that is a list": lambda manifest: manifest.update(launch=[1]),
    "a launch of lists": lambda manifest: manifest.update(launch={name: [[]] for name in manifest["launch"]}),
    "no toolchain": lambda manifest: manifest.pop("toolchain"),
    "a toolchain that is a list": lambda manifest: manifest.update(toolchain=[]),
    "a form that is a list": lambda manifest: manifest.update(form=[]),
    "no files": lambda manifest: manifest.pop("files"),
    "an unknown field": lambda manifest: manifest.update(more=1),
    "a time that is no number": lambda manifest: manifest.update(build_seconds=float("nan")),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_bad_manifest_stops_no_command(pack: Path, deployed: pytest.MonkeyPatch, what: str) -> None:
    """It is a miss; `store list` lists the others and names it, and `store verify` says what is wrong with it."""
    deployed.setenv("SCANOPS_PACKS", str(pack))
    resealed(kernel(pack), MANIFESTS[what])
    assert kernels.find(KernelKey(SPEC, "cpu")) is None and Store().find(OTHER.identity) is not None
    listed = CliRunner().invoke(main, ["store", "list", "--json"])
    facts = json.loads(listed.stdout)
    assert [each["slug"] for each in facts["kernels"]] == ["of-a-user"]
    assert [each["root"] for each in facts["unused"]] == [str(kernel(pack))]
    (pack / PACK).unlink()
    shutil.rmtree(pack / "index")
    verified = CliRunner().invoke(main, ["store", "verify", str(pack)])
    assert verified.exit_code == 1 and f"{kernel(pack).name}: manifest.json: unreadable" in verified.stderr


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


# ---- signed packs: only what a trusted key signed is loaded, and everything else is refused by name

RSA = generate_private_key(65537, 1024)


def unasked() -> str:
    raise AssertionError("asked for a passphrase")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return keep(tmp_path / "key.pem", PRIVATE.private_bytes(*PKCS8, NoEncryption()))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A file of two public keys, the second of which is that of ``key``."""
    keys = Ed25519PrivateKey.from_private_bytes(bytes(32)), PRIVATE
    return keep(tmp_path / "pub.pem", b"for people\n".join(each.public_key().public_bytes(*SPKI) for each in keys))


@pytest.fixture
def signed(pack: Path, key: Path, public: Path, deployed: pytest.MonkeyPatch) -> Path:
    """A signed pack on a machine that requires it."""
    signing.sign(pack, key, unasked)
    deployed.setenv("SCANOPS_PACKS", str(pack))
    deployed.setenv("SCANOPS_REQUIRE_SIGNED", str(public))
    return pack


def test_signatures_are_ed25519_and_last_while_kernels_do(pack: Path, key: Path, public: Path, tmp_path: Path) -> None:
    fingerprint = signing.sign(pack, key, unasked)
    signature = (pack / SIGNATURE).read_bytes()
    PRIVATE.public_key().verify(signature, (pack / PACK).read_bytes())
    assert signing.sign(pack, key, unasked) == fingerprint
    assert (pack / SIGNATURE).read_bytes() == signature
    assert signing.check(pack, signing.public_keys(public)) == ((pack / PACK).read_bytes(), fingerprint)
    write(pack, tmp_path / "k.tar.xz")
    unpack(tmp_path / "k.tar.xz", tmp_path / "out")
    assert (tmp_path / "out" / SIGNATURE).read_bytes() == signature
    finish(pack)
    assert (pack / SIGNATURE).exists()  # nothing has changed
    (pack / SIGNATURE).write_bytes(b"short")
    with pytest.raises(BadStoreEntry, match="no signature"):
        write(pack, tmp_path / "k.tar.xz")
    shutil.rmtree(kernel(pack))
    finish(pack)
    assert not (pack / SIGNATURE).exists()


def test_a_signed_kernel_is_loaded_and_checked_once(signed: Path, deployed: pytest.MonkeyPatch) -> None:
    checked: list[Path] = []
    original = signing.check
    deployed.setattr(signing, "check", lambda root, keys: checked.append(root) or original(root, keys))
    deployed.setattr(kernels, "plan_for", lambda *_: pytest.fail("rendered"))  # the signed index has it
    for _ in range(3):
        found = scanops.compile(SPEC, "cpu")
    assert (found.path.parent, found.code.scanops_abi(), checked) == (kernel(signed), ABI, [signed])
    assert Store().find(OTHER.identity) is not None


def resigned_elsewhere(pack: Path) -> None:
    """The good signature of another pack, by the same key."""
    other = pack.parent / "other"
    shutil.copytree(pack, other)
    shutil.rmtree(kernel(other))
    finish(other)
    signing.sign(other, pack.parent / "key.pem", unasked)
    shutil.copy(other / SIGNATURE, pack / SIGNATURE)


def aliased(pack: Path) -> None:
    """The index leads to another kernel, which is signed as well."""
    (record,) = (pack / "index").glob("*/*")
    (other,) = (path for path in pack.glob("of-a-user-*"))
    record.write_text(other.name)
    shutil.rmtree(kernel(pack))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no signature": (lambda pack: (pack / SIGNATURE).unlink(), "not signed"),
    "a cut signature": (lambda pack: (pack / SIGNATURE).write_bytes(bytes(63)), "not 64 bytes"),
    "a flipped signature": (lambda pack: DAMAGES["flipped"](pack / SIGNATURE), "by another key"),
    "a linked signature": (lambda pack: linked(pack / SIGNATURE), SIGNATURE),
    "another key": (
        lambda pack: (pack / SIGNATURE).write_bytes(Ed25519PrivateKey.generate().sign((pack / PACK).read_bytes())),
        "by another key",
    ),
    "another pack": (resigned_elsewhere, f"of another {PACK}"),
    "flipped pack.json": (lambda pack: DAMAGES["flipped"](pack / PACK), f"of another {PACK}"),
    "no pack.json": (lambda pack: (pack / PACK).unlink(), "No such file"),
    "flipped manifest": (lambda pack: DAMAGES["flipped"](kernel(pack) / "manifest.json"), "manifest.json"),
    # An entry that agrees with itself and with the index, and is not what was signed.
    "another manifest": (
        lambda pack: resealed(kernel(pack), lambda manifest: manifest.update(flags=["-O0"])),
        "differs from what pack.json states",
    ),
    "flipped library": (lambda pack: DAMAGES["flipped"](kernel(pack) / "kernel.so"), "kernel.so: SHA-256"),
    "flipped source": (lambda pack: DAMAGES["flipped"](kernel(pack) / "kernel.cu"), "kernel.cu: SHA-256"),
    "another alias": (aliased, ""),
}


@pytest.mark.parametrize("name", BREAKS)
def test_packs_unlike_their_signature_are_misses(signed: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    change, words = BREAKS[name]
    change(signed)
    for _ in range(2):
        assert kernels.find(KernelKey(SPEC, "cpu")) is None
    with pytest.raises(MissingKernel, match="SCANOPS_REQUIRE_SIGNED") as caught:
        scanops.compile(SPEC, "cpu")
    assert words in caplog.text + str(caught.value.value)
    assert caplog.text.count("is not used") <= 2  # the pack, and the entry
    assert "scanops build sum-f32-n24 --target cpu" in caught.value.hint


def test_no_local_kernel_is_loaded_or_built(signed: Path, deployed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(signed, tmp_path / "absent")  # a store with the same kernels
    entry = read_entry(kernel(signed))
    with pytest.raises(BadSignature, match="nobody signed"):
        load(entry)  # whoever hands it over
    with pytest.raises(MissingKernel) as caught:
        scanops.compile(ScanSpec(op="sum", dtype="float32", length=25), "cpu")
    assert f"{signed}: signed by " in str(caught.value.value)
    deployed.setenv("SCANOPS_PACKS", "")
    assert Store(tmp_path / "absent").find(entry.identity) is None
    with pytest.raises(MissingKernel, match="none installed"):
        scanops.compile(SPEC, "cpu")
    with pytest.raises(MissingKernel):
        Store(tmp_path / "own").get_or_build(OTHER)
    assert not (tmp_path / "own").exists()
    deployed.delenv("SCANOPS_REQUIRE_SIGNED")
    assert scanops.compile(SPEC, "cpu").path.parent == kernel(tmp_path / "absent")


def pem(label: str, body: str) -> bytes:
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n".encode()


PUBLIC_PEM = PRIVATE.public_key().public_bytes(*SPKI)
OPENSSH = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
# What a file holds (None: it is absent), and what is said of it as the file of public keys, and of the private key
KEYS: dict[str, tuple[bytes | None, str, str]] = {
    "absent": (None, "No such file", "No such file"),
    "empty": (b"", "at least one", "no PEM"),
    "words": (b"trust me", "at least one", "no PEM"),
    "a private key": (PRIVATE.private_bytes(*PKCS8, NoEncryption()), "a private key", ""),
    "a public key": (PUBLIC_PEM, "", "got PUBLIC KEY"),
    "a public key that others may write": (PUBLIC_PEM, "mode 0666", "got PUBLIC KEY"),
    "rsa": (RSA.public_key().public_bytes(*SPKI), "RSAPublicKey", "got PUBLIC KEY"),
    "private rsa": (RSA.private_bytes(*PKCS8, NoEncryption()), "a private key", "RSAPrivateKey"),
    "openssh": (OPENSSH, "a private key", "got OPENSSH"),
    "not base64": (pem("PUBLIC KEY", "!"), "PUBLIC KEY: ", "got PUBLIC KEY"),
    "private, not base64": (pem("PRIVATE KEY", "!"), "a private key", "an Ed25519 private key"),
    "a certificate": (pem("CERTIFICATE", "AAAA"), "CERTIFICATE: ", "got CERTIFICATE"),
}


@pytest.mark.parametrize("name", KEYS)
def test_files_without_a_key_are_refused(signed: Path, deployed: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    data, *sayings = KEYS[name]
    file = tmp_path / "given.pem"
    if data is not None:
        keep(file, data).chmod(0o666 if "others" in name else 0o600)
    deployed.setenv("SCANOPS_REQUIRE_SIGNED", str(file))
    uses = (lambda: scanops.compile(SPEC, "cpu"), lambda: signing.sign(signed, file, unasked))
    for words, use in zip(sayings, uses, strict=True):
        if words:
            with pytest.raises(BadSignature, match="read the key") as caught:
                use()
            assert words in str(caught.value)


LINES = PUBLIC_PEM.splitlines(keepends=True)
REVOKED = {
    "its BEGIN line": [b"# revoked: " + LINES[0], *LINES[1:]],
    "a line above it": [b"# Revoked in May\n", *LINES],
    "all of its lines": [b"# " + line for line in LINES],
    "a word before it": [b"old " + LINES[0], *LINES[1:]],
    "a comment, a blank line": [b"# revoked\n\n", *LINES],
    "two comments": [b"# revoked\n# by the security team\n", *LINES],
    "two signs": [b"## REVOKED\n", *LINES],
    "another sign": [b"; revoked\n", *LINES],
    "an indented comment": [b"    # revoked\n", *LINES],
    "a sentence": [b"# key b was revoked on 1 May\n", *LINES],
    "a byte order mark": [b"\xef\xbb\xbf# revoked\r\n", *LINES],
    "no comment at all": [b"Revoked:\n", *LINES],
    "one of its two copies": [b"# revoked\n", *LINES, *LINES],
}


@pytest.mark.parametrize("name", REVOKED)
def test_revoked_keys_are_not_trusted(signed: Path, deployed: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Nor are those that are commented out, in whole or in part."""
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes(*SPKI)
    file = keep(tmp_path / "some.pem", other + b"".join(REVOKED[name]) + b"# for people\n" + other)
    assert len(signing.public_keys(file)) == 1
    deployed.setenv("SCANOPS_REQUIRE_SIGNED", str(file))
    assert kernels.find(KernelKey(SPEC, "cpu")) is None
    keep(tmp_path / "none.pem", b"".join(REVOKED[name]))
    with pytest.raises(BadSignature, match="at least one"):
        signing.public_keys(tmp_path / "none.pem")


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_does_not_turn_the_check_off(signed: Path, deployed: pytest.MonkeyPatch, value: str) -> None:
    deployed.setenv("SCANOPS_REQUIRE_SIGNED", value)
    with pytest.raises(BadSignature, match="SCANOPS_REQUIRE_SIGNED"):
        scanops.compile(SPEC, "cpu")
    with pytest.raises(BadSignature, match="SCANOPS_REQUIRE_SIGNED"):
        load(read_entry(kernel(signed)))
    assert [finding.status for finding in settings()] == ["broken"]
    DAMAGES["flipped"](signed / SIGNATURE)
    deployed.delenv("SCANOPS_REQUIRE_SIGNED")  # read at each lookup
    assert kernels.find(KernelKey(SPEC, "cpu")) is not None


def test_a_pipe_is_no_key_file(tmp_path: Path) -> None:
    """It is refused at once, and not waited for."""
    pipe = tmp_path / "pub.pem"
    os.mkfifo(pipe)
    with pytest.raises(BadSignature, match="not a regular file"):
        signing.public_keys(pipe)


def test_signatures_need_the_package_cryptography(signed: Path, deployed: pytest.MonkeyPatch) -> None:
    deployed.delitem(sys.modules, "scanops.store.signatures")
    deployed.delattr("scanops.store.signatures")
    deployed.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingRequirement, match=r"pip install 'scanops\[signing\]'"):
        scanops.compile(SPEC, "cpu")
    deployed.delenv("SCANOPS_REQUIRE_SIGNED")
    assert scanops.compile(SPEC, "cpu").path.parent == kernel(signed)
