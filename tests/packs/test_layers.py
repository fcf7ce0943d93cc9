"""Packs as read-only layers below the store, what pack.json says of them, and signatures."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import scanops
from scanops.artifact import ABI, BuildRequest, sources_key
from scanops.cli.doctor import settings
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSignature, BadStoreEntry, BuildFailure, MissingKernel, MissingRequirement
from scanops.runtime import kernels
from scanops.store import library
from scanops.store import signatures as signing
from scanops.store.archive import pack as write
from scanops.store.archive import unpack
from scanops.store.entry import MANIFEST, SOURCE, facts_of, read_entry
from scanops.store.library import load
from scanops.store.packing import finish, verify
from scanops.store.packs import PACK, SIGNATURE, files_of, following, parse, read
from scanops.store.root import read_index
from scanops.store.store import Store
from tests.packs.conftest import OTHER, PKCS8, PRIVATE, SPEC, SPKI, edit_pack, keep, kernel
from tests.store.sources import CPU_SOURCE, DAMAGES, ENTRIES, RECORDS, Harm, each_case, linked, resealed, umask


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
    for name in ("kernels.tar.gz", "kernels.tar.xz"):
        write(pack, tmp_path / name)
        unpack(tmp_path / name, tmp_path / f"{name}.out")
        assert (tmp_path / f"{name}.out" / SIGNATURE).read_bytes() == signature
    finish(pack)
    assert (pack / SIGNATURE).exists()  # nothing has changed
    (pack / SIGNATURE).write_bytes(b"short")
    with pytest.raises(BadStoreEntry, match="no signature"):
        write(pack, tmp_path / "kernels.tar.gz")
    shutil.rmtree(kernel(pack))
    finish(pack)
    assert not (pack / SIGNATURE).exists()


def test_a_signed_kernel_is_loaded_and_checked_once(signed: Path, deployed: pytest.MonkeyPatch, as_wheel: None) -> None:
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
    (record,) = (pack / "index").glob("*/*.json")
    (other,) = (path for path in pack.glob("of-a-user-*"))
    record.write_text(json.dumps({"identity": OTHER.identity, "directory": other.name}) + "\n")
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
        "from what was signed",
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
        assert kernels.find(SPEC, "cpu") is None
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
}


@pytest.mark.parametrize("name", REVOKED)
def test_revoked_keys_are_not_trusted(signed: Path, deployed: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Nor are those that are commented out, in whole or in part."""
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes(*SPKI)
    file = keep(tmp_path / "some.pem", other + b"".join(REVOKED[name]) + b"# for people\n" + other)
    assert len(signing.public_keys(file)) == 1
    deployed.setenv("SCANOPS_REQUIRE_SIGNED", str(file))
    assert kernels.find(SPEC, "cpu") is None
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
    assert kernels.find(SPEC, "cpu") is not None


def test_signatures_need_the_package_cryptography(signed: Path, deployed: pytest.MonkeyPatch) -> None:
    deployed.delitem(sys.modules, "scanops.store.signatures")
    deployed.delattr("scanops.store.signatures")
    deployed.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingRequirement, match=r"pip install 'scanops\[signing\]'"):
        scanops.compile(SPEC, "cpu")
    deployed.delenv("SCANOPS_REQUIRE_SIGNED")
    assert scanops.compile(SPEC, "cpu").path.parent == kernel(signed)
