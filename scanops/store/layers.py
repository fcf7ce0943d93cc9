"""Packs as layers below the user's store: which are searched, which of their kernels are used, what all places hold.

A pack is a folder laid out as a store is. It is searched when the store has no answer, read and never written. The same
checks of owner, mode and links hold as for the store (scanops/files.py), except that root may own the folder.

With SCANOPS_REQUIRE_SIGNED only kernels of packs that a trusted key signed are loaded, and none is built. The signature
of a pack is checked once per process. From then on the signed pack.json decides what each manifest must be, and the
manifest decides what the library must be. An index record needs no signature: it can lead to signed kernels alone, and
to none that states another spec than the one asked for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry, MissingKernel, ScanopsError
from scanops.forks import import_late
from scanops.store.entry import MANIFEST, Entry, manifest_bytes, read_entry, verify_entry
from scanops.store.library import make_unsigned_error
from scanops.store.packs import GROUP, SUBFOLDER, parse
from scanops.store.root import check_root, read_index

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


_LOG = logging.getLogger("scanops")


class Layer:
    """A folder of kernels that lookups search: a pack, and the base of the user's ``Store``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._refused: set[str] = set()  # folders that were refused: logged once each

    def find(self, *identities: str) -> Entry | None:
        """Return the verified entry of one of ``identities``, the first that there is; None for a cache miss."""
        there = list_candidates(self.root, identities)
        return next(filter(None, (self._verify(name, identity) for name, identity in there)), None)

    def find_indexed(self, *keys: str) -> Entry | None:
        """Return the verified entry that the index has for one of ``keys``, the first that there is, or None."""
        names = filter(None, (read_index(self.root, key) for key in keys))
        return next(filter(None, (self._verify(name, name[-16:]) for name in names)), None)

    def _verify(self, name: str, identity: str) -> Entry | None:
        """Return the entry in a folder of the root if it is ``identity``, or begins with these 16 digits."""
        found = usable_entry(self.root / name, identity)
        if isinstance(found, Entry):
            return found
        if name not in self._refused:
            self._refuse(self.root / name, found)
            self._refused.add(name)
        return None

    def _refuse(self, directory: Path, why: str) -> None:
        verify = f"`scanops store verify {self.root}` checks all"
        _LOG.warning("pack entry %s is not used: %s; %s; fetch or unpack the pack again", directory, why, verify)


def list_candidates(root: Path, identities: Sequence[str]) -> list[tuple[str, str]]:
    """Return (folder, identity) of the entries that may be one of ``identities``, in the order of these.

    The slug in front of an identity is free: there may be several folders.
    """
    ends = tuple(f"-{identity[:16]}" for identity in identities)
    try:
        with os.scandir(root) as listing:
            names = [item.name for item in listing if item.name.endswith(ends)]
    except OSError:
        return []
    return [(name, identity) for identity in identities for name in names if name.endswith(identity[:16])]


def check_pack(root: Path) -> None:
    """Raise BadStoreEntry for the root of a pack that is missing or not safe."""
    if not check_root(root, system=True):
        raise BadStoreEntry(
            f"use the pack {root}",
            allowed="a folder that `scanops unpack` has made, or `scanops precompile`",
            value="no such folder",
            hint="correct SCANOPS_PACKS, or unset it",
        )


def iterate_packs() -> Iterator[Layer]:
    """Yield the packs of ``SCANOPS_PACKS``, in its order, then the installed ones.

    Installed packs are looked for when it is their turn: asking every distribution takes longer than the rest of a
    lookup.
    """
    chosen = environment.pack_roots() if environment.read_variable("SCANOPS_PACKS") else ()
    yield from [_pack(root) for root in dict.fromkeys(chosen)]
    yield from [_pack(root) for root in installed() if root not in chosen]


@functools.cache
def _pack(root: Path) -> Layer:
    check_pack(root)
    return Layer(root)


@functools.cache
def installed() -> tuple[Path, ...]:
    """Return the folders of the packs installed by pip, sorted by entry point name. Runs none of their code."""
    entry_points = import_late("importlib.metadata").entry_points  # takes 10 ms where torch has not imported it
    found: list[Path] = []
    points = []
    try:
        points = list(entry_points(group=GROUP))
    except (ValueError, TypeError, AttributeError) as problem:  # raised for all if the metadata of one is malformed
        _LOG.warning("ignoring all packs installed by pip: malformed entry points in the environment: %s", problem)
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        try:
            # find_spec imports the parents of a dotted name, which would run their code.
            spec = None if "." in point.module else importlib.util.find_spec(point.module)
        except (ValueError, AttributeError, ImportError):  # a malformed value, or a module without a spec: __main__
            spec = None
        places = list(spec.submodule_search_locations or ()) if spec else []
        roots = [Path(place) / SUBFOLDER for place in places if (Path(place) / SUBFOLDER).is_dir()]
        if not roots:
            _LOG.warning("ignoring the entry point %r = %r of group %s: no pack", point.name, point.value, GROUP)
        found += roots[:1]
    return tuple(dict.fromkeys(found))


