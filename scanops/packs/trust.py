"""What SCANOPS_REQUIRE_SIGNED lets in: kernels of packs that one of its keys signed, and nothing that was built here.

A pack's signature is checked once in a process. From then on its pack.json, as it was signed, decides what each
manifest and each record of the index must be; the manifest decides it for the library, as everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry, MissingKernel
from scanops.packs.manifest import parse
from scanops.files import open_unfollowed
from scanops.store.entry import MANIFEST, Entry, data_problem, read_entry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["Vouched", "keys", "local", "refusal", "signed_entry", "vouched"]

Facts = Mapping[str, Any]  # size and sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """A pack whose signature is good."""

    signer: str  # fingerprint of the key
    manifests: Mapping[str, tuple[str, Facts]]  # identity -> its folder, and what its manifest.json must be
    index: Mapping[str, Facts]  # path -> what the record must be


def keys() -> Mapping[str, Ed25519PublicKey]:
    """The keys of SCANOPS_REQUIRE_SIGNED, which is set. Raises BadSignature where the file holds none."""
    return _public_keys(_required())


def vouched(root: Path) -> Vouched:
    """The pack at ``root``. Raises BadSignature or BadStoreEntry where no key vouches for it; checked once."""
    keys()  # what is wrong with them is wrong with no pack
    found = _examined(root, _required())
    if isinstance(found, Vouched):
        return found
    raise found


def signed_entry(root: Path, directory: Path, identity: str) -> Entry:
    """The entry of a signed pack, by the manifest that was signed. Raises BadSignature for one that was not."""
    pack = vouched(root)
    name, facts = pack.manifests.get(identity, (None, {}))
    if name != directory.name:
        raise _differs(directory, "not in the pack.json that was signed")
    try:
        with open_unfollowed(directory / MANIFEST) as file:
            data = file.read()
    except OSError as problem:
        raise _differs(directory, f"{MANIFEST}: {problem.strerror}") from problem
    wrong = data_problem(MANIFEST, data, facts)
    if wrong:
        raise _differs(directory, f"{wrong} from what was signed")
    return read_entry(directory, data, signer=pack.signer)


def local(root: Path) -> BadSignature:
    """Why the store is not used."""
    return BadSignature(
        f"use the store {root}",
        allowed="signed packs alone (SCANOPS_REQUIRE_SIGNED)",
        value="a store, whose kernels nobody signed",
        hint="name packs in SCANOPS_PACKS, or unset SCANOPS_REQUIRE_SIGNED",
    )


def refusal(name: str, target: str, roots: Iterable[Path]) -> MissingKernel:
    """The error for a kernel that no signed pack has: what was built here would be signed by nobody."""
    return MissingKernel(
        f"the kernel {name} for {target} under SCANOPS_REQUIRE_SIGNED",
        allowed="kernels of packs that one of its keys signed; none is built",
        value="\n".join(map(_outcome, roots)) or "no pack in SCANOPS_PACKS, none installed",
        hint=f"where packs are made: scanops build {name} --target {target}, then scanops pack --sign KEY.pem",
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
    from scanops.packs.signing import public_keys  # needs the package cryptography

    return public_keys(file)


@functools.lru_cache(maxsize=64)
def _examined(root: Path, file: Path) -> Vouched | BadSignature | BadStoreEntry:
    from scanops.packs.signing import check

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
        allowed="what its pack's signature vouches for",
        value=value,
        hint="fetch or unpack the pack again; do not load from it",
    )
