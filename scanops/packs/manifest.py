"""pack.json: what is in a pack, to the last byte. docs/deployment.md has its fields.

Everything here is sorted and free of times and paths, so that the same kernels make the same pack.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import uuid
from dataclasses import MISSING, fields
from pathlib import Path, PurePosixPath
from typing import Any

from scanops._version import __version__
from scanops.artifact import ABI, platform
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.files import make_owners, open_unfollowed
from scanops.store import index
from scanops.store.entry import FILES, MANIFEST, entry_problem, file_problem, manifest_bytes
from scanops.store.fingerprint import is_true
from scanops.store.identity import request_of, store_key
from scanops.store.library import processor_problem

__all__ = [
    "PACK",
    "PACK_SCHEMA",
    "SIGNATURE",
    "SIGNATURE_BYTES",
    "files_of",
    "finish",
    "parse",
    "read",
    "read_bytes",
    "replace",
    "spec_fields",
    "verify",
]

PACK = "pack.json"
SIGNATURE = "pack.json.sig"  # packs/signing.py: of the bytes of pack.json, and the only file that it does not list
SIGNATURE_BYTES = 64
PACK_SCHEMA = 1
_TIMES = ("built", "build_seconds")  # of manifest.json; they differ from build to build
_PATH = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*(/[A-Za-z0-9_+][A-Za-z0-9_.+-]*){0,2}")
_LISTED_BYTES = 2**27  # of a pack.json; one of 10,000 kernels has a tenth of it


def finish(directory: Path) -> dict[str, Any]:
    """Make a pack of a store's folder: verify what is in it, index it, drop what builds leave behind, write pack.json.

    May be called again after entries were added. Returns pack.json. Raises BadStoreEntry for a bad entry, and for a
    folder that cannot be read, or not written where that is needed.
    """
    try:
        return _finished(directory)
    except OSError as problem:
        raise _bad(
            directory,
            "finish",
            "a folder this user can read and write, with room left",
            problem,
            "copy it to such a place",
        ) from problem


def _finished(directory: Path) -> dict[str, Any]:
    entries = []
    for path in sorted(directory.iterdir()):
        if (path / MANIFEST).is_file() and not path.name.startswith("."):
            entries.append(_entry(path))
    if not entries:
        raise _bad(directory, "finish", "a folder with at least one kernel", "none", "build kernels into it first")
    paths = sorted(path for path in (directory / "index").glob("*/*.json"))
    for path in paths:
        if not _leads_somewhere(directory, path):
            path.unlink()
    indexed = [path for path in paths if path.exists()]
    pack = {
        "schema": PACK_SCHEMA,
        "scanops": __version__,
        "abi": ABI,
        "platform": platform(),
        "targets": sorted({entry["target"] for entry in entries}),
        "entries": sorted(entries, key=lambda entry: (entry["slug"], entry["target"], entry["identity"])),
        "index": {path.relative_to(directory).as_posix(): _facts(path) for path in indexed},
    }
    text = _text(pack).encode()
    if not (directory / PACK).exists() or (directory / PACK).read_bytes() != text:
        (directory / SIGNATURE).unlink(missing_ok=True)  # it is of other bytes
        replace(directory / PACK, text)
    return pack


def read(directory: Path) -> dict[str, Any]:
    """pack.json of a pack, its form checked. Raises BadStoreEntry."""
    return parse(read_bytes(directory), directory)


def read_bytes(directory: Path) -> bytes:
    """The same as it lies there: what a signature is of. Raises BadStoreEntry."""
    try:
        with open_unfollowed(directory / PACK) as file:
            return file.read(_LISTED_BYTES)
    except OSError as problem:
        raise _bad(
            directory, "read", f"a folder with {PACK}", problem.strerror, "run `scanops pack` on it, or unpack it again"
        ) from problem


def parse(data: bytes, name: object) -> dict[str, Any]:
    """The same from bytes; ``name`` is the pack in a message."""
    again = "fetch or unpack the pack again"
    try:
        pack = json.loads(data)
        if pack["schema"] != PACK_SCHEMA:
            raise _bad(name, "read", f"schema {PACK_SCHEMA}", pack["schema"], "use a scanops of the pack's version")
        for path, facts in files_of(pack).items():
            if not (
                _PATH.fullmatch(path)
                and path not in (PACK, SIGNATURE)
                and type(facts["size"]) is int
                and facts["size"] >= 0
            ):
                raise _bad(name, "read", "plain relative paths with a size", f"{path!r}: {facts}", again)
        for entry in pack["entries"]:
            entry["identity"], entry["files"][MANIFEST]  # KeyError where there is none
        return dict(pack)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise _bad(name, "read", f"a {PACK} as `scanops pack` writes it", repr(problem), again) from problem


def files_of(pack: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Path -> size and SHA-256, of every file of a pack but pack.json and its signature."""
    listed = dict(pack["index"])
    for entry in pack["entries"]:
        listed |= {f"{entry['directory']}/{name}": facts for name, facts in entry["files"].items()}
    return listed


