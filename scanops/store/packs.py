"""Packs: folders of kernels with a pack.json, which is read and validated, made and verified.

A pack holds pack.json and the machine code of its kernels. The manifests of the kernels and the records of its index
follow from pack.json, to the byte. The sources may be there, and are not needed: no archive holds them. pack.json is
sorted and free of times and paths, so that the same kernels give the same pack. docs/deployment.md has its fields.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from scanops._version import __version__
from scanops.build_request import KERNEL_TARGET, LIBRARY, PLATFORM, request_of, sources_key
from scanops.codegen.abi import ABI
from scanops.codegen.lines import keys_for
from scanops.errors import BadStoreEntry
from scanops.files import read_file, require_form, write_owned
from scanops.store.entry import (
    DIGEST,
    FILES,
    MANIFEST,
    SOURCE,
    manifest_bytes,
    read_entry,
    require_manifest,
    spec_of,
    verify_entry,
)
from scanops.store.library import machine_problem
from scanops.store.root import FOLDER, digest_of_key, read_record, record_path, write_index

PACK = "pack.json"
PACK_SCHEMA = 4
ANY = "any"  # platform of a pack of cubins alone
SIGNATURE = "pack.json.sig"  # signs the bytes of pack.json; the only file of a pack that pack.json does not list
SIGNATURE_BYTES = 64
GROUP = "scanops.packs"  # the entry point group of installed packs
SUBFOLDER = "pack"  # folder of the pack in the package that the entry point names

# Limits that bound memory and time of reading an untrusted pack. A kernel takes about 1.3 KB and 50 values.
MAX_PACK_BYTES = 2**23
_MAX_PACK_VALUES = 400_000
_MAX_RECORDS = 16  # of the index, per kernel: several versions of scanops may have found it

_FORM = {
    "schema": int,
    "scanops": re.compile(r"[\w.+!-]{1,100}", re.ASCII),
    "abi": range(2**31),
    "platform": re.compile(rf"\w{{1,50}}-\w{{1,50}}|{ANY}", re.ASCII),
    "targets": [KERNEL_TARGET],
    "entries": {FOLDER: dict},  # folder of a kernel -> its manifest, without times
    "index": {DIGEST: FOLDER},  # SHA-256 of a key -> folder
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
        raise _bad(directory, "read", f"a folder with {PACK}", problem.strerror, hint) from problem


def parse(data: bytes, name: object) -> dict[str, Any]:
    """Parse and validate the bytes of a pack.json. Uses at most about 60 MB of memory, whatever the bytes are.

    Raises BadStoreEntry, which calls the pack ``name``, for malformed or oversized JSON, another schema, missing or
    unknown fields, values without a limit and paths outside the pack.
    """
    try:
        # An empty list takes 3 bytes of JSON and 64 bytes of memory, so values are counted before they are parsed.
        if len(data) > MAX_PACK_BYTES or sum(map(data.count, (b",", b"[", b"{"))) > _MAX_PACK_VALUES:
            raise ValueError(f"more than {MAX_PACK_BYTES} bytes or {_MAX_PACK_VALUES} values")
        pack: dict[str, Any] = json.loads(data.decode("ascii"))
        require_form(pack, {"schema": int}, PACK)
        if pack["schema"] != PACK_SCHEMA:
            raise _bad(name, "read", f"schema {PACK_SCHEMA}", pack["schema"], "use a scanops of the pack's version")
        require_form(pack, _FORM, PACK)
        if unknown := pack.keys() - _FORM.keys():
            raise ValueError(f"{PACK} has the unknown field {min(unknown)!r:.80}")
        if len(pack["index"]) > _MAX_RECORDS * len(pack["entries"]):
            raise ValueError(f"'index' has {len(pack['index'])} records of {len(pack['entries'])} kernels")
        for folder, manifest in pack["entries"].items():
            require_manifest(manifest, folder)
            if not folder.endswith(f"-{manifest['identity'][:16]}"):
                raise ValueError(f"the folder {folder!r:.80} does not end in its identity")
        if lost := {*pack["index"].values()} - pack["entries"].keys():
            raise ValueError(f"'index' leads to {min(lost)!r:.80}, which is no entry")
    except (ValueError, RecursionError) as problem:
        allowed, hint = f"a {PACK} as `scanops pack` writes it", "fetch or unpack the pack again"
        raise _bad(name, "read", allowed, problem, hint) from problem
    return pack


def files_of(pack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return path -> {size, sha256} of the machine code in a pack."""
    names = ((folder, each, FILES[each.get("form", LIBRARY)][1]) for folder, each in pack["entries"].items())
    return {f"{folder}/{name}": manifest["files"][name] for folder, manifest, name in names}


