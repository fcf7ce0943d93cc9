"""Spec files: what they stand for, and what is said of those that make no sense."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from scanops import ScanSpec
from scanops.errors import BadSpecFile, UnsupportedRequest, UnusableFile
from scanops.files import replaced, write_text
from scanops.precompile import expected
from scanops.specfile import add, check_writable, load


def written(folder: Path, text: str) -> Path:
    path = folder / "specs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_stands_for_a_product(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'specs = ["prod-f32-n9"]\n[[scan]]\nop = ["sum", "prod"]\ndtype = ["float32", "bfloat16"]\n'
        'length = [64, 128, "any"]\nreverse = true\n',
    )
    found = [spec for spec, *_ in load(path).wanted]
    wanted = [
        ScanSpec(op=op, dtype=dtype, length=length, reverse=True)
        for op in ("sum", "prod")
        for dtype in ("float32", "bfloat16")
        for length in (64, 128, None)
    ]
    assert found == [ScanSpec(op="prod", dtype="float32", length=9), *wanted]


def test_targets_of_the_file_of_a_table_and_of_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, 'targets = ["sm_80", "sm_90"]\n[[scan]]\nspec = "sum-f32-n9"\ntarget = "cpu"\n')
    one = ScanSpec(op="sum", dtype="float32", length=9)
    assert expected(load(path).wanted, [], path) == [(one, "cpu", False)]
    assert expected(load(path).wanted, ["sm_100", "sm_90"], path) == [(one, "sm_100", False), (one, "sm_90", False)]
    path = written(tmp_path, 'specs = ["sum-f32-n9"]\n')
    with pytest.raises(UnsupportedRequest, match="--targets"):
        expected(load(path).wanted, [], path)


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("specs = [}", "the text", "line 1"),
        ("lengths = [3]", "the top level", "lengths"),
        ('specs = "sum-f32-n9"', "specs", "sum-f32-n9"),
        ('specs = ["sum-f32-m9"]', "specs", "sum-f32-m9"),
        ("targets = [90]", "targets", "90"),
        ('[scan]\nspec = "sum-f32-n9"', "scan", "sum-f32-n9"),
        ('[[scan]]\nspec = "sum-f32-n9"\n[[scan]]\nspec = "sum"', "number 2", "sum"),
        ('[[scan]]\nspec = "sum-f32-n9"\nlength = 3', "number 1", "length"),
        ('[[scan]]\nspec = "sum-f32-n9"\ncount = -1', "number 1", "-1"),
        ('[[scan]]\nspec = "sum-f32-n9"\ntarget = 90', "number 1", "90"),
        ("[[scan]]\nspec = 3", "number 1", "3"),
        ('[[scan]]\nop = "sum"\nlength = 3', "number 1", "dtype"),
        ('[[scan]]\nop = "sum"\ndtype = "float31"\nlength = 3', "number 1", "float31"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = [4, 0]', "number 1", "0"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = "4"', "number 1", "4"),
        ('[[scan]]\nop = "sum"\ndtype = 32\nlength = 4', "number 1", "32"),
        ('[[scan]]\nop = "sum"\ndtype = "float32"\nlength = 4\nbackward = true', "number 1", "backward"),
    ],
)
def test_what_makes_no_sense(text: str, place: str, value: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadSpecFile) as caught:
        load(path)
    assert str(path) in caught.value.asked and place in caught.value.asked
    assert value in str(caught.value.value)


# ---- files that people name: whole or not at all, links and pipes as they are

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
