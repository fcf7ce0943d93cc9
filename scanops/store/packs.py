"""pack.json, the contents of a pack: read and validated; and the files of a pack that follow from it.

A pack holds pack.json and the machine code of its kernels. The manifests of the kernels and the records of its index
follow from pack.json, to the byte. The sources may be there, and are not needed: no archive holds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from scanops.artifact import LIBRARY, SCHEMA
from scanops.errors import BadStoreEntry
from scanops.files import read_file, require_form
from scanops.store.entry import DIGEST, FILES, MANIFEST, launch_of, manifest_bytes
from scanops.store.root import index_record

PACK = "pack.json"
PACK_SCHEMA = 3
ANY = "any"  # platform of a pack of cubins alone
SIGNATURE = "pack.json.sig"  # signs the bytes of pack.json; the only file of a pack that pack.json does not list
SIGNATURE_BYTES = 64
GROUP = "scanops.packs"  # the entry point group of installed packs
SUBFOLDER = "pack"  # folder of the pack in the package that the entry point names

# Limits that bound the memory of reading a pack from an untrusted source. A kernel takes about 1.3 KB and 50 values.
MAX_PACK_BYTES = 2**24
_MAX_PACK_VALUES = 10**6

_FACTS = {"size": range(2**63), "sha256": DIGEST}
_FOLDER = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")  # a plain name
_ENTRY = {
    "identity": DIGEST,
    "directory": _FOLDER,
    **dict.fromkeys(("slug", "target"), str),
    "flags": [str],
    "toolchain": {re.compile(r"\w+"): str},
    "files": {re.compile(r"kernel\.\w+"): _FACTS},
}
_RESOURCES = {re.compile(r"\w+"): int}
# Fields of a manifest that an entry repeats, as far as the manifest has them; its name is the entry's slug
REPEATED = ("identity", "target", "flags", "toolchain", "resources", "files", "form", "launch", "abi", "link_flags")
_FORM = {
    "scanops": str,
    "abi": int,
    "platform": re.compile(rf"\w+-\w+|{ANY}"),
    "targets": [str],
    "entries": [_ENTRY],
    "index": {re.compile(r"index/[0-9a-f]{2}/[0-9a-f]{64}\.json"): _FOLDER},  # path of a record -> directory
}


def read(directory: Path) -> dict[str, Any]:
    """Return the validated contents of ``directory``/pack.json. Raises BadStoreEntry."""
    return parse(read_bytes(directory), directory)


def read_bytes(directory: Path) -> bytes:
    """Return the bytes of ``directory``/pack.json, which its signature signs. Raises BadStoreEntry."""
    try:
        return read_file(directory / PACK, MAX_PACK_BYTES, trusted=False)
    except OSError as problem:
        hint = "run `scanops pack` on it, or unpack it again"
        raise _bad(directory, f"a folder with {PACK}", problem.strerror, hint) from problem


def parse(data: bytes, name: object) -> dict[str, Any]:
    """Parse and validate the bytes of a pack.json. Uses at most about 130 MB of memory, whatever the bytes are.

    Raises BadStoreEntry, which calls the pack ``name``, for malformed or oversized JSON, another schema, missing fields
    and paths outside the pack.
    """
    try:
        # An empty list takes 3 bytes of JSON and 64 bytes of memory, so the number of values is limited, too.
        if len(data) > MAX_PACK_BYTES or sum(map(data.count, (b",", b"[", b"{"))) > _MAX_PACK_VALUES:
            raise ValueError(f"more than {MAX_PACK_BYTES} bytes or {_MAX_PACK_VALUES} values")
        pack: dict[str, Any] = json.loads(data.decode("ascii"))
        require_form(pack, {"schema": int}, PACK)
        if pack["schema"] != PACK_SCHEMA:
            raise _bad(name, f"schema {PACK_SCHEMA}", pack["schema"], "use a scanops of the pack's version")
        require_form(pack, _FORM, PACK)
        for entry in pack["entries"]:
            directory, files = entry["directory"], entry["files"]
            if not directory.endswith(f"-{entry['identity'][:16]}"):
                raise ValueError(f"'directory' of an entry is {directory!r:.80}, which does not end in its identity")
            form, resources = entry.get("form", LIBRARY), entry.get("resources") or {}
            if {*files} != {*FILES.get(form, ())}:
                raise ValueError(f"'files' of {directory} are {sorted(files)!r:.80}")
            require_form(resources, {}, f"'resources' of {directory}")
            numbers = {each: value for each, value in resources.items() if value is not None}
            require_form(numbers, _RESOURCES, f"'resources' of {directory}")
            launch_of(entry)
        if unknown := {*pack["index"].values()} - {entry["directory"] for entry in pack["entries"]}:
            raise ValueError(f"'index' leads to {min(unknown)!r:.80}, which is no entry")
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        allowed, hint = f"a {PACK} as `scanops pack` writes it", "fetch or unpack the pack again"
        raise _bad(name, allowed, problem, hint) from problem
    return pack


def files_of(pack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return path -> {size, sha256} of the machine code in a pack."""
    names = [(entry, FILES[entry.get("form", LIBRARY)][1]) for entry in pack["entries"]]
    return {f"{entry['directory']}/{name}": entry["files"][name] for entry, name in names}


def following(pack: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, contents) of what follows from pack.json: the manifest of each kernel, each record of the index."""
    for entry in pack["entries"]:
        yield f"{entry['directory']}/{MANIFEST}", manifest_of(entry)
    identities = {entry["directory"]: entry["identity"] for entry in pack["entries"]}
    for path, directory in pack["index"].items():
        yield path, index_record(PurePosixPath(path).stem, identities[directory], directory)


def manifest_of(entry: Mapping[str, Any]) -> bytes:
    """Return the manifest.json of an entry of pack.json."""
    repeated = {name: entry[name] for name in REPEATED if name in entry}
    return manifest_bytes({"schema": SCHEMA, "name": entry["slug"], **repeated})


def _bad(name: object, allowed: str, value: object, hint: str) -> BadStoreEntry:
    return BadStoreEntry(f"read the pack {name}", allowed=allowed, value=value, hint=hint)
