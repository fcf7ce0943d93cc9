"""Packs as a look-up reads them: the packs that are installed as wheels, and the validated contents of pack.json."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops.errors import BadStoreEntry
from scanops.files import open_unfollowed
from scanops.store.entry import FILES, MANIFEST

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "MAX_PACK_BYTES", "PACK", "PACK_SCHEMA", "SIGNATURE", "SIGNATURE_BYTES", "SUBFOLDER"]
__all__ += ["files_of", "installed", "parse", "read", "read_bytes"]

PACK = "pack.json"
PACK_SCHEMA = 1
SIGNATURE = "pack.json.sig"  # signs the bytes of pack.json; the only file of a pack that pack.json does not list
SIGNATURE_BYTES = 64
GROUP = "scanops.packs"  # the entry point group of packs installed as wheels
SUBFOLDER = "pack"  # folder of the pack in the package that the entry point names

# Limits that bound the memory of reading a pack from an untrusted source. A kernel takes about 1.3 KB and 50 values.
MAX_PACK_BYTES = 2**24
_MAX_PACK_VALUES = 10**6
_MAX_MANIFEST_BYTES = 2**18
_MAX_RECORD_BYTES = 2**12

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLATFORM = re.compile(r"\w+-\w+")
_DIRECTORY = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")
_RECORD = re.compile(r"index/[0-9a-f]{2}/[0-9a-f]{64}\.json")
_PACK_FIELDS = {"scanops": str, "abi": int, "platform": str, "targets": list, "entries": list, "index": dict}
_ENTRY_FIELDS = {
    **dict.fromkeys(("slug", "target", "identity", "directory"), str),
    **dict.fromkeys(("flags", "link_flags"), list),
    **dict.fromkeys(("toolchain", "files"), dict),
    "abi": int,
}
_AGAIN = "fetch or unpack the pack again"
_LOG = logging.getLogger("scanops")


@functools.cache
def installed() -> tuple[Path, ...]:
    """Return the folders of the packs installed as wheels, sorted by entry point name. Runs none of their code."""
    found = []
    for point in sorted(_entry_points(), key=lambda point: (point.name, point.value)):
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


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import distributions, entry_points  # 10 ms where torch has not imported it

    try:
        return list(entry_points(group=GROUP))
    except (ValueError, TypeError, AttributeError):  # raised for all distributions if the metadata of one is malformed
        found = []
    for distribution in distributions():
        try:
            found += [point for point in distribution.entry_points if point.group == GROUP]
        except (ValueError, TypeError, AttributeError) as problem:
            _LOG.warning("ignoring malformed entry points in %s: %s", getattr(distribution, "_path", "?"), problem)
    return found


def read(directory: Path) -> dict[str, Any]:
    """Return the validated contents of ``directory``/pack.json. Raises BadStoreEntry."""
    return parse(read_bytes(directory), directory)


def read_bytes(directory: Path) -> bytes:
    """Return the bytes of ``directory``/pack.json, which its signature signs. Raises BadStoreEntry."""
    try:
        with open_unfollowed(directory / PACK) as file:
            return file.read(MAX_PACK_BYTES + 1)
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
        pack = json.loads(data.decode("ascii"))
        schema = _fields(pack, {"schema": int}, PACK)["schema"]
        if schema != PACK_SCHEMA:
            raise _bad(name, f"schema {PACK_SCHEMA}", schema, "use a scanops of the pack's version")
        return _validated(pack)
    except (ValueError, RecursionError) as problem:
        raise _bad(name, f"a {PACK} as `scanops pack` writes it", problem, _AGAIN) from problem


def files_of(pack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return path -> {size, sha256} of every file of a pack except pack.json and its signature."""
    listed = dict(pack["index"])
    for entry in pack["entries"]:
        listed |= {f"{entry['directory']}/{name}": facts for name, facts in entry["files"].items()}
    return listed


def _validated(pack: dict[str, Any]) -> dict[str, Any]:
    """Return ``pack``. Raises ValueError for the first field that is not as `scanops pack` writes it."""
    _fields(pack, _PACK_FIELDS, PACK)
    _strings(pack["targets"], "targets")
    if not _PLATFORM.fullmatch(pack["platform"]):
        raise ValueError(f"platform {pack['platform']!r:.80}")
    for entry in pack["entries"]:
        _fields(entry, _ENTRY_FIELDS, "an entry")
        identity, directory, files = entry["identity"], entry["directory"], entry["files"]
        if not _DIGEST.fullmatch(identity):
            raise ValueError(f"the identity {identity!r:.80} is no SHA-256")
        if not _DIRECTORY.fullmatch(directory) or not directory.endswith(f"-{identity[:16]}"):
            raise ValueError(f"{directory!r:.80} is no plain folder name that ends in its identity")
        _strings(entry["flags"] + entry["link_flags"], "flags")
        if set(files) != {*FILES, MANIFEST}:
            raise ValueError(f"the files of {directory} are {sorted(files)!r:.80}")
        for file, facts in files.items():
            _file(f"{directory}/{file}", facts, _MAX_MANIFEST_BYTES if file == MANIFEST else None)
    for path, facts in pack["index"].items():
        if not _RECORD.fullmatch(path):
            raise ValueError(f"{path!r:.80} is no plain relative path of an index record")
        _file(path, facts, _MAX_RECORD_BYTES)
    return pack


def _file(path: str, facts: object, most: int | None) -> None:
    found = _fields(facts, {"size": int, "sha256": str}, path)
    if found["size"] < 0 or (most is not None and found["size"] > most) or not _DIGEST.fullmatch(found["sha256"]):
        raise ValueError(f"the size or the SHA-256 of {path}: {facts!r:.160}")


def _fields(value: object, kinds: Mapping[str, type], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object: {value!r:.80}")
    for name, kind in kinds.items():
        if type(value.get(name)) is not kind:
            found = f"is {value[name]!r:.80}" if name in value else "is missing"
            raise ValueError(f"{name!r} of {where} {found}")
    return value


def _strings(values: list[object], where: str) -> None:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{where} are not all strings: {values!r:.80}")


def _bad(name: object, allowed: str, value: object, hint: str) -> BadStoreEntry:
    return BadStoreEntry(f"read the pack {name}", allowed=allowed, value=value, hint=hint)
