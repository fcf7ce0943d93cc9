"""SCANOPS_REQUIRE_SIGNED: only kernels of packs that a trusted key signed are loaded, and none is built.

The signature of a pack is checked once per process. From then on the signed pack.json decides what each manifest and
each index record must be, and the manifest decides what the library must be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry, MissingKernel
from scanops.files import open_unfollowed
from scanops.store.entry import MANIFEST, Entry, data_problem, read_entry
from scanops.store.packs import parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["Vouched", "keys", "local", "refusal", "signed_entry", "vouched"]

Facts = Mapping[str, Any]  # size and sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """The signed contents of a pack whose signature is valid."""

    signer: str  # fingerprint of the key
    manifests: Mapping[str, tuple[str, Facts]]  # identity -> directory and facts of its manifest.json
    index: Mapping[str, Facts]  # path of an index record -> its facts


def keys() -> Mapping[str, Ed25519PublicKey]:
    """Return the trusted keys by fingerprint. Raises BadSignature if the file of SCANOPS_REQUIRE_SIGNED holds none."""
    return _public_keys(_required())


def vouched(root: Path) -> Vouched:
    """Return the signed contents of the pack at ``root``, checked once per process.

    Raises BadSignature or BadStoreEntry if no trusted key signed it.
    """
    keys()  # a fault of the key file is no fault of the pack
    found = _examined(root, _required())
    if isinstance(found, Vouched):
        return found
    raise found


def signed_entry(root: Path, directory: Path, identity: str) -> Entry:
    """Return the entry of a signed pack. Raises BadSignature if its manifest is not the one that was signed."""
    pack = vouched(root)
    name, facts = pack.manifests.get(identity, (None, {}))
    if name != directory.name:
        raise _differs(directory, "not in the pack.json that was signed")
    try:
        with open_unfollowed(directory / MANIFEST) as file:
            data = file.read(facts["size"] + 1)
    except OSError as problem:
        raise _differs(directory, f"{MANIFEST}: {problem.strerror}") from problem
    wrong = data_problem(MANIFEST, data, facts)
    if wrong:
        raise _differs(directory, f"{wrong} from what was signed")
    return read_entry(directory, data, signer=pack.signer)


def local(root: Path) -> BadSignature:
    """Return the error for kernels of a store, which no key signs."""
    return BadSignature(
        f"use the store {root}",
        allowed="signed packs alone (SCANOPS_REQUIRE_SIGNED)",
        value="a store, whose kernels nobody signed",
        hint="name packs in SCANOPS_PACKS, or unset SCANOPS_REQUIRE_SIGNED",
    )


def refusal(name: str, target: str, roots: Iterable[Path]) -> MissingKernel:
    """Return the error for a kernel that no signed pack at ``roots`` has and that may not be built here."""
    return MissingKernel(
        f"the kernel {name} for {target} under SCANOPS_REQUIRE_SIGNED",
        allowed="kernels of packs that a trusted key signed; none is built",
        value="\n".join(map(_outcome, roots)) or "no pack in SCANOPS_PACKS, none installed",
        hint=f"on the machine that packs: scanops build {name} --target {target}, then scanops pack --sign KEY.pem",
    )


def _outcome(root: Path) -> str:
    try:
        return f"{root}: signed by {vouched(root).signer[:16]}, does not have it"
    except (BadSignature, BadStoreEntry) as problem:
        return f"{root}: {problem.value}"


def _required() -> Path:
    file = environment.require_signed()
    assert file is not None
    return file


def _public_keys(file: Path) -> Mapping[str, Ed25519PublicKey]:
    from scanops.store.signatures import public_keys  # needs the package cryptography

    return public_keys(file)


@functools.lru_cache(maxsize=64)
def _examined(root: Path, file: Path) -> Vouched | BadSignature | BadStoreEntry:
    from scanops.store.signatures import check

    try:
        data, signer = check(root, _public_keys(file))
        pack = parse(data, root)
    except (BadSignature, BadStoreEntry) as problem:
        return problem
    manifests = {entry["identity"]: (entry["directory"], entry["files"][MANIFEST]) for entry in pack["entries"]}
    return Vouched(signer=signer, manifests=manifests, index=pack["index"])


def _differs(directory: Path, value: str) -> BadSignature:
    return BadSignature(
        f"use the kernel {directory}",
        allowed="the files that its pack's signature vouches for",
        value=value,
        hint="fetch or unpack the pack again; do not load from it",
    )