def usable_entry(directory: Path, identity: str) -> Entry | str:
    """Return the verified entry that should be ``identity``, or why it is not used: damaged, or not as signed."""
    if environment.require_signed() is None:
        return verify_entry(directory, identity)
    try:
        pack = verify_signature(directory.parent)
    except (BadSignature, BadStoreEntry) as untrusted:
        return str(untrusted.value)
    manifest = pack.entries.get(directory.name)
    if manifest is None:
        return "not in the pack.json that was signed"
    return verify_entry(directory, identity, manifest_bytes(manifest), pack.signer)


class SignedPack(NamedTuple):
    """The signed contents of a pack whose signature is valid."""

    signer: str  # fingerprint of the key
    entries: Mapping[str, Mapping[str, Any]]  # folder -> manifest


def keys() -> Mapping[str, Ed25519PublicKey]:
    """Return the trusted keys by fingerprint. Raises BadSignature if the file of SCANOPS_REQUIRE_SIGNED holds none."""
    file = environment.require_signed()
    assert file is not None
    found: Mapping[str, Ed25519PublicKey] = import_late("scanops.store.signatures").public_keys(file)
    return found  # by the package cryptography


def verify_signature(root: Path) -> SignedPack:
    """Return the signed contents of the pack at ``root``, checked once per process.

    Raises BadSignature or BadStoreEntry if no trusted key signed it.
    """
    return _examine_pack(root, environment.require_signed())


@functools.lru_cache(maxsize=64)
def _examine_pack(root: Path, file: Path | None) -> SignedPack:
    data, signer = import_late("scanops.store.signatures").check(root, keys())
    return SignedPack(signer, parse(data, root)["entries"])


def refusal(name: str, target: str) -> MissingKernel:
    """Return the error for a kernel that no signed pack has and that may not be built here."""
    packs = [place for place in places() if place.kind == "pack"]
    outcomes = [
        f"{place.root}: {place.unused or f'signed by {verify_signature(place.root).signer[:16]}, does not have it'}"
        for place in packs
    ]
    return MissingKernel(
        f"the kernel {name} for {target} under SCANOPS_REQUIRE_SIGNED",
        allowed="kernels of packs that a trusted key signed; none is built",
        value="\n".join(outcomes) or "no pack in SCANOPS_PACKS, none installed",
        hint=f"on the machine that packs: scanops build {name} --target {target}, then scanops pack --sign KEY.pem",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store or a pack that lookups search."""

    kind: str  # store or pack
    root: Path
    problem: ScanopsError | None  # why it cannot be used; the user's own store may be absent without one
    unused: str  # why lookups pass over it; empty for one that is used


def places() -> tuple[Place, ...]:
    """Return where lookups search, in this order: the user's store, SCANOPS_PACKS, the installed packs."""
    packs = dict.fromkeys((*environment.pack_roots(), *installed()))
    return (_place("store", environment.store_root()), *(_place("pack", root) for root in packs))


def _place(kind: str, root: Path) -> Place:
    try:
        if kind == "pack":
            check_pack(root)
        elif not check_root(root):
            return Place(kind=kind, root=root, problem=None, unused="no such folder")
        if environment.require_signed() is not None:
            if kind == "store":
                raise make_unsigned_error(root)
            verify_signature(root)
        return Place(kind=kind, root=root, problem=None, unused="")
    except ScanopsError as problem:
        return Place(kind=kind, root=root, problem=problem, unused=f"{problem.value}; {problem.hint}")


def folders_of(root: Path) -> Iterator[Path]:
    """Yield the folders below a root that have a manifest, by name."""
    for path in sorted(root.iterdir()):
        if not path.name.startswith(".") and (path / MANIFEST).is_file():
            yield path


def entries_of(root: Path) -> Iterator[Entry]:
    """Yield the entries below a root whose manifest can be read, unverified, by name."""
    for path in folders_of(root):
        with contextlib.suppress(OSError, ValueError):
            yield read_entry(path)
