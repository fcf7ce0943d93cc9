"""Packs as one file: .tar.xz archives. The same pack gives the same bytes.

An archive holds pack.json and machine code, and no sources; unpacking writes the files that follow from pack.json.

Unpacking writes only the plain files that pack.json, the first member, lists, at their sizes, behind the data filter
of tarfile. The sum of the sizes is limited before any is written, and digests are checked before the folder gets its
name. Memory is not bounded: tarfile holds a long header of an archive whole.
"""

from __future__ import annotations

import lzma
import shutil
import struct
import tarfile
import uuid
from pathlib import Path
from typing import Any

from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.files import format_size, replaced, writing
from scanops.store.packs import MAX_PACK_BYTES, PACK, SIGNATURE, SIGNATURE_BYTES, files_of, following, read, verify

MAX_BYTES = 16 * 2**30  # of an unpacked pack, whose pack.json has room for some 6,000 kernels
_DAMAGED = (
    *(tarfile.TarError, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),  # the last: JSON that is nested too deeply
)


def pack(directory: Path, file: Path) -> dict[str, Any]:
    """Write the pack in ``directory`` to ``file``. Returns the contents of pack.json.

    Raises UnsupportedRequest unless the file is called *.tar.xz and for a name that the format does not allow,
    BadStoreEntry for a pack that does not verify, UnusableFile if the file cannot be written.
    """
    _require_suffix(file)
    contents = verify(directory)
    # pack.json comes first, so that unpacking knows the size of everything that follows.
    names = [name for name in (PACK, SIGNATURE) if (directory / name).is_file()]
    with (
        writing(f"the archive {file}"),
        replaced(file) as draft,
        lzma.LZMAFile(draft, "wb", filters=[_LZMA]) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in (*names, *files_of(contents)):
            item = tarfile.TarInfo(path)  # time, owner and group are 0
            item.size, item.mode = (directory / path).stat().st_size, 0o644
            try:
                with (directory / path).open("rb") as stream:
                    archive.addfile(item, stream)
            except ValueError as problem:
                asked, allowed = f"pack {path}: {problem}", "folder names of up to 155 characters in an archive"
                hint = "deploy the folder itself: SCANOPS_PACKS takes it"
                raise UnsupportedRequest(asked, allowed=allowed, value=path, hint=hint) from problem
    return contents


def unpack(file: Path, directory: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Unpack an archive into the new folder ``directory`` and verify it. Returns the contents of pack.json.

    Only plain files that pack.json lists are written, at the sizes and with the digests it lists, and the signature,
    unchecked. Raises UnsupportedRequest if the folder exists and for a file not called *.tar.xz, BadStoreEntry
    for an archive that is damaged, holds anything else, or lists more than ``max_bytes``; then nothing is left behind.
    """
    if directory.exists():
        raise UnsupportedRequest(
            f"unpack {file.name}",
            allowed="a folder that does not exist yet",
            value=str(directory),
            hint="choose another folder, or delete this one",
        )
    _require_suffix(file)
    draft = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _extract(file, draft, max_bytes)
        contents = verify(draft)
        draft.chmod(0o755)
        draft.rename(directory)
    except BadStoreEntry as problem:
        raise _bad(file, problem.allowed, str(problem.value), problem.hint) from problem
    except _DAMAGED as problem:
        raise _bad(file, "an archive as `scanops pack` writes it", repr(problem)) from problem
    except OSError as problem:
        allowed = f"a readable archive, and a folder {directory.parent} that can be written, with room left"
        raise _bad(file, allowed, str(problem), "choose another folder, or fetch the archive again") from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return contents


def _extract(file: Path, draft: Path, max_bytes: int) -> None:
    """Write the files of an archive into the folder ``draft``, which it makes. Their digests are for ``verify``."""
    with tarfile.open(file, "r:xz") as archive:
        # Patch releases of Python before June 2023 lack it; no name passes here that pack.json does not list.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda item, _: item)
        first = archive.next()
        if first is None or first.name != PACK or not _is_plain(first) or first.size > MAX_PACK_BYTES:
            allowed = f"{PACK} as the first member, up to {format_size(MAX_PACK_BYTES)}"
            raise _bad(file, allowed, _describe_member(first) if first else "no member")
        draft.mkdir(mode=0o700)  # nobody else may open its files before they are checked
        archive.extract(first, draft)
        contents = read(draft)
        listed = files_of(contents)
        total = first.size + sum(facts["size"] for facts in listed.values())
        total += sum(len(text) for _, text in following(contents))
        if total > max_bytes:
            allowed = f"at most {format_size(max_bytes)} of files"
            raise _bad(file, allowed, f"{format_size(total)} in {PACK}", "pack its kernels in several files")
        left: dict[str, dict[str, Any]] = {**listed, SIGNATURE: {"size": SIGNATURE_BYTES}}
        while item := archive.next():
            facts = left.pop(item.name, None)
            if facts is None or not _is_plain(item) or item.size != facts["size"]:
                raise _bad(file, f"plain files that {PACK} lists, once, at its sizes", _describe_member(item))
            archive.extract(item, draft)
    if missing := [name for name in left if name != SIGNATURE]:
        raise _bad(file, f"all files that {PACK} lists", f"{missing[0]!r:.200}: No such file")
    for path, text in following(contents):
        (draft / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (draft / path).write_bytes(text)
    for each in draft.rglob("*"):
        each.chmod(0o755 if each.is_dir() else 0o644)  # whatever the umask: others may read and not write


def _is_plain(item: tarfile.TarInfo) -> bool:
    return item.isreg() and not item.issparse()


# Machine code is of words of 16 bytes (pb), whose bytes say little about the next (lc).
_LZMA = {"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 1, "lp": 0, "pb": 4}
SUFFIX = ".tar.xz"


def _require_suffix(file: Path) -> None:
    if not file.name.removesuffix(SUFFIX) or not file.name.endswith(SUFFIX):
        raise UnsupportedRequest(
            f"the archive {file.name}",
            allowed=f"a file name that ends in {SUFFIX}",
            value=file.name,
            hint=f"call it kernels{SUFFIX}, for example",
        )


def _describe_member(item: tarfile.TarInfo) -> str:
    return f"{item.name!r:.200}, {item.size} bytes"


def _bad(file: Path, allowed: str, value: str, hint: str = "fetch the archive again") -> BadStoreEntry:
    return BadStoreEntry(f"unpack {file.name}", allowed=allowed, value=value, hint=hint)
