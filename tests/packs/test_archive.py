"""Archives of packs: the same pack gives the same bytes, and no archive harms whoever unpacks it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import random
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from scanops.errors import BadStoreEntry, UnsupportedRequest, UnusableFile
from scanops.store import archive
from scanops.store.archive import pack as write
from scanops.store.archive import unpack
from scanops.store.entry import SOURCE
from scanops.store.packing import verify
from scanops.store.packs import PACK, SIGNATURE, files_of, read
from tests.packs.conftest import kernel
from tests.scripts import ran
from tests.store.sources import flipped, umask

NAMES = ("kernels.tar.gz", "kernels.tar.xz")


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_is_reproducible(pack: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It unpacks to the same files, whatever the times and modes of the files and the umask of who unpacks them."""
    copy, first, second = tmp_path / "copy", tmp_path / "a" / name, tmp_path / "b" / name
    first.parent.mkdir()
    second.parent.mkdir()
    write(pack, first)
    total = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file() and path.name != SOURCE)
    assert "at most" in refused(first, max_bytes=total - 1)
    shutil.copytree(pack, copy, ignore=shutil.ignore_patterns(SOURCE))  # no archive holds sources
    for path in copy.rglob("*"):
        os.utime(path, (time.time() - 1e6,) * 2)
    (copy / PACK).chmod(0o600)
    write(copy, second)
    assert first.read_bytes() == second.read_bytes()

    def copied(stream: object, out: io.BufferedWriter, size: int) -> str:
        draft = next(path for path in Path(out.name).parents if path.name.startswith(".out"))
        assert draft.stat().st_mode & 0o077 == 0  # until the files are checked
        return original(stream, out, size)

    original = archive._copy
    monkeypatch.setattr(archive, "_copy", copied)
    for mask in (0, 0o077):
        out = tmp_path / f"out{mask}"
        with umask(mask):
            assert unpack(first, out, max_bytes=total) == verify(out) == read(pack)
        assert {path.stat().st_mode & 0o7777 for path in (out, *out.rglob("*"))} == {0o755, 0o644}
        assert {path.relative_to(out) for path in out.rglob("*")} == {
            path.relative_to(copy) for path in copy.rglob("*")
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "copy", "out0", "out63", "pack"]
    with tarfile.open(first) as tar:
        assert tar.getnames() == [PACK, *files_of(read(pack))]


def test_a_folder_name_too_long_for_tar_is_refused(pack: Path, tmp_path: Path) -> None:
    contents = read(pack)
    entry = contents["entries"][0]
    slug, identity = "x" * 145, entry["identity"]
    (pack / entry["directory"]).rename(pack / f"{slug}-{identity[:16]}")
    entry["directory"] = f"{slug}-{identity[:16]}"
    (pack / PACK).write_text(json.dumps(contents))
    with pytest.raises(UnsupportedRequest, match="SCANOPS_PACKS takes it"):
        write(pack, tmp_path / "k.tar.gz")


def test_places_that_exist_or_cannot_be_written_are_typed_errors(pack: Path, tmp_path: Path) -> None:
    for name in ("kernels.zip", ".tar.gz", "kernels.tar", "kernels.gz"):
        with pytest.raises(UnsupportedRequest):
            write(pack, tmp_path / name)
        assert not (tmp_path / name).exists()
    for file in (tmp_path / "absent" / "k.tar.gz", pack / PACK / "k.tar.gz"):
        with pytest.raises(UnusableFile, match="write the archive"):
            write(pack, file)
    write(pack, tmp_path / "k.tar.gz")
    with pytest.raises(UnsupportedRequest, match="does not exist yet"):
        unpack(tmp_path / "k.tar.gz", pack)
    with pytest.raises(BadStoreEntry, match="can be written") as caught:
        unpack(tmp_path / "k.tar.gz", tmp_path / "k.tar.gz" / "below" / "out")
    assert "another folder" in caught.value.hint


def refused(file: Path, **limits: int) -> str:
    """Unpack ``file``, which must be refused and leave nothing behind. Returns the message."""
    out = file.parent / "out"
    with pytest.raises(BadStoreEntry) as caught:
        unpack(file, out, **limits)
    assert not out.exists()
    assert not list(file.parent.glob(".out*"))
    return str(caught.value)


def tar(pack: Path, *extra: tarfile.TarInfo, without: str = "\0", **options: object) -> Path:
    """Write the archive of a pack with ``extra`` members after pack.json and without members of some names."""
    file = pack.with_name("bad.tar.gz")
    write(pack, file.with_name("good.tar.gz"))
    with tarfile.open(file.with_name("good.tar.gz")) as good, tarfile.open(file, "w:gz", **options) as bad:
        members = [item for item in good if without not in item.name]
        for item in members[:1] + list(extra) + members[1:]:
            data = good.extractfile(item) if item in members else io.BytesIO(b"x" * item.size)
            bad.addfile(item, data if item.isreg() else None)
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    """Return the header of an archive member."""
    item = tarfile.TarInfo(name)
    item.type, item.linkname, item.size = kind, target, size
    return item


UNLISTED = [
    *(member(name, size=3) for name in ("../escaped", "/tmp/escaped", "a/../../escaped", "unlisted.so", PACK)),
    *(member("link", kind, target) for kind, target in ((tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, PACK))),
    *(member("special", kind) for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)),
    member(SIGNATURE, size=65),
]


