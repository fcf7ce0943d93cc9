"""One file of a pack: the same bytes each time, and nothing hostile gets out of it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from scanops.errors import BadStoreEntry, UnsupportedRequest, UnusableFile
from scanops.packs.archive import pack as write
from scanops.packs.archive import unpack
from scanops.packs.manifest import verify
from scanops.store.packs import PACK, read
from tests.store.sources import needs_cxx

pytestmark = needs_cxx

WHEEL = f"my_kernels-1.0-py3-none-{sys.platform}_{os.uname().machine}.whl"
NAMES = ("kernels.tar.gz", "kernels.tar.xz", WHEEL)


@pytest.mark.parametrize("name", NAMES)
def test_same_pack_same_bytes_and_back(pack: Path, tmp_path: Path, name: str) -> None:
    first, second = tmp_path / "a" / name, tmp_path / "b" / name
    first.parent.mkdir()
    second.parent.mkdir()
    write(pack, first)
    shutil.copytree(pack, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (time.time() - 1e6,) * 2)
    (tmp_path / "copy" / PACK).chmod(0o600)
    write(tmp_path / "copy", second)
    assert first.read_bytes() == second.read_bytes()
    assert unpack(first, tmp_path / "out") == read(pack)
    assert verify(tmp_path / "out") == read(pack)
    assert {path.stat().st_mode & 0o022 for path in (tmp_path / "out").rglob("*")} == {0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "copy", "out", "pack"]


@pytest.mark.parametrize("name", ["kernels.zip", ".tar.gz", "kernels.whl", "my_kernels-1.0-py3-none-any.whl"])
def test_a_name_that_says_no_format_is_refused(pack: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedRequest):
        write(pack, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_exists_is_left_alone(pack: Path, tmp_path: Path) -> None:
    write(pack, tmp_path / "k.tar.gz")
    with pytest.raises(UnsupportedRequest, match="does not exist yet"):
        unpack(tmp_path / "k.tar.gz", pack)


def refused(file: Path, **limits: int) -> str:
    out = file.parent / "out"
    with pytest.raises(BadStoreEntry) as caught:
        unpack(file, out, **limits)
    assert not out.exists()
    assert not list(file.parent.glob(".out*"))
    return str(caught.value)


def tar(pack: Path, file: Path, *extra: tarfile.TarInfo, without: str = "\0") -> Path:
    """The archive of a pack with other members before the end, or without some."""
    write(pack, file.with_name("good.tar.gz"))
    with tarfile.open(file.with_name("good.tar.gz")) as good, tarfile.open(file, "w:gz") as bad:
        members = [item for item in good if without not in item.name]
        for item in members[:1] + list(extra) + members[1:]:
            data = good.extractfile(item) if item in members else io.BytesIO(b"x" * item.size)
            bad.addfile(item, data if item.isreg() else None)
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    item = tarfile.TarInfo(name)
    item.type, item.linkname, item.size = kind, target, size
    return item


@pytest.mark.parametrize(
    "extra",
    [
        member("../escaped", size=3),
        member("/tmp/escaped", size=3),
        member("a/../../escaped", size=3),
        member("link", tarfile.SYMTYPE, "/etc"),
        member("hard", tarfile.LNKTYPE, "pack.json"),
        member("fifo", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
        member("folder", tarfile.DIRTYPE),
        member("unlisted.so", size=3),
        member(PACK, size=3),
    ],
    ids=lambda item: item.name,
)
def test_what_is_not_listed_does_not_come_out(pack: Path, tmp_path: Path, extra: tarfile.TarInfo) -> None:
    assert repr(extra.name) in refused(tar(pack, tmp_path / "bad.tar.gz", extra))
    assert not (tmp_path / "escaped").exists()


def test_a_link_in_place_of_a_listed_file(pack: Path, tmp_path: Path) -> None:
    name = f"{read(pack)['entries'][0]['directory']}/kernel.so"
    refused(tar(pack, tmp_path / "bad.tar.gz", member(name, tarfile.SYMTYPE, "/etc/passwd"), without=name))


def test_missing_members_and_other_bytes(pack: Path, tmp_path: Path) -> None:
    name = f"{read(pack)['entries'][0]['directory']}/kernel.cu"
    size = (pack / name).stat().st_size
    assert "missing" in refused(tar(pack, tmp_path / "bad.tar.gz", without=name))
    assert "SHA-256" in refused(tar(pack, tmp_path / "bad.tar.gz", member(name, size=size), without=name))
    assert "sizes" in refused(tar(pack, tmp_path / "bad.tar.gz", member(name, size=size + 1), without=name))
    assert "first member" in refused(tar(pack, tmp_path / "bad.tar.gz", without=PACK))


def test_more_than_the_limit(pack: Path, tmp_path: Path) -> None:
    write(pack, tmp_path / "k.tar.gz")
    assert "at most 1.0 KB" in refused(tmp_path / "k.tar.gz", max_bytes=1000)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file(pack: Path, tmp_path: Path, name: str) -> None:
    write(pack, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    for bad in (b"", data[:100], data[: len(data) // 2], bytes(len(data))):
        (tmp_path / name).write_bytes(bad)
        refused(tmp_path / name)


def test_a_flipped_archive_is_refused_or_gives_the_very_pack(pack: Path, tmp_path: Path) -> None:
    file = tmp_path / "k.tar.xz"
    write(pack, file)
    data, refusals = file.read_bytes(), 0
    for number, place in enumerate(range(0, len(data), len(data) // 20)):
        out = tmp_path / f"out{number}"
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            unpack(file, out)
        except BadStoreEntry:
            refusals += 1
            assert not out.exists()
        else:  # past the end of what is read: padding, or the index of the compressed stream
            assert (out / PACK).read_bytes() == (pack / PACK).read_bytes()
            assert verify(out) == read(pack)
    assert refusals >= 15


def test_pip_installs_the_wheel_and_the_kernel_is_found(pack: Path, tmp_path: Path) -> None:
    write(pack, tmp_path / WHEEL)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(tmp_path / WHEEL)], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    for path in site.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    site.chmod(0o755)
    code = "from scanops.store.packs import installed; import sys; print(*installed(), 'my_kernels' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(site / "my_kernels" / "pack"), "False"]
    assert verify(site / "my_kernels" / "pack") == read(pack)
    with zipfile.ZipFile(tmp_path / WHEEL) as wheel:
        assert {item.date_time for item in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_places_that_cannot_be_written_are_typed_errors(pack: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "absent" / "k.tar.gz", pack / PACK / "k.tar.gz"):
        with pytest.raises(UnusableFile, match="write the archive"):
            write(pack, file)
    write(pack, tmp_path / "k.tar.gz")
    with pytest.raises(BadStoreEntry, match="can be written") as caught:
        unpack(tmp_path / "k.tar.gz", tmp_path / "k.tar.gz" / "below" / "out")
    assert "another folder" in caught.value.hint