def following(pack: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, contents) of what follows from pack.json: the manifest of each kernel, each record of the index."""
    for folder, manifest in pack["entries"].items():
        yield f"{folder}/{MANIFEST}", manifest_bytes(manifest)
    for digest, folder in pack["index"].items():
        yield str(record_path(digest)), folder.encode()


def finish(directory: Path) -> dict[str, Any]:
    """Make a pack of a folder laid out as a store: verify and index its kernels, and write pack.json.

    May be called again after kernels were added. Returns the contents of pack.json. Raises BadStoreEntry for a folder
    without kernels, for a kernel that does not agree with its manifest or that other users may write, and for a folder
    that cannot be read or, where that is needed, written.
    """
    try:
        return _finish(directory)
    except OSError as problem:
        allowed = "a folder this user can read and write, with room left"
        raise _bad(directory, "finish", allowed, problem, "copy it to such a place") from problem


def verify(directory: Path, pack: dict[str, Any] | None = None) -> dict[str, Any]:
    """Check every file of a pack against pack.json, and that there are no others. Returns the contents of pack.json.

    ``pack`` is the contents of a pack.json whose signature the caller has checked. Raises BadStoreEntry that lists all
    differences.
    """
    pack = read(directory) if pack is None else pack
    problems = [*_damages(directory, pack)]
    try:
        read_file(directory / SIGNATURE, SIGNATURE_BYTES, trusted=False)[SIGNATURE_BYTES - 1]
    except FileNotFoundError:
        pass
    except (OSError, IndexError):
        problems.append(f"{SIGNATURE}: no signature")
    hint = "fetch or unpack the pack again; do not load from it"
    if not problems:  # a store that was packed and then built into
        hint = f"if these kernels were built since, scanops pack {directory} -o FILE lists them; if not, {hint}"
    listed = {
        *files_of(pack),
        *(path for path, _ in following(pack)),
        *(f"{name}/{SOURCE}" for name in pack["entries"]),
    }
    more = _present(directory) - listed - {PACK, SIGNATURE}
    problems += [f"{path}: not in {PACK}" for path in sorted(more)]
    if problems:
        raise _bad(directory, "verify", f"the files that {PACK} lists", "\n".join(dict.fromkeys(problems)), hint)
    return pack


def _damages(directory: Path, pack: dict[str, Any]) -> Iterator[str]:
    """Yield which kernels and records are not as pack.json states, or could have been written by others, and why."""
    for name, manifest in pack["entries"].items():
        found = verify_entry(directory / name, manifest["identity"], manifest_bytes(manifest))
        if isinstance(found, str):
            yield f"{name}: {found}"
    for digest, name in pack["index"].items():
        if read_record(directory, digest) != name:
            yield f"{record_path(digest)}: damaged, or leads elsewhere"


def _finish(directory: Path) -> dict[str, Any]:
    folders = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
    entries = {path.name: _manifest(path) for path in folders if (path / MANIFEST).is_file()}
    if not entries:
        raise _bad(directory, "finish", "a folder with at least one kernel", "none", "build kernels into it first")
    pack = {
        "schema": PACK_SCHEMA,
        "scanops": __version__,
        "abi": ABI,
        "platform": PLATFORM if any(map(_is_library, entries.values())) else ANY,
        "targets": sorted({manifest["target"] for manifest in entries.values()}),
        "entries": entries,
        "index": _records(directory, entries),
    }
    text = (json.dumps(pack, indent=1, sort_keys=True) + "\n").encode()
    parse(text, directory)  # a pack that nobody could read is not written
    if not (directory / PACK).exists() or (directory / PACK).read_bytes() != text:
        (directory / SIGNATURE).unlink(missing_ok=True)  # it signs other bytes
        write_owned(directory / PACK, text)
    return pack


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the kernel in a folder, from which the times are dropped."""
    try:
        found = verify_entry(path, read_entry(path).identity)
    except ValueError as problem:
        found = f"{MANIFEST}: {problem}"
    manifest: dict[str, Any] = {}
    if isinstance(found, str):
        wrong: str | None = found
    else:
        manifest, data = found.manifest, found.library_path.read_bytes()
        wrong = machine_problem(data, found)
        if path.name != (expected := f"{found.slug}-{found.identity[:16]}"):
            wrong = f"a folder that is not called {expected}"
    if wrong:
        hint = f"delete {path} and build again"
        raise _bad(path, "pack", "kernels that agree with their manifests", wrong, hint)
    timeless = {name: manifest[name] for name in manifest if name not in ("built", "build_seconds", "sha256")}
    if (path / MANIFEST).read_bytes() != (data := manifest_bytes(timeless)):
        write_owned(path / MANIFEST, data)
    return timeless


