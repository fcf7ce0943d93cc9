"""One entry of a store: a folder with kernel.cu, kernel.so and manifest.json, which describes the other two."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops.artifact import ABI, LINK_FLAGS, SCHEMA, Resources
from scanops.files import (
    make_owners,
    open_trusted,
    open_unfollowed,
    opened_folder,
    parse_object,
    read_bounded,
    read_trusted,
    synced,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from scanops.artifact import BuildReport, BuildRequest

__all__ = [
    "FILES",
    "MANIFEST",
    "Entry",
    "checked",
    "data_problem",
    "entry_problem",
    "file_problem",
    "manifest_bytes",
    "open_library",
    "read_entry",
    "unsafe",
    "write_manifest",
]

FILES = ("kernel.cu", "kernel.so")
MANIFEST = "manifest.json"
_MANIFEST_BYTES = 1 << 20  # at most; a manifest has about 2,000
_RESOURCES = frozenset(field.name for field in fields(Resources))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kernel in a store or a pack."""

    directory: Path  # holds the three files
    identity: str  # 64 hex digits
    manifest: dict[str, Any]  # the contents of manifest.json
    signer: str | None = None  # fingerprint of the key whose signature vouches for the manifest

    @property
    def library_path(self) -> Path:
        """Path of the shared library."""
        return self.directory / "kernel.so"

    @property
    def source_path(self) -> Path:
        """Path of the source that the library was built from."""
        return self.directory / "kernel.cu"

    @property
    def resources(self) -> Resources | None:
        """Registers, shared memory and spills; None for a kernel built for the CPU."""
        found = self.manifest["resources"]
        return Resources(**found) if found else None

    @property
    def build_seconds(self) -> float:
        """Wall time of the build in seconds; 0 in a pack, which keeps no times."""
        return float(self.manifest.get("build_seconds", 0.0))

    def states(self, spec: str | None, target: str | None) -> bool:
        """Return whether the manifest names this spec (its slug) and target; None stands for any."""
        asked = {"name": spec, "target": target}
        return all(value is None or self.manifest[field] == value for field, value in asked.items())


def read_entry(directory: Path, data: bytes | None = None, *, signer: str | None = None) -> Entry:
    """Return the entry in ``directory``, unverified. Raises OSError, ValueError or KeyError for a bad manifest.

    ``data`` is the manifest of a caller who has checked it, ``signer`` the key that vouches for it.
    """
    if data is None:
        with open_unfollowed(directory / MANIFEST) as file:
            data = read_bounded(file, _MANIFEST_BYTES)
    manifest = parse_object(data)
    return Entry(directory=directory, identity=str(manifest["identity"]), manifest=manifest, signer=signer)


def entry_problem(directory: Path, identity: str) -> str | None:
    """Return what is wrong with the entry that should be ``identity``; None when manifest and files agree."""
    found = checked(directory, identity)
    return found if isinstance(found, str) else None


def checked(directory: Path, identity: str) -> Entry | str:
    """Return the entry that should be ``identity``, or what is wrong with it.

    Owner and mode of the root, the entry's folder and its files are checked on the open descriptors: nobody but this
    user or root may have written them. Manifest and files must agree in schema, identity, size and SHA-256.
    """
    try:
        with _opened(directory) as folder:
            try:
                data = read_trusted(MANIFEST, _MANIFEST_BYTES, folder)
            except OSError as problem:
                return f"{MANIFEST}: {problem.strerror}"
            manifest = parse_object(data)
            if manifest["schema"] != SCHEMA:
                return f"schema {manifest['schema']!r} instead of {SCHEMA}"
            if manifest["identity"] != identity:
                return "another identity"
            if data != _sealed(data[: -len(_seal(b""))]):
                return f"{MANIFEST}: SHA-256 differs"
            _require_fields(manifest)
            for name in FILES:
                with open_trusted(name, folder) as file:
                    wrong = _problem(name, file, manifest["files"][name])
                if wrong:
                    return wrong
        return Entry(directory=directory, identity=identity, manifest=manifest)
    except OSError as problem:
        return "a symbolic link" if directory.is_symlink() else f"{directory.name}: {problem.strerror}"
    except (ValueError, KeyError, TypeError) as problem:
        return f"{MANIFEST}: unreadable ({problem!r})"


