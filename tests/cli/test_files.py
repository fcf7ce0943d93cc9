"""Files that people name: whole or not at all, links and pipes as they are, one error where the system refuses."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from scanops.codegen.spec import ScanSpec
from scanops.errors import BadSpecFile, UnusableFile
from scanops.files import replaced, write_text
from scanops.specfile import add, check_writable, load

SUM = (ScanSpec(op="sum", dtype="float32", length=9), "sm_90", False)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_text(path, "first", "x")
    path.chmod(0o600)
    with pytest.raises(OSError, match="No space"), replaced(path) as draft:
        draft.write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    write_text(path, "second", "x")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("second", 0o600)
    for refused in (tmp_path / "absent" / "x", tmp_path):
        with pytest.raises(UnusableFile, match="write what was asked"):
            write_text(refused, "text", "what was asked")
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "specs.toml").symlink_to(tmp_path / "kept" / "specs.toml")
    for count in (2, 3):
        add(tmp_path / "specs.toml", {SUM: count})
    assert (tmp_path / "specs.toml").is_symlink() and load(tmp_path / "kept" / "specs.toml").wanted == {SUM: 5}


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """Counts, however, are added to plain files alone: a device would be replaced by a file, and a pipe waited for."""
    path, heard = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: heard.append(path.read_text()))
    reader.start()
    write_text(path, "text", "x")
    reader.join()
    for refused in (path, tmp_path):
        for act in (check_writable, lambda path: add(path, {SUM: 1})):
            with pytest.raises(BadSpecFile, match="a plain file"):
                act(refused)
    assert heard == ["text"] and stat.S_ISFIFO(path.stat().st_mode)