def _is_library(manifest: dict[str, Any]) -> bool:
    """Return whether a kernel is a library, which is of one platform and ABI."""
    return FILES[LIBRARY][1] in manifest["files"]


def _records(directory: Path, entries: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return digest -> folder of the index records, after replacing those that are not sound.

    A record that other users could write may lead to the wrong kernel, and a kernel is found without its record, too.
    """
    found = {}
    for path in sorted((directory / "index").glob("*/*")):
        name = read_record(directory, path.name)
        if name in entries:
            found[path.name] = str(name)
        else:
            path.unlink()
    for name, manifest in entries.items():
        spec, target, form = spec_of(manifest["name"]), manifest["target"], manifest.get("form", LIBRARY)
        several = keys_for(spec, target) if spec else ()
        keys = {record: key for key in several if (record := sources_key(key, form=form))}
        if name in [found.get(digest_of_key(record)) for record in keys]:
            continue
        for record, key in keys.items():
            if request_of(key).identities.get(form) == manifest["identity"]:
                write_index(directory, record, name)
                found[digest_of_key(record)] = name
    return found


def _present(directory: Path) -> set[str]:
    """Return the paths of all files and links of a pack; folders that begin with a dot belong to builds."""
    found = set()
    for base, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if (Path(base) / name).is_symlink()]
        found |= {(Path(base) / name).relative_to(directory).as_posix() for name in (*names, *linked)}
    return {path for path in found if not PurePosixPath(path).name.startswith(".")}


def _bad(name: object, verb: str, allowed: str, value: object, hint: str) -> BadStoreEntry:
    return BadStoreEntry(f"{verb} the pack {name}", allowed=allowed, value=value, hint=hint)


def troubles(root: Path, contents: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (why some or all kernels of the pack cannot be used, what to type)."""
    libraries = any(map(_is_library, contents["entries"].values()))
    if libraries and contents["abi"] != ABI:
        yield f"ABI {contents['abi']}, this version of scanops needs {ABI}", "build and pack it with this version"
    if libraries and contents["platform"] != PLATFORM:
        hint = "build it on such a machine, or pack cubins, which are of none: scanops precompile --builder nvrtc"
        yield f"its libraries are built for {contents['platform']}, this is {PLATFORM}", hint
    if problems := [*_damages(root, contents)]:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield problems[0] + more, f"scanops store verify {root}, then unpack it again"
