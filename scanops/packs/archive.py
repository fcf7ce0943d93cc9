"""A pack as one file: the same pack gives the same bytes. Unpacking trusts nothing but what it has checked."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import lzma
import shutil
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from scanops.errors import BadStoreEntry, UnsupportedRequest
from scanops.files import replaced, writing
from scanops.packs.installed import SUBFOLDER
from scanops.packs.manifest import PACK, SIGNATURE, SIGNATURE_BYTES, files_of, parse, verify
from scanops.packs.wheel import write_wheel
from scanops.sizes import format_size

__all__ = ["FORMATS", "MAX_BYTES", "pack", "unpack"]

MAX_BYTES = 16 * 2**30  # of an unpacked pack, unless the caller says otherwise
_PACK_BYTES = 2**27
_CHUNK = 2**20


def pack(directory: Path, file: Path) -> dict[str, Any]:
    """Write the pack in ``directory`` to ``file``, whose suffix says how: .tar.gz, .tar.xz or .whl. Returns pack.json.

    Raises UnsupportedRequest for another suffix, BadStoreEntry for a pack that does not verify, UnusableFile where the
    file cannot be written.
    """
    writer = _writer(file)
    contents = verify(directory)
    # pack.json comes first: whoever unpacks knows the size of all that follows.
    first = [name for name in (PACK, SIGNATURE) if (directory / name).is_file()]
    members = [(path, directory / path) for path in (*first, *sorted(files_of(contents)))]
    with writing(f"the archive {file}"), replaced(file) as draft:
        writer(draft, file.name, members, contents)
    return contents


def unpack(file: Path, directory: Path, *, max_bytes: float = MAX_BYTES) -> dict[str, Any]:
    """Unpack an archive or a wheel into ``directory``, which must not exist, and verify it. Returns pack.json.

    Only what pack.json lists is taken, at the size it lists, and its signature, unchecked: links, devices, paths that
    lead out and anything else are refused, and nothing is left behind. Raises BadStoreEntry.
    """
    if directory.exists():
        raise UnsupportedRequest(
            f"unpack {file.name}",
            allowed="a folder that does not exist yet",
            value=str(directory),
            hint="choose another folder, or delete this one",
        )
    draft = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _opened(file) as members:
            _extract(members, file, draft, max_bytes)
        contents = verify(draft)
        draft.rename(directory)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError, NotImplementedError) as problem:
        raise _bad(file, "an archive as `scanops pack` writes it", repr(problem)) from problem
    except OSError as problem:
        allowed = f"a readable archive, and a folder {directory.parent} that can be written, with room left"
        raise _bad(file, allowed, str(problem), "choose another folder, or fetch the archive again") from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return contents


Member = tuple[str, int, bool, Callable[[], IO[bytes]]]  # path, size, whether it is a plain file, its contents


def _extract(members: Iterator[Member], file: Path, draft: Path, max_bytes: float) -> None:
    name, size, plain, contents = next(members, ("", 0, False, io.BytesIO))
    if name != PACK or not plain or size > _PACK_BYTES:
        raise _bad(file, f"{PACK} as the first member, up to {format_size(_PACK_BYTES)}", f"{name!r}, {size} bytes")
    with contents() as stream:
        data = stream.read(size + 1)
    listed = files_of(parse(data, file.name))
    total = sum(facts["size"] for facts in listed.values())
    if total > max_bytes:
        allowed = f"at most {format_size(int(max_bytes))} of kernels"
        raise _bad(file, allowed, f"{format_size(total)} in {PACK}", "pass --max-size, if it may be as large")
    draft.mkdir(mode=0o755)
    (draft / PACK).write_bytes(data)
    left = {**listed, SIGNATURE: {"size": SIGNATURE_BYTES}}
    for name, size, plain, contents in members:
        facts = left.pop(name, None)
        if facts is None or not plain or size != facts["size"]:
            raise _bad(file, f"plain files that {PACK} lists, once, at its sizes", f"{name!r}, {size} bytes")
        target = draft / name
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contents() as stream, target.open("xb") as out:
            digest = _copy(stream, out, size)
        if digest != facts.get("sha256", digest):
            raise _bad(file, f"the SHA-256 in {PACK}", f"another one of {name!r}")
    left.pop(SIGNATURE, None)
    if left:
        raise _bad(file, f"all files that {PACK} lists", f"{len(left)} missing, {min(left)!r} among them")
    for path in (draft, *draft.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask: others may read and not write


def _copy(stream: IO[bytes], out: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    while size > 0 and (chunk := stream.read(min(_CHUNK, size))):
        digest.update(chunk)
        out.write(chunk)
        size -= len(chunk)
    return digest.hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[Iterator[Member]]:
    if file.name.endswith(".whl"):
        with zipfile.ZipFile(file) as wheel:
            yield _wheel_members(wheel)
        return
    _writer(file)
    with tarfile.open(file, "r:*") as archive:
        yield _tar_members(archive)


def _tar_members(archive: tarfile.TarFile) -> Iterator[Member]:
    for item in archive:
        yield item.name, item.size, item.isreg(), functools.partial(_content, archive, item)


def _content(archive: tarfile.TarFile, item: tarfile.TarInfo) -> IO[bytes]:
    return archive.extractfile(item) or io.BytesIO()


def _wheel_members(wheel: zipfile.ZipFile) -> Iterator[Member]:
    for item in wheel.infolist():
        package, _, rest = item.filename.partition("/")
        subfolder, _, path = rest.partition("/")
        if subfolder == SUBFOLDER and not package.endswith(".dist-info"):
            yield path, item.file_size, not item.is_dir(), functools.partial(wheel.open, item)


# The caller closes them.
_COMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".xz": lambda raw: cast("IO[bytes]", lzma.LZMAFile(raw, "wb", preset=6)),  # noqa: SIM115
    ".gz": lambda raw: cast("IO[bytes]", gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0)),
}


def _write_tar(draft: Path, name: str, members: list[tuple[str, Path]], contents: dict[str, Any]) -> None:
    with draft.open("wb") as raw:
        # No name and no time in the header of the compressed stream either.
        packed = _COMPRESSORS[Path(name).suffix](raw)
        with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, source in members:
                item = tarfile.TarInfo(path)  # time, owner and group are 0
                item.size, item.mode = source.stat().st_size, 0o644
                with source.open("rb") as stream:
                    archive.addfile(item, stream)


_Writer = Callable[[Path, str, "list[tuple[str, Path]]", "dict[str, Any]"], None]
FORMATS: dict[str, _Writer] = {".tar.gz": _write_tar, ".tar.xz": _write_tar, ".whl": write_wheel}


def _writer(file: Path) -> _Writer:
    for suffix, writer in FORMATS.items():
        if file.name.endswith(suffix) and file.name != suffix:
            return writer
    raise UnsupportedRequest(
        f"the archive {file.name}",
        allowed=f"a file name that ends in {', '.join(FORMATS)}",
        value=file.name,
        hint="call it kernels.tar.gz, for example",
    )


def _bad(file: Path, allowed: str, value: str, hint: str = "fetch the archive again") -> BadStoreEntry:
    return BadStoreEntry(f"unpack {file.name}", allowed=allowed, value=value, hint=hint)
