"""pack.json, the contents of a pack: read and validated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanops.errors import BadStoreEntry
from scanops.files import read_file, require_form
from scanops.store.entry import DIGEST, FILES, MANIFEST

PACK = "pack.json"
PACK_SCHEMA = 2  # 1 has no cubins, and is read as well
ANY = "any"  # platform of a pack of cubins alone
SIGNATURE = "pack.json.sig"  # signs the bytes of pack.json; the only file of a pack that pack.json does not list
SIGNATURE_BYTES = 64
GROUP = "scanops.packs"  # the entry point group of packs installed as wheels
SUBFOLDER = "pack"  # folder of the pack in the package that the entry point names

# Limits that bound the memory of reading a pack from an untrusted source. A kernel takes about 1.3 KB and 50 values.
MAX_PACK_BYTES = 2**24
_MAX_PACK_VALUES = 10**6

_FACTS = {"size": range(2**63), "sha256": DIGEST}
_ENTRY = {
    "identity": DIGEST,
    "directory": re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*"),  # a plain folder name
    **dict.fromkeys(("slug", "target"), str),
    "flags": [str],
    "toolchain": dict,
    "files": {MANIFEST: {**_FACTS, "size": range(2**18)}, re.compile(r"kernel\.\w+|" + MANIFEST): _FACTS},
}
_FORM = {
    "scanops": str,
    "abi": int,
    "platform": re.compile(rf"\w+-\w+|{ANY}"),
    "targets": [str],
    "entries": [_ENTRY],
    "index": {re.compile(r"index/[0-9a-f]{2}/[0-9a-f]{64}\.json"): {**_FACTS, "size": range(2**12)}},
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
        if pack["schema"] not in range(1, PACK_SCHEMA + 1):
            raise _bad(name, f"schema 1 to {PACK_SCHEMA}", pack["schema"], "use a scanops of the pack's version")
        require_form(pack, _FORM, PACK)
        for entry in pack["entries"]:
            directory, files = entry["directory"], entry["files"]
            if not directory.endswith(f"-{entry['identity'][:16]}"):
                raise ValueError(f"'directory' of an entry is {directory!r:.80}, which does not end in its identity")
            if {*files} - {MANIFEST} not in map(set, FILES.values()):
                raise ValueError(f"'files' of {directory} are {sorted(files)!r:.80}")
    except (ValueError, RecursionError) as problem:
        allowed, hint = f"a {PACK} as `scanops pack` writes it", "fetch or unpack the pack again"
        raise _bad(name, allowed, problem, hint) from problem
    return pack


def files_of(pack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return path -> {size, sha256} of every file of a pack except pack.json and its signature."""
    listed = dict(pack["index"])
    for entry in pack["entries"]:
        listed |= {f"{entry['directory']}/{name}": facts for name, facts in entry["files"].items()}
    return listed


def _bad(name: object, allowed: str, value: object, hint: str) -> BadStoreEntry:
    return BadStoreEntry(f"read the pack {name}", allowed=allowed, value=value, hint=hint)
