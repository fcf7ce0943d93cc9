"""Files that people name: whole or not at all, links and pipes as they are, one error where the system refuses."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from scanops import tuning
from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSpecFile, UnusableFile
from scanops.files import replaced, write_text
from scanops.specfile import add, check_writable, read

SUM = (ScanSpec(op="sum", dtype="float32", length=9), "sm_90")


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_text(path, "first", "x")
    path.chmod(0o600)

    def fill(draft: Path) -> None:
        draft.write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"), replaced(path) as draft:
        fill(draft)
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    write_text(path, "second", "x")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("second", 0o600)


def test_what_the_system_refuses(tmp_path: Path) -> None:
    for path in (tmp_path / "absent" / "x", tmp_path):
        with pytest.raises(UnusableFile, match="write what was asked") as caught:
            write_text(path, "text", "what was asked")
        assert caught.value.allowed and caught.value.value and caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("specs.toml", "tuning.json"):
        (tmp_path / name).symlink_to(tmp_path / "kept" / name)
    add(tmp_path / "specs.toml", {SUM: 2})
    add(tmp_path / "specs.toml", {SUM: 3})
    tuning.write(tmp_path / "tuning.json", [])
    assert (tmp_path / "specs.toml").is_symlink() and (tmp_path / "tuning.json").is_symlink()
    assert read(tmp_path / "kept" / "specs.toml") == {SUM: 5}
    assert tuning.read(tmp_path / "kept" / "tuning.json") == {}


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path, heard = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: heard.append(path.read_text()))
    reader.start()
    write_text(path, "text", "x")
    reader.join()
    assert heard == ["text"] and stat.S_ISFIFO(path.stat().st_mode)


def test_counts_are_added_to_plain_files_alone(tmp_path: Path) -> None:
    """A device would be replaced by a file, and a pipe waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        for act in (check_writable, lambda path: add(path, {SUM: 1})):
            with pytest.raises(BadSpecFile, match="a plain file"):
                act(path)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
