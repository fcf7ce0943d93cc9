"""Signed packs: only what a trusted key signed is loaded, and everything else is refused by name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import scanops
from scanops.artifact import ABI
from scanops.cli.doctor import settings
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSignature, BadStoreEntry, MissingKernel, MissingRequirement
from scanops.runtime import kernels
from scanops.store import signatures as signing
from scanops.store.archive import pack as write
from scanops.store.archive import unpack
from scanops.store.entry import read_entry
from scanops.store.library import load
from scanops.store.packing import finish
from scanops.store.packs import PACK, SIGNATURE
from scanops.store.store import Store
from tests.packs.conftest import OTHER, PKCS8, PRIVATE, SPEC, SPKI, keep, kernel
from tests.store.sources import DAMAGES, linked, resealed

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
