"""Detached Ed25519 signatures (RFC 8032) of the bytes of pack.json, which holds the SHA-256 of every other file.

pack.json.sig holds the 64 bytes of the signature, as OpenSSL reads them:

    openssl pkeyutl -verify -pubin -inkey PUB.pem -rawin -in pack.json -sigfile pack.json.sig

Importing this module needs the package `cryptography` and raises MissingRequirement without it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scanops.errors import BadSignature, MissingRequirement
from scanops.files import OTHERS_WRITE, open_file, read_file, write_owned
from scanops.store.packs import PACK, SIGNATURE, SIGNATURE_BYTES, read_bytes

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )
except ImportError as absent:
    raise MissingRequirement(
        "sign a pack or check its signature",
        allowed="the package cryptography",
        value=str(absent),
        hint="pip install 'scanops[signing]'",
    ) from absent


_MAX_KEY_BYTES = 2**20  # of a key file; a key takes about 100
# A whole PEM block, its markers on lines of their own.
_BLOCK = re.compile(rb"^-----BEGIN ([A-Z0-9 ]+)-----\s*$.*?^-----END \1-----\s*$", re.DOTALL | re.MULTILINE)
_END = b"-----END"  # also of a block that is commented out
_MAKE_PRIVATE = "openssl genpkey -algorithm ed25519 -out KEY.pem"
_MAKE_PUBLIC = "openssl pkey -in KEY.pem -pubout -out PUB.pem"


def sign(directory: Path, file: Path, passphrase: Callable[[], str]) -> str:
    """Write ``directory``/pack.json.sig with the private key in ``file``. Returns the key's fingerprint.

    ``passphrase`` is called if the key is encrypted. Raises BadSignature for a file that is not an Ed25519 key in
    PKCS#8 PEM and for a folder that cannot be written, BadStoreEntry without pack.json.
    """
    block = next(_BLOCK.finditer(_read(file, "a private key", _MAKE_PRIVATE)), None)
    label = block[1].decode() if block else "no PEM"
    if block is None or label not in ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        raise _no_key(file, "an Ed25519 private key in PKCS#8 PEM", label, _MAKE_PRIVATE)
    secret = passphrase().encode() if label.startswith("ENCRYPTED") else None
    key = _load(file, Ed25519PrivateKey, load_pem_private_key, block[0], secret)
    signature, path = key.sign(read_bytes(directory)), directory / SIGNATURE
    try:
        if not path.is_file() or path.read_bytes() != signature:
            write_owned(path, signature)
    except OSError as problem:
        allowed, hint = "a folder this user can write", "copy the pack to such a folder"
        raise BadSignature(f"sign the pack {directory}", allowed=allowed, value=problem, hint=hint) from problem
    return _fingerprint(key.public_key())


def check(directory: Path, keys: Mapping[str, Ed25519PublicKey]) -> tuple[bytes, str]:
    """Return the bytes of pack.json and the fingerprint of the key in ``keys`` that signed them.

    Raises BadSignature if none of the keys did, BadStoreEntry without pack.json.
    """
    data, hint = read_bytes(directory), "on the machine that packs: scanops pack DIRECTORY --sign KEY.pem -o FILE"
    try:
        signature = read_file(directory / SIGNATURE, SIGNATURE_BYTES, trusted=False)
    except FileNotFoundError:
        value = f"no {SIGNATURE}: it is not signed"
    except OSError as problem:
        value = f"{SIGNATURE}: {problem.strerror}"
    else:
        for fingerprint, key in keys.items():
            try:
                key.verify(signature, data)
            except InvalidSignature:
                continue
            return data, fingerprint
        value = f"{SIGNATURE} is not {SIGNATURE_BYTES} bytes long"
        if len(signature) == SIGNATURE_BYTES:
            asked = ", ".join(name[:16] for name in keys)
            value = f"{SIGNATURE} is by another key, or of another {PACK}; asked for: {asked}"
            hint = "fetch the pack again from its signer; do not load from it"
    allowed = f"a {PACK} signed by a trusted key"
    raise BadSignature(f"trust the pack {directory}", allowed=allowed, value=value, hint=hint)


@functools.lru_cache(maxsize=8)
def public_keys(file: Path) -> Mapping[str, Ed25519PublicKey]:
    """Return the Ed25519 public keys in a file of PEM blocks by fingerprint: the SHA-256 of the key in DER.

    A key does not count if its BEGIN line is commented out, or if the word "revoked" stands anywhere between the
    preceding key and it, in whatever form; nor does the same key elsewhere in the file. The file is read once per
    process. Raises BadSignature for a file without a key, with anything but public keys, that cannot be read, or that
    other users may write.
    """
    found, revoked, end = {}, set(), 0
    data = _read(file, "public keys", _MAKE_PUBLIC, trusted=True)
    for block in _BLOCK.finditer(data):
        remarks, end = data[end : block.start()].rpartition(_END)[2], block.end()
        label = block[1].decode()
        if label.endswith("PRIVATE KEY"):
            raise _no_key(file, "public keys", f"a private key ({label}), which is its owner's alone", _MAKE_PUBLIC)
        key = _load(file, Ed25519PublicKey, load_pem_public_key, block[0])
        found[_fingerprint(key)] = key
        if b"revoked" in remarks.lower():
            revoked.add(_fingerprint(key))
    found = {fingerprint: key for fingerprint, key in found.items() if fingerprint not in revoked}
    if not found:
        raise _no_key(file, "at least one Ed25519 public key in PEM", "none", _MAKE_PUBLIC)
    return found


def _load(file: Path, kind: Any, load: Callable[..., object], *words: bytes | None) -> Any:
    """Return the key of the class ``kind`` that ``load`` reads. Raises BadSignature for any other."""
    make = _MAKE_PRIVATE if kind is Ed25519PrivateKey else f"{_MAKE_PRIVATE} && {_MAKE_PUBLIC}"
    allowed = f"an Ed25519 {'private key, and its passphrase' if kind is Ed25519PrivateKey else 'public key'}, in PEM"
    try:
        key = load(*words)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        make = "give the passphrase it was encrypted with" if words[1:] and words[1] else make
        label = (words[0] or b"").splitlines()[0].decode(errors="replace").strip("- ").removeprefix("BEGIN ")
        raise _no_key(file, allowed, f"{label}: {problem}", make) from problem
    if not isinstance(key, kind):
        raise _no_key(file, allowed, type(key).__name__, make)
    return key


def _read(file: Path, what: str, make: str, *, trusted: bool = False) -> bytes:
    """Return the contents of a key file; other users may not write one that decides whom to trust.

    Symbolic links are followed: containers receive their secrets through links.
    """
    try:
        with open_file(file, trusted=False, follow=True) as stream:
            facts = os.fstat(stream.fileno())
            data = stream.read(_MAX_KEY_BYTES)
    except OSError as problem:
        raise _no_key(file, f"{what} in a regular file that can be read", problem.strerror, make) from problem
    if trusted and (facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & OTHERS_WRITE):
        allowed = f"a file of uid {os.geteuid()} or 0 that only its owner may write"
        value = f"uid {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}"
        raise _no_key(file, allowed, value, f"chmod go-w {file}, or chown it")
    return data


def _fingerprint(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _no_key(file: Path, allowed: str, value: object, hint: str) -> BadSignature:
    return BadSignature(f"read the key {file}", allowed=allowed, value=value, hint=hint)
