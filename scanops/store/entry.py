"""One entry of the store: three files, of which manifest.json describes the other two."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops.artifact import ABI, LINK_FLAGS, SCHEMA, Resources
from scanops.store.files import file_problem, make_owners, open_unfollowed

if TYPE_CHECKING:
    from scanops.artifact import BuildReport, BuildRequest

__all__ = ["FILES", "MANIFEST", "Entry", "checked", "entry_problem", "manifest_bytes", "read_entry", "write_manifest"]

FILES = ("kernel.cu", "kernel.so")
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kernel in the store."""

    directory: Path  # holds the three files
    identity: str  # 64 hex digits
    manifest: dict[str, Any]  # manifest.json as it is
    signer: str | None = None  # the key whose signature vouches for the manifest, by its fingerprint

    @property
    def library_path(self) -> Path:
        return self.directory / "kernel.so"

    @property
    def source_path(self) -> Path:
        return self.directory / "kernel.cu"

    @property
    def resources(self) -> Resources | None:
        """Registers and the like, None for a kernel built for the CPU."""
        found = self.manifest["resources"]
        return Resources(**found) if found else None

    @property
    def build_seconds(self) -> float:
        """What its build took; 0 in a pack, which keeps no times."""
        return float(self.manifest.get("build_seconds", 0.0))


def read_entry(directory: Path, data: bytes | None = None, *, signer: str | None = None) -> Entry:
    """The entry in ``directory``, unverified. Raises OSError, ValueError or KeyError for a bad manifest.

    ``data`` is the manifest's for a caller who has checked it, ``signer`` the key that vouches for it.
    """
    manifest = json.loads((directory / MANIFEST).read_bytes() if data is None else data)
    return Entry(directory=directory, identity=manifest["identity"], manifest=manifest, signer=signer)


def entry_problem(directory: Path, identity: str) -> str | None:
    """What is wrong with the entry that should be ``identity``; None when manifest and files agree."""
    found = checked(directory, identity)
    return found if isinstance(found, str) else None


def checked(directory: Path, identity: str) -> Entry | str:
    """The entry that should be ``identity`` when manifest and files agree, else what is wrong with it."""
    try:
        if directory.is_symlink():
            return "a symbolic link"
        with open_unfollowed(directory / MANIFEST) as file:
            data = file.read()
        manifest = json.loads(data)
        if manifest["schema"] != SCHEMA:
            return f"schema {manifest['schema']!r} instead of {SCHEMA}"
        if manifest["identity"] != identity:
            return "another identity"
        if data != _sealed(data[: -len(_seal(b""))]):
            return f"{MANIFEST}: SHA-256 differs"
        problems = (file_problem(directory / name, manifest["files"][name]) for name in FILES)
        wrong = next((problem for problem in problems if problem), None)
        return wrong or Entry(directory=directory, identity=identity, manifest=manifest)
    except OSError as problem:
        return f"manifest.json: {problem.strerror}"
    except (ValueError, KeyError, TypeError) as problem:
        return f"manifest.json: unreadable ({problem!r})"


def write_manifest(directory: Path, request: BuildRequest, identity: str, report: BuildReport) -> None:
    """Describe the files in ``directory`` and have all of it on disk, the manifest last. No paths are recorded."""
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
        _sync(path)


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The file: JSON whose last field is the SHA-256 of all bytes before its value's quote."""
    fields = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(fields, indent=2, sort_keys=True).removesuffix("\n}")
    return _sealed(f'{text},\n  "sha256": '.encode())


def _sealed(head: bytes) -> bytes:
    return head + _seal(head)


def _seal(head: bytes) -> bytes:
    return f'"{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()


def _facts(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
