"""Packs as layers below the user's store: which are searched, which of their kernels are used, what all places hold.

A pack is a folder laid out as a store is. It is searched when the store has no answer, read and never written. The same
checks of owner, mode and links hold as for the store (scanops/files.py), except that root may own the folder.

With SCANOPS_REQUIRE_SIGNED only kernels of packs that a trusted key signed are loaded, and none is built. The signature
of a pack is checked once per process. From then on the signed pack.json decides what each manifest and each index
record must be, and the manifest decides what the library must be.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops import environment
from scanops.errors import BadSignature, BadStoreEntry, MissingKernel, ScanopsError
from scanops.store.entry import MANIFEST, Entry, checked, read_entry
from scanops.store.packs import GROUP, SUBFOLDER, manifest_of, parse
from scanops.store.root import check_root, read_index

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


_LOG = logging.getLogger("scanops")


class Layer:
    """One pack. Raises BadStoreEntry where its root is missing or not safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        check_pack(root)
        self._refused: set[str] = set()  # folders that were refused: logged once each
        self._folders: dict[str, str] | None = None  # first 16 digits of an identity -> its folder

    def find(self, identity: str, name: str | None = None) -> Entry | None:
        """Return the verified entry, or None. ``name`` is its folder where the caller knows it."""
        if name is None:
            if self._folders is None:  # a pack does not change, so one listing serves the process
                with os.scandir(self.root) as listing:
                    self._folders = {item.name[-16:]: item.name for item in listing if item.name[-17:-16] == "-"}
            name = self._folders.get(identity[:16])
        if name is None:
            return None
        found = usable_entry(self.root / name, identity)
        if isinstance(found, Entry):
            return found
        self._refuse(name, f"pack entry {self.root / name} is not used: {found}")
        return None

    def indexed(self, key: str) -> tuple[str, str] | None:
        """Return (identity, folder name) that the pack's index has for ``key``, or None."""
        if environment.require_signed() is None:
            return read_index(self.root, key)
        try:
            return read_index(self.root, key, vouched(self.root).index)
        except (BadSignature, BadStoreEntry) as untrusted:
            self._refuse("", f"pack {self.root} is not used: {untrusted.value}")
            return None

    def _refuse(self, name: str, words: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            verify = f"`scanops store verify {self.root}` checks all"
            _LOG.warning("%s; %s (others may write it? chmod -R go-w)", words, verify)


def check_pack(root: Path) -> None:
    """Raise BadStoreEntry for the root of a pack that is missing or not safe."""
    if not check_root(root, system=True):
        raise BadStoreEntry(
            f"use the pack {root}",
            allowed="a folder that `scanops unpack` has made, or `scanops precompile`",
            value="no such folder",
            hint="correct SCANOPS_PACKS, or unset it",
        )


def searched() -> Iterator[Layer]:
    """Yield the packs of ``SCANOPS_PACKS``, in its order, then the installed ones.

    Installed packs are looked for when it is their turn: asking every distribution takes longer than the rest of a
    lookup.
    """
    chosen = environment.pack_roots() if environment.given("SCANOPS_PACKS") else ()
    yield from [_layer(root) for root in dict.fromkeys(chosen)]
    yield from [_layer(root) for root in installed() if root not in chosen]


_layer = functools.cache(Layer)


@functools.cache
def installed() -> tuple[Path, ...]:
    """Return the folders of the packs installed by pip, sorted by entry point name. Runs none of their code."""
    from importlib.metadata import entry_points  # 10 ms where torch has not imported it

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
        return checked(directory, identity)
    try:
        pack = vouched(directory.parent)
    except (BadSignature, BadStoreEntry) as untrusted:
        return str(untrusted.value)
    entry = pack.entries.get(identity)
    if entry is None or entry["directory"] != directory.name:
        return "not in the pack.json that was signed"
    return checked(directory, identity, manifest_of(entry), pack.signer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """The signed contents of a pack whose signature is valid."""

    signer: str  # fingerprint of the key
    entries: Mapping[str, Mapping[str, Any]]  # identity -> entry of pack.json
    index: Mapping[str, str]  # path of an index record -> the folder that it leads to


def keys() -> Mapping[str, Ed25519PublicKey]:
    """Return the trusted keys by fingerprint. Raises BadSignature if the file of SCANOPS_REQUIRE_SIGNED holds none."""
    from scanops.store.signatures import public_keys  # needs the package cryptography

    file = environment.require_signed()
    assert file is not None
    return public_keys(file)


def vouched(root: Path) -> Vouched:
    """Return the signed contents of the pack at ``root``, checked once per process.

    Raises BadSignature or BadStoreEntry if no trusted key signed it.
    """
    keys()  # a fault of the key file is no fault of the pack
    found = _examined(root, environment.require_signed())
    if isinstance(found, Vouched):
        return found
    raise found


@functools.lru_cache(maxsize=64)
def _examined(root: Path, file: Path | None) -> Vouched | BadSignature | BadStoreEntry:
    from scanops.store.signatures import check

    try:
        data, signer = check(root, keys())
        pack = parse(data, root)
    except (BadSignature, BadStoreEntry) as problem:
        return problem
    entries = {entry["identity"]: entry for entry in pack["entries"]}
    return Vouched(signer=signer, entries=entries, index=pack["index"])


def unsigned(root: Path) -> BadSignature:
    """Return the error for kernels of a store, which no key signs."""
    return BadSignature(
        f"use the store {root}",
        allowed="signed packs alone (SCANOPS_REQUIRE_SIGNED)",
        value="a store, whose kernels nobody signed",
        hint="name packs in SCANOPS_PACKS, or unset SCANOPS_REQUIRE_SIGNED",
    )


def refusal(name: str, target: str, roots: Iterable[Path]) -> MissingKernel:
    """Return the error for a kernel that no signed pack at ``roots`` has and that may not be built here."""
    outcomes = []
    for root in roots:
        try:
            outcomes.append(f"{root}: signed by {vouched(root).signer[:16]}, does not have it")
        except (BadSignature, BadStoreEntry) as problem:
            outcomes.append(f"{root}: {problem.value}")
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
                raise unsigned(root)
            vouched(root)
        return Place(kind=kind, root=root, problem=None, unused="")
    except ScanopsError as problem:
        return Place(kind=kind, root=root, problem=problem, unused=f"{problem.value}; {problem.hint}")


def rows() -> list[tuple[Place, Entry]]:
    """Return every kernel of every place that can be used, unverified, in the order of lookups, then by name."""
    used = [place for place in places() if not place.unused]
    return [(place, entry) for place in used for entry in entries_of(place.root)]


def entries_of(root: Path) -> Iterator[Entry]:
    """Yield the entries below a root whose manifest can be read, unverified, by name."""
    for path in sorted(root.iterdir()):
        if not path.name.startswith(".") and (path / MANIFEST).is_file():
            try:
                yield read_entry(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue
