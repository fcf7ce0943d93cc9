"""One entry of a store: kernel.so or kernel.cubin, kernel.cu, and manifest.json, which describes the other two.

The source, kernel.cu, may be missing: nothing needs it to run the kernel, and packs are carried without. The launch in
the manifest says how either form is launched; ``scanops.runtime.binding`` does that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanops.build_request import (
    CUBIN,
    KERNEL_NAME,
    KERNEL_TARGET,
    LIBRARY,
    LINK_FLAGS,
    Resources,
    flags_of,
)
from scanops.codegen.abi import ABI, SCHEMA
from scanops.codegen.launch import Launch
from scanops.codegen.spec import ScanSpec
from scanops.errors import UnsupportedRequest
from scanops.files import open_file, opened_folder, parse_object, read_file, require_form, secure

if TYPE_CHECKING:
    from typing import BinaryIO

    from scanops.build_request import BuildReport, BuildRequest


SOURCE = "kernel.cu"
FILES = {LIBRARY: (SOURCE, "kernel.so"), CUBIN: (SOURCE, "kernel.cubin")}  # of each form
MANIFEST = "manifest.json"
DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST_BYTES = 1 << 20  # at most; a manifest has about 2,000
_RESOURCES = re.compile("|".join(field.name for field in fields(Resources)))
_WORD = re.compile(r"[^\x00-\x1f\x7f]{1,300}")  # a compiler flag, or a version
MAX_FILE_BYTES = 2**26  # of a source or of machine code; the largest kernels take some 2 MB
_FORM = {  # of a manifest, which packs repeat: see require_form. Everything has a limit, so that a manifest has one.
    "name": KERNEL_NAME,
    "target": KERNEL_TARGET,
    "schema": int,
    "identity": DIGEST,
    "flags": [_WORD],
    "toolchain": {re.compile(r"\w{1,30}", re.ASCII): _WORD},
    "files": {re.compile(r"kernel\.\w{1,30}"): {"size": range(MAX_FILE_BYTES), "sha256": DIGEST}},
}
_FORMS: Mapping[str, Mapping[str, Any]] = {  # of the fields of one form of kernel
    LIBRARY: {"abi": range(2**31), "link_flags": [_WORD]},
    CUBIN: {"launch": dict},
}
_OPTIONAL = {"form": str, "launch": dict, "built": _WORD, "sha256": DIGEST}
_MOST = {"flags": 64, "link_flags": 64, "toolchain": 16}  # items
_SECONDS = 10**7  # of a build


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kernel in a store or a pack."""

    directory: Path  # holds the files
    identity: str  # 64 hex digits
    manifest: dict[str, Any]  # the contents of manifest.json
    signer: str | None = None  # fingerprint of the key whose signature vouches for the manifest

    @property
    def slug(self) -> str:
        """Short name of the spec, as the manifest states it."""
        return str(self.manifest.get("name", self.directory.name))

    @property
    def target(self) -> str:
        """Target, as the manifest states it."""
        return str(self.manifest.get("target", "?"))

    @property
    def spec(self) -> ScanSpec | None:
        """The spec; None for an operator that this process does not know, and for another version's spec."""
        return spec_of(self.slug)

    @property
    def form(self) -> str:
        """Whether it is a library or a cubin."""
        return str(self.manifest.get("form", LIBRARY))

    @property
    def library_path(self) -> Path:
        """Path of the shared library, or of the cubin."""
        return self.directory / FILES[self.form][1]

    @property
    def source_path(self) -> Path:
        """Path of the source that it was built from; an entry of a pack may lack it."""
        return self.directory / SOURCE

    def read_source(self) -> tuple[str | None, str]:
        """Return the source, None where a pack lacks it, and its SHA-256. Raises FileNotFoundError for what is gone."""
        there = self.source_path.is_file() or not self.library_path.is_file()
        text = self.source_path.read_text(encoding="utf-8") if there else None
        return text, str(self.manifest["files"][SOURCE]["sha256"])

    @property
    def builder(self) -> str:
        """Who built it: "load_inline", "nvcc", "nvrtc"; for the CPU its target. The manifest has the versions."""
        return str(self.manifest["toolchain"].get("route", "?"))

    @property
    def resources(self) -> Resources | None:
        """Registers, shared memory and spills; None for a kernel built for the CPU."""
        found = self.manifest["resources"]
        return Resources(**found) if found else None

    @property
    def build_seconds(self) -> float:
        """Wall time of the build in seconds; 0 in a pack, which keeps no times."""
        return float(self.manifest.get("build_seconds", 0.0))


def spec_of(slug: str) -> ScanSpec | None:
    """Return the spec of a short name; None for one of a user's operator, or of another version."""
    try:
        return ScanSpec.parse(slug)
    except UnsupportedRequest:
        return None


def read_entry(directory: Path) -> Entry:
    """Return the entry in ``directory``, its files unverified. Raises OSError or ValueError for a bad manifest."""
    manifest = parse_object(read_file(directory / MANIFEST, _MANIFEST_BYTES, trusted=False))
    require_manifest(manifest, MANIFEST)
    return Entry(directory=directory, identity=str(manifest["identity"]), manifest=manifest)