def unsafe(directory: Path) -> str | None:
    """Return why others could have changed an entry; None when only this user or root could. Reads no bytes."""
    try:
        with _opened(directory) as folder:
            for name in (*FILES, MANIFEST):
                try:
                    open_trusted(name, folder).close()
                except OSError as problem:
                    return f"{name}: {problem.strerror}"
        return None
    except OSError as problem:
        return "a symbolic link" if directory.is_symlink() else f"{directory.name}: {problem.strerror}"


@contextlib.contextmanager
def open_library(entry: Entry) -> Iterator[BinaryIO]:
    """Open kernel.so, whose size and SHA-256 are those of the manifest, for a ``with`` block.

    Raises OSError for a file, a folder or a root that others could have changed, ValueError for other bytes.
    """
    with _opened(entry.directory) as folder, open_trusted("kernel.so", folder) as file:
        wrong = _problem("kernel.so", file, entry.manifest["files"]["kernel.so"])
        if wrong:
            raise ValueError(wrong)
        yield file


def file_problem(path: Path, expected: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a file; None when size and SHA-256 are as ``expected``."""
    try:
        with open_unfollowed(path) as file:
            return _problem(path.name, file, expected)
    except OSError as problem:
        return f"{path.name}: {problem.strerror}"


def data_problem(name: str, data: bytes, expected: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the bytes of the file ``name``; None when size and SHA-256 are as ``expected``."""
    return _difference(name, len(data), hashlib.sha256(data).hexdigest(), expected)


def write_manifest(directory: Path, request: BuildRequest, identity: str, report: BuildReport) -> None:
    """Describe the files in ``directory`` and wait until all of it is on disk. No paths are recorded."""
    manifest = {
        "schema": SCHEMA,
        "identity": identity,
        "name": request.name,
        "target": request.target,
        "flags": list(request.flags),
        "link_flags": list(LINK_FLAGS),
        "abi": ABI,
        "toolchain": report.toolchain,
        "resources": asdict(report.resources) if report.resources else None,
        "build_seconds": round(report.seconds, 3),
        "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {name: _facts(directory / name) for name in FILES},
    }
    (directory / MANIFEST).write_bytes(manifest_bytes(manifest))
    for path in (*(directory / name for name in FILES), directory / MANIFEST, directory):
        make_owners(path)
        synced(path)


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """Return manifest.json: JSON whose last field is the SHA-256 of all bytes before its value's quote."""
    fields = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(fields, indent=2, sort_keys=True).removesuffix("\n}")
    return _sealed(f'{text},\n  "sha256": '.encode())


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """The entry's folder, opened from its root: a root may be reached by a symbolic link, an entry may not."""
    with opened_folder(directory.parent, follow=True) as root, opened_folder(directory.name, root) as folder:
        yield folder


def _problem(name: str, file: BinaryIO, expected: Mapping[str, Any]) -> str | None:
    """What is wrong with an open file; reads no more than ``expected`` and a megabyte, and keeps none of it."""
    digest, size = hashlib.sha256(), 0
    while size <= expected["size"] and (chunk := file.read(min(1 << 20, expected["size"] + 1 - size))):
        digest.update(chunk)
        size += len(chunk)
    if size > expected["size"]:
        size = os.fstat(file.fileno()).st_size
    return _difference(name, size, digest.hexdigest(), expected)


def _difference(name: str, size: int, digest: str, expected: Mapping[str, Any]) -> str | None:
    if size != expected["size"]:
        return f"{name}: {size} bytes instead of {expected['size']}"
    return None if digest == expected["sha256"] else f"{name}: SHA-256 differs"


def _require_fields(manifest: dict[str, Any]) -> None:
    """Raise KeyError or TypeError unless everything that is read of a manifest later is there."""
    resources = manifest["resources"]
    if not (isinstance(manifest["name"], str) and isinstance(manifest["target"], str)):
        raise TypeError("name and target must be strings")
    if resources is not None and not _RESOURCES.issuperset(resources):
        raise TypeError(f"resources: {sorted(set(resources) - _RESOURCES)}")
    for name in ("abi", "flags", "link_flags", "toolchain"):
        manifest[name]
    for name in FILES:
        if type(manifest["files"][name]["size"]) is not int:
            raise TypeError(f"size of {name}")


def _sealed(head: bytes) -> bytes:
    return head + _seal(head)


def _seal(head: bytes) -> bytes:
    return f'"{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()


def _facts(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