def verify(directory: Path, pack: dict[str, Any] | None = None) -> dict[str, Any]:
    """Check every file of a pack against pack.json, and that there is no other. Returns pack.json.

    ``pack`` is that of a caller who has checked its signature. Raises BadStoreEntry with all that is wrong.
    """
    pack = read(directory) if pack is None else pack
    listed = files_of(pack)
    problems = []
    for path, facts in sorted(listed.items()):
        problem = _link(directory, path) or file_problem(directory / path, facts)
        if problem:
            problems.append(f"{PurePosixPath(path).parent}: {problem}")
    for entry in pack["entries"]:
        problem = entry_problem(directory / entry["directory"], entry["identity"])
        problems += [f"{entry['directory']}: {problem}"] if problem else []
    if (directory / SIGNATURE).is_symlink() or _size(directory / SIGNATURE) not in (None, SIGNATURE_BYTES):
        problems.append(f"{SIGNATURE}: no signature")
    hint = "fetch or unpack the pack again; do not load from it"
    if not problems:  # as a store is that was packed, and then built into
        hint = f"if they were built there since, scanops pack {directory} -o FILE describes it anew; if not, {hint}"
    problems += [f"{path}: not in {PACK}" for path in sorted(_present(directory) - listed.keys() - {PACK, SIGNATURE})]
    if problems:
        raise _bad(
            directory,
            "verify",
            f"the files that {PACK} lists",
            "\n".join(dict.fromkeys(problems)),
            hint,
        )
    return pack


def spec_fields(spec: ScanSpec) -> dict[str, object]:
    """The fields of a spec that are not at their default."""
    plain = {field.name: getattr(spec, field.name) for field in fields(spec)}
    defaults = {field.name: field.default for field in fields(spec) if field.default is not MISSING}
    return {name: value for name, value in plain.items() if name not in defaults or value != defaults[name]}


def _entry(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        identity, target = str(manifest["identity"]), str(manifest["target"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise _bad(path, "read", "an entry with a manifest", repr(problem), f"delete {path} and build again") from None
    wrong = entry_problem(path, identity) or processor_problem((path / "kernel.so").read_bytes())
    if wrong or path.name != f"{manifest['name']}-{identity[:16]}":
        value = wrong or f"a folder called {path.name}"
        raise _bad(path, "pack", "entries that agree with their manifests", value, f"delete {path} and build again")
    if any(name in manifest for name in _TIMES):
        timeless = {name: value for name, value in manifest.items() if name not in _TIMES}
        replace(path / MANIFEST, manifest_bytes(timeless))
    spec = _spec(manifest["name"])
    if spec is not None:
        _index(path, spec, identity, target)
    return {
        "slug": manifest["name"],
        "spec": spec_fields(spec) if spec else None,
        "target": target,
        "identity": identity,
        "abi": manifest["abi"],
        "directory": path.name,
        "flags": manifest["flags"],
        "link_flags": manifest["link_flags"],
        "toolchain": manifest["toolchain"],
        "resources": manifest["resources"],
        "files": {name: _facts(path / name) for name in (*FILES, MANIFEST)},
    }


def _spec(slug: str) -> ScanSpec | None:
    try:
        return ScanSpec.parse(slug)
    except UnsupportedRequest:
        return None  # of a user's operator, or of another version


def _index(path: Path, spec: ScanSpec, identity: str, target: str) -> None:
    """Let the version of scanops that is running find the entry without rendering, if it is what it would build."""
    key = store_key(spec, target) if is_true(target) else None
    known = key and index.read(path.parent, key)
    if key and known != (identity, path.name) and request_of(spec, target).identity == identity:
        index.write(path.parent, key, identity, path.name)


def replace(path: Path, data: bytes) -> None:
    """Write a file in one step: another process may be reading."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.write_bytes(data)
        make_owners(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _leads_somewhere(directory: Path, record: Path) -> bool:
    try:
        name = str(json.loads(record.read_bytes())["directory"])
        return (directory / name / MANIFEST).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _facts(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _link(directory: Path, path: str) -> str | None:
    parts = PurePosixPath(path).parts
    for depth in range(1, len(parts) + 1):
        part = directory.joinpath(*parts[:depth])
        if part.is_symlink():
            return f"{part.name}: a symbolic link"
    return None


def _present(directory: Path) -> set[str]:
    """The files of a pack; what lies in folders with a dot belongs to builds, not to the pack."""
    found = set()
    for base, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if stat.S_ISLNK((Path(base) / name).lstat().st_mode)]
        found |= {(Path(base) / name).relative_to(directory).as_posix() for name in (*names, *linked)}
    return {path for path in found if not PurePosixPath(path).name.startswith(".")}


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _bad(name: object, verb: str, allowed: str, value: object, hint: str) -> BadStoreEntry:
    return BadStoreEntry(f"{verb} the pack {name}", allowed=allowed, value=value, hint=hint)