def verify_entry(directory: Path, identity: str, stated: bytes | None = None, signer: str | None = None) -> Entry | str:
    """Return the entry that should be ``identity``, or what is wrong with it.

    ``identity`` may be its first 16 digits alone, as they are in the name of the folder. Owner and mode of the root,
    the entry's folder and its files are checked on the open descriptors: nobody but this user or root may have written
    them. Manifest and files must agree in schema, identity, size and SHA-256. ``stated`` is the manifest that follows
    from pack.json, where that decides; ``signer`` is the fingerprint of the key that signed it.
    """
    name = directory.name
    try:
        with opened_folder(directory.parent, name) as folder:
            name = MANIFEST
            data = read_file(MANIFEST, _MANIFEST_BYTES, folder)
            if stated is not None and data != stated:
                return f"{MANIFEST}: differs from what pack.json states"
            manifest = parse_object(data)
            require_manifest(manifest, MANIFEST)
            if not manifest["identity"].startswith(identity):
                return "another identity"
            if data != _seal(data[: -len(_seal(b""))]):
                return f"{MANIFEST}: SHA-256 differs"
            for name in FILES[manifest.get("form", LIBRARY)]:
                missing = suppress(FileNotFoundError) if name == SOURCE else nullcontext()
                with missing, open_file(name, folder) as file:
                    if wrong := difference(name, file, manifest["files"][name]):
                        return wrong
        return Entry(directory=directory, identity=manifest["identity"], manifest=manifest, signer=signer)
    except OSError as problem:
        return "a symbolic link" if directory.is_symlink() else f"{name}: {problem.strerror}"
    except ValueError as problem:
        return f"{MANIFEST}: unreadable ({problem})"


def require_manifest(manifest: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless a manifest, which is called ``where``, has the form of one: no other fields, no surplus.

    Its text takes some 50 KB at most, whatever it holds.
    """
    require_form(manifest, {"schema": int, "form": str} if "form" in manifest else {"schema": int}, where)
    form = manifest.get("form", LIBRARY)
    if manifest["schema"] != SCHEMA or form not in FILES:
        raise ValueError(
            f"schema {manifest['schema']} and form {form!r:.80} instead of {SCHEMA} and {' or '.join(FILES)}"
        )
    require_form(manifest, _FORM, where)
    if {*manifest["files"]} != {*FILES[form]}:
        raise ValueError(f"'files' of {where} are {sorted(manifest['files'])!r:.80}")
    own = {**_FORM, **_FORMS[form], **{name: each for name, each in _OPTIONAL.items() if name in manifest}}
    require_form(manifest, own, where)
    if unknown := manifest.keys() - own.keys() - {"resources", "build_seconds"}:
        raise ValueError(f"{where} has the unknown field {min(unknown)!r:.80}")
    if long := [name for name, most in _MOST.items() if len(manifest.get(name, ())) > most]:
        raise ValueError(f"{long[0]!r} of {where} has more than {_MOST[long[0]]} items")
    seconds = manifest.get("build_seconds", 0.0)
    if type(seconds) not in (int, float) or not 0 <= seconds <= _SECONDS:
        raise ValueError(f"'build_seconds' of {where} is {seconds!r:.80}")
    if manifest.get("resources", 0) is not None:
        require_form(manifest, {"resources": {_RESOURCES: (range(2**31), None)}}, where)
    try:
        launch_of(manifest)
    except (KeyError, TypeError) as problem:
        raise ValueError(f"'launch' of {where}: {problem}") from None


def launch_of(manifest: Mapping[str, Any]) -> Launch | None:
    """Return the launch of a kernel, None for a library without a kernel, as the native call path is.

    Raises KeyError, TypeError and ValueError for a cubin without one, and for what ``Launch.read`` refuses.
    """
    return Launch.read(manifest["launch"]) if "launch" in manifest or manifest.get("form") == CUBIN else None


def difference(name: str, file: BinaryIO, expected: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an open file; None when size and SHA-256 are as ``expected``.

    Reads no more than the expected size and a byte, and keeps none of it.
    """
    digest, size = hashlib.sha256(), 0
    while size <= expected["size"] and (chunk := file.read(min(1 << 20, expected["size"] + 1 - size))):
        digest.update(chunk)
        size += len(chunk)
    if size != expected["size"]:
        return f"{name}: {file.seek(0, os.SEEK_END)} bytes instead of {expected['size']}"
    return None if digest.hexdigest() == expected["sha256"] else f"{name}: SHA-256 differs"


def facts_of(data: bytes) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file's bytes, as manifests and pack.json hold them."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_manifest(directory: Path, request: BuildRequest, report: BuildReport) -> Entry:
    """Describe the files in ``directory``, wait until all of it is on disk, and return the entry. Records no paths."""
    form, identity = report.form, request.identities[report.form]
    manifest = {
        "schema": SCHEMA,
        "identity": identity,
        "name": request.name,
        "target": request.target,
        "flags": [*flags_of(request.target, form), *request.options],
        "toolchain": report.toolchain,
        "resources": asdict(report.resources) if report.resources else None,
        "build_seconds": round(report.seconds, 3),
        "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {name: facts_of((directory / name).read_bytes()) for name in FILES[form]},
    }
    manifest |= {"form": CUBIN} if form == CUBIN else {"abi": ABI, "link_flags": list(LINK_FLAGS)}
    manifest |= {"launch": request.launch} if request.launch is not None else {}
    data = manifest_bytes(manifest)
    (directory / MANIFEST).write_bytes(data)
    for name in (*FILES[form], MANIFEST, "."):
        secure(directory / name)
    return Entry(directory=directory, identity=identity, manifest=json.loads(data))


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return manifest.json: JSON whose last field is the SHA-256 of all bytes before its value's quote."""
    fields = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(fields, indent=2, sort_keys=True).removesuffix("\n}")
    return _seal(f'{text},\n  "sha256": '.encode())


def _seal(head: bytes) -> bytes:
    return head + f'"{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()