@pytest.mark.parametrize("extra", UNLISTED, ids=lambda item: f"{item.name} {item.type.decode()}")
def test_members_that_pack_json_does_not_list_are_refused(pack: Path, tmp_path: Path, extra: tarfile.TarInfo) -> None:
    assert repr(extra.name) in refused(tar(pack, extra))
    assert not (tmp_path / "escaped").exists()


def test_members_that_differ_from_pack_json_are_refused(pack: Path) -> None:
    name = f"{kernel(pack).name}/kernel.so"
    size = (pack / name).stat().st_size
    assert "plain files" in refused(tar(pack, member(name, tarfile.SYMTYPE, "/etc/passwd"), without=name))
    assert "missing" in refused(tar(pack, without=name))
    assert "SHA-256" in refused(tar(pack, member(name, size=size), without=name))
    assert "sizes" in refused(tar(pack, member(name, size=size + 1), without=name))
    assert "once" in refused(tar(pack, *2 * [member(SIGNATURE, size=64)]))
    assert "first member" in refused(tar(pack, without=PACK))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_archives_are_refused_or_give_the_same_pack(pack: Path, tmp_path: Path, name: str) -> None:
    write(pack, tmp_path / name)
    data, generator, refusals = (tmp_path / name).read_bytes(), random.Random(1), 0
    cut = [b"", data[:100], data[: len(data) // 2], data[:-1], bytes(len(data))]
    places = [generator.randrange(len(data)) for _ in range(150)]
    for number, bad in enumerate(cut + [flipped(data, at, 1 << generator.randrange(8)) for at in places]):
        out = tmp_path / f"out{number}"
        (tmp_path / name).write_bytes(bad)
        try:
            unpack(tmp_path / name, out)
        except BadStoreEntry:
            refusals += 1
            assert not out.exists()
        else:  # a bit that nothing reads, such as a time
            assert (out / PACK).read_bytes() == (pack / PACK).read_bytes()
    assert refusals > 75


def paxed(size: int, kind: bytes) -> bytes:
    """A gzipped archive that begins with an extended header of ``size`` bytes."""
    packed = zlib.compressobj(wbits=31)
    data = packed.compress(member("x", kind, size=size).tobuf(tarfile.GNU_FORMAT))
    return data + b"".join(packed.compress(bytes(2**20)) for _ in range(size >> 20)) + packed.flush()


def listed(text: bytes) -> bytes:
    """A gzipped archive whose pack.json is ``text``."""
    return gzip.compress(member(PACK, size=len(text)).tobuf() + text + bytes(-len(text) % 512 + 1024))


def dictionary() -> bytes:
    """An .xz stream whose decoder needs a dictionary of 1 GB."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}]
    packer = lzma.LZMACompressor(filters=[{**filters[0], "dict_size": 2**20}])
    data = bytearray(packer.compress(bytes(2**16)) + packer.flush())
    data[16] = 36  # dictionary size in the block header, whose CRC follows
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    return bytes(data)


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a PAX header of 400 MB": ("k.tar.gz", lambda: paxed(400 << 20, tarfile.XHDTYPE)),
    "a long name of 400 MB": ("k.tar.gz", lambda: paxed(400 << 20, tarfile.GNUTYPE_LONGNAME)),
    "a sparse member of 400 MB": ("k.tar.gz", lambda: paxed(400 << 20, tarfile.GNUTYPE_SPARSE)),
    "a pack.json of 127 MB": ("k.tar.gz", lambda: listed(b"[" + b"[]," * (127 * 2**20 // 3) + b"[]]")),
    "a pack.json of many lists": ("k.tar.gz", lambda: listed(b"[" + b"[]," * 5_000_000 + b"[]]")),
    "a nested pack.json": ("k.tar.gz", lambda: listed(b"[" * 400_000)),
    "a dictionary of 1 GB": ("k.tar.xz", dictionary),
}


@pytest.mark.parametrize("name", BOMBS)
def test_memory_stays_bounded_whatever_the_archive_says(tmp_path: Path, name: str) -> None:
    file = tmp_path / BOMBS[name][0]
    file.write_bytes(BOMBS[name][1]())
    code = (
        "import re, sys\nfrom pathlib import Path\nfrom scanops.errors import BadStoreEntry\n"
        "from scanops.store.archive import unpack\n"
        "try: unpack(Path(sys.argv[1]), Path(sys.argv[1]).with_name('out'))\n"
        "except BadStoreEntry: print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    assert int(ran(sys.executable, "-c", code, file).stdout) < 200_000  # KB


def test_pip_installs_a_package_and_its_pack_is_found(pack: Path, tmp_path: Path) -> None:
    """The project is that of docs/deployment.md."""
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(pack, project / "my_kernels" / "pack", ignore=shutil.ignore_patterns(SOURCE))
    (project / "my_kernels" / "__init__.py").touch()
    (project / "pyproject.toml").write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    ran(*pip, "--target", site, project, PIP_DISABLE_PIP_VERSION_CHECK="1")
    for path in (site, *site.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    code = "from scanops.store.layers import installed; import sys; print(*installed(), 'my_kernels' in sys.modules)"
    found = ran(sys.executable, "-c", code, PYTHONPATH=str(site)).stdout.split()
    assert found == [str(site / "my_kernels" / "pack"), "False"]
    assert verify(site / "my_kernels" / "pack") == read(pack)
