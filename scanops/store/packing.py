"""Make and verify packs: folders of kernels with a pack.json that lists every file. docs/deployment.md has its fields.

pack.json is sorted and free of times and paths, so that the same kernels give the same pack.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path, PurePosixPath
from typing import Any

from scanops._version import __version__
from scanops.artifact import ABI, CUBIN, LIBRARY, PLATFORM, planned, request_of, sources_key
from scanops.codegen.lines import situations
from scanops.codegen.spec import FIELDS, ScanSpec
from scanops.errors import BadStoreEntry
from scanops.files import open_file, opened_folder, parse_object, read_file, write_owned
from scanops.store import packs
from scanops.store.entry import FILES, MANIFEST, SOURCE, checked, difference, facts_of, read_entry, spec_of, unsafe
from scanops.store.library import cubin_problem, processor_problem
from scanops.store.packs import PACK, SIGNATURE, SIGNATURE_BYTES, files_of, following, manifest_of, parse, read
from scanops.store.root import index_record, read_index, write_index


def finish(directory: Path) -> dict[str, Any]:
    """Make a pack of a folder laid out as a store: verify and index its kernels, and write pack.json.

    May be called again after kernels were added. Returns the contents of pack.json. Raises BadStoreEntry for a folder
    without kernels, for a kernel that does not agree with its manifest or that other users may write, and for a folder
    that cannot be read or, where that is needed, written.
    """
    try:
        return _finished(directory)
    except OSError as problem:
        allowed = "a folder this user can read and write, with room left"
        raise _bad(directory, "finish", allowed, problem, "copy it to such a place") from problem


def verify(directory: Path, pack: dict[str, Any] | None = None) -> dict[str, Any]:
    """Check every file of a pack against pack.json, and that there are no others. Returns the contents of pack.json.

    ``pack`` is the contents of a pack.json whose signature the caller has checked. Raises BadStoreEntry that lists all
    differences.
    """
    pack = read(directory) if pack is None else pack
    listed = files_of(pack) | {path: facts_of(text) for path, text in following(pack)}
    problems = []
    for path, facts in sorted(listed.items()):
        *folders, name = PurePosixPath(path).parts
        try:
            with opened_folder(directory, *folders) as folder, open_file(name, folder) as file:
                problem = difference(name, file, facts)
        except OSError as error:
            problem = f"{name}: {error.strerror}"
        problems += [f"{'/'.join(folders)}: {problem}"] if problem else []
    for entry in pack["entries"]:
        found = checked(directory / entry["directory"], entry["identity"])
        problems += [f"{entry['directory']}: {found}"] if isinstance(found, str) else []
    try:
        read_file(directory / SIGNATURE, SIGNATURE_BYTES, trusted=False)[SIGNATURE_BYTES - 1]
    except FileNotFoundError:
        pass
    except (OSError, IndexError):
        problems.append(f"{SIGNATURE}: no signature")
    hint = "fetch or unpack the pack again; do not load from it"
    if not problems:  # a store that was packed and then built into
        hint = f"if these kernels were built since, scanops pack {directory} -o FILE lists them; if not, {hint}"
    sources = {f"{entry['directory']}/{SOURCE}" for entry in pack["entries"]}
    more = _present(directory) - listed.keys() - sources - {PACK, SIGNATURE}
    problems += [f"{path}: not in {PACK}" for path in sorted(more)]
    if problems:
        raise _bad(directory, "verify", f"the files that {PACK} lists", "\n".join(dict.fromkeys(problems)), hint)
    return pack


def spec_fields(spec: ScanSpec) -> dict[str, object]:
    """Return the fields of a spec that differ from their defaults."""
    values = ((field, getattr(spec, field.name)) for field in FIELDS)
    return {field.name: value for field, value in values if field.default is MISSING or value != field.default}


def _finished(directory: Path) -> dict[str, Any]:
    folders = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
    entries = [_entry(path) for path in folders if (path / MANIFEST).is_file()]
    if not entries:
        raise _bad(directory, "finish", "a folder with at least one kernel", "none", "build kernels into it first")
    pack = {
        "schema": packs.PACK_SCHEMA,
        "scanops": __version__,
        "abi": ABI,
        "platform": PLATFORM if any(map(_is_library, entries)) else packs.ANY,
        "targets": sorted({entry["target"] for entry in entries}),
        "entries": sorted(entries, key=lambda entry: (entry["slug"], entry["target"], entry["identity"])),
        "index": _records(directory, entries),
    }
    text = (json.dumps(pack, indent=1, sort_keys=True) + "\n").encode()
    parse(text, directory)  # a pack that nobody could read is not written
    if not (directory / PACK).exists() or (directory / PACK).read_bytes() != text:
        (directory / SIGNATURE).unlink(missing_ok=True)  # it signs other bytes
        write_owned(directory / PACK, text)
    return pack


def _entry(path: Path) -> dict[str, Any]:
    """Return the entry of pack.json for a kernel's folder, after dropping the times from its manifest."""
    try:
        found = checked(path, read_entry(path).identity)
    except (ValueError, KeyError) as problem:
        found = f"{MANIFEST}: {problem!r}"
    manifest: dict[str, Any] = {}
    if isinstance(found, str):
        wrong: str | None = found
    else:
        manifest, data = found.manifest, found.library_path.read_bytes()
        wrong = cubin_problem(data, found.target) if found.form == CUBIN else processor_problem(data)
    name = str(manifest.get("name"))
    if wrong is None and path.name != (expected := f"{name}-{manifest['identity'][:16]}"):
        wrong = f"a folder that is not called {expected}"
    if wrong:
        hint = f"delete {path} and build again"
        raise _bad(path, "pack", "kernels that agree with their manifests", wrong, hint)
    spec = spec_of(name)
    repeated = {each: manifest[each] for each in packs.REPEATED if each in manifest}
    entry = {"slug": name, "spec": spec_fields(spec) if spec else None, "directory": path.name, **repeated}
    if (path / MANIFEST).read_bytes() != (timeless := manifest_of(entry)):
        write_owned(path / MANIFEST, timeless)
    return entry


