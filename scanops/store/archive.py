"""Packs as one file: .tar.xz archives. The same pack gives the same bytes.

An archive holds pack.json and machine code, and no sources; unpacking writes the files that follow from pack.json.

Unpacking trusts nothing but what it has checked: an archive yields only the files that its pack.json lists, at their
sizes and with their digests. The module tarfile reads it, behind limits: memory stays below 100 MB whatever an archive
claims to hold. Disk and time are bounded by what it is: files may be some hundred times as large as the archive, and
the files that follow from pack.json are written last.
"""

from __future__ import annotations

import lzma
import os
import shutil
import struct
import tarfile
import uuid
from pathlib import Path
from typing import IO, Any, cast

from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.files import format_size, replaced, writing
from scanops.store.packs import MAX_PACK_BYTES, PACK, SIGNATURE, SIGNATURE_BYTES, files_of, following, parse, verify

MAX_BYTES = 16 * 2**30  # of an unpacked pack, whose pack.json has room for some 6,000 kernels
_MAX_LZMA_BYTES = 80 * 2**20  # memory of the decoder: xz -9 needs 65 MB
_MAX_HEADER_BYTES = 2**14  # between two files of an archive; those that `pack` writes take 512
_MAX_END_BYTES = 2**20  # behind the last file: tar fills up its last record
_FREE_BYTES, _MOST_RATIO = 2**26, 200  # bytes of any pack; beyond, bytes of files for a byte of the archive
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
        with file.open("rb") as raw:
            most = min(max_bytes, max(_FREE_BYTES, _MOST_RATIO * os.fstat(raw.fileno()).st_size))
            _extract(_Contents(raw), file, draft, most)
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


class _Contents:
    """The bytes of an .xz stream, for tarfile: read forward, up to a limit, by a decoder with a limit of memory."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._decoder = raw, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_LZMA_BYTES)
        self._place = 0
        self.left = _MAX_HEADER_BYTES  # bytes that may still be read

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer at the end. Raises ReadError beyond the limit."""
        if not 0 <= size <= self.left:
            raise tarfile.ReadError(f"{size} bytes where at most {self.left} are allowed")
        data = bytearray()
        while len(data) < size and not self._decoder.eof:
            packed = self._raw.read(2**16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("the compressed stream ends early")
            data += self._decoder.decompress(packed, size - len(data))
        self._place += len(data)
        self.left -= len(data)
        return bytes(data)

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._place

    def seek(self, place: int) -> None:
        """Read forward, up to the byte at ``place``."""
        self.read(place - self._place)


def _extract(stream: _Contents, file: Path, draft: Path, max_bytes: int) -> None:
    """Write the files of an archive into the folder ``draft``, which it makes. Their digests are for ``verify``."""
    with tarfile.open(fileobj=cast(Any, stream), mode="r:") as archive:
        # Patch releases of Python before June 2023 lack it; no name passes here that pack.json does not list.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda item, _: item)
        first = archive.next()
        if first is None or first.name != PACK or not first.isreg() or first.issparse() or first.size > MAX_PACK_BYTES:
            allowed = f"{PACK} as the first member, up to {format_size(MAX_PACK_BYTES)}"
            raise _bad(file, allowed, _describe_member(first) if first else "no member")
        draft.mkdir(mode=0o700)  # nobody else may open its files before they are checked

        def write(item: tarfile.TarInfo) -> None:
            stream.left = item.size + tarfile.BLOCKSIZE
            archive.extract(item, draft, set_attrs=False)
            stream.left = _MAX_HEADER_BYTES

        write(first)
        data = (draft / PACK).read_bytes()
        contents = parse(data, file.name)
        listed = files_of(contents)
        total = len(data) + sum(facts["size"] for facts in listed.values())
        total += sum(len(text) for _, text in following(contents))
        if total > max_bytes:
            allowed = f"at most {format_size(max_bytes)} of files"
            raise _bad(file, allowed, f"{format_size(total)} in {PACK}", "pack its kernels in several files")
        left: dict[str, dict[str, Any]] = {**listed, SIGNATURE: {"size": SIGNATURE_BYTES}}
        while item := archive.next():
            facts = left.pop(item.name, None)
            if facts is None or not item.isreg() or item.issparse() or item.size != facts["size"]:
                raise _bad(file, f"plain files that {PACK} lists, once, at its sizes", _describe_member(item))
            write(item)
    stream.left = _MAX_END_BYTES
    if len(stream.read(_MAX_END_BYTES)) == _MAX_END_BYTES:  # reading to the end checks the checksum of the stream
        raise tarfile.ReadError("data after the end of the archive")
    if missing := [name for name in left if name != SIGNATURE]:
        raise _bad(file, f"all files that {PACK} lists", f"{missing[0]!r:.200}: No such file")
    for path, text in following(contents):
        (draft / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (draft / path).write_bytes(text)
    for each in draft.rglob("*"):
        each.chmod(0o755 if each.is_dir() else 0o644)  # whatever the umask: others may read and not write


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