def _is_library(entry: dict[str, Any]) -> bool:
    """Return whether an entry of pack.json is a library, which is of one platform and ABI."""
    return FILES[LIBRARY][1] in entry["files"]


def _records(directory: Path, entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return path -> directory of the index records, after replacing those that are not sound.

    A record that other users could write may lead to the wrong kernel, and a kernel is found without its record, too.
    """
    identities = {entry["directory"]: entry["identity"] for entry in entries}
    for path in (directory / "index").glob("*/*.json"):
        if _led_to(path, identities) is None:
            path.unlink()
    for entry in entries:
        spec, target, wanted = spec_of(entry["slug"]), entry["target"], (entry["identity"], entry["directory"])
        if spec is None:
            continue
        form = LIBRARY if _is_library(entry) else CUBIN
        keys = {few: sources_key(spec, target, few=few, form=form) for few in situations(spec, planned(target))}
        if wanted in [read_index(directory, key) for key in keys.values() if key]:
            continue
        for few, key in keys.items():
            built = request_of(spec, target, few=few).identities if key else {}  # by this version
            if key and built.get(form) == entry["identity"]:
                write_index(directory, key, *wanted)
    paths = sorted((directory / "index").glob("*/*.json"))
    return {path.relative_to(directory).as_posix(): str(_led_to(path, identities)) for path in paths}


def _led_to(path: Path, identities: dict[str, str]) -> str | None:
    """Return the folder that a sound index record leads to; None for any other."""
    try:
        data = read_file(path, 2**12)
        entry = str(parse_object(data)["directory"])
        return entry if data == index_record(path.stem, identities[entry], entry) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
    libraries = any(map(_is_library, contents["entries"]))
    if libraries and contents["abi"] != ABI:
        yield f"ABI {contents['abi']}, this version of scanops needs {ABI}", "build and pack it with this version"
    if libraries and contents["platform"] != PLATFORM:
        hint = "build it on such a machine, or pack cubins, which are of none: scanops precompile --builder nvrtc"
        yield f"its libraries are built for {contents['platform']}, this is {PLATFORM}", hint
    places = [PurePosixPath(path) for path in files_of(contents)]
    found = ((place.parent.name, unsafe(root / place.parent, (place.name, MANIFEST))) for place in places)
    problems = [f"{name}: {problem}" for name, problem in found if problem]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield problems[0] + more, f"scanops store verify {root}, then unpack it again"
