"""Tuning files: written, read, merged, and refused if they are not what they should be."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanops.errors import BadTuning, UnusableFile
from scanops.tuning.files import SCHEMA, Entry, Measured, merged, read, write

ENTRY = Entry(
    target="sm_90",
    gpu="a GPU",
    spec="sum-f32-n1000",
    strategy="block",
    plan={"threads": 128, "alone": False},
    measured=Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45),
)


def test_a_file_is_written_and_read_again(tmp_path: Path) -> None:
    """Folders are made, no draft is left, a change is seen; a file that does not exist has no entries."""
    path = tmp_path / "deep" / "tuning.json"
    assert read(path) == {}
    other = replace(ENTRY, gpu="another GPU")
    write(path, [ENTRY, other])
    assert read(path) == {ENTRY.key: ENTRY, other.key: other}
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == SCHEMA
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]
    write(path, [])
    assert read(path) == {} == read(Path(os.devnull))


def test_merging_keeps_the_larger_speed_up(tmp_path: Path) -> None:
    """In any order of the files, each of which must exist."""
    better = replace(ENTRY, plan={"threads": 256}, measured=replace(ENTRY.measured, tuned_us=8.0))
    elsewhere = replace(ENTRY, spec="sum-f32-n7")
    write(tmp_path / "a", [ENTRY, elsewhere])
    write(tmp_path / "b", [better])
    for order in ("ab", "ba"):
        found = {entry.key: entry for entry in merged(tmp_path / name for name in order)}
        assert found == {better.key: better, elsewhere.key: elsewhere}
    with pytest.raises(BadTuning, match="a file that exists"):
        merged([tmp_path / "absent"])


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "one JSON document"),
    "another document": ("[1]", "another kind"),
    "no entries": ('{"schema": 1}', "another kind"),
    "entries of another kind": ('{"schema": 1, "entries": 3}', "another kind"),
    "a schema to come": ('{"schema": 2, "entries": []}', "schema 2"),
    "an entry of another kind": ([1], "entry 0"),
    "a missing field": ([{"spec": "sum-f32-n7"}], r"entry 0 \(sum-f32-n7\): gpu"),
    "a field of another kind": ([{**rows_of, "gpu": 3}] if (rows_of := {
        "target": "sm_90", "gpu": "a GPU", "spec": "s", "strategy": "block", "plan": {},
        "measured": {"lines": 1, "default_us": 2.0, "tuned_us": 1.0, "rounds": 3},
    }) else [], "gpu as str"),
    "an unknown field": ([{**rows_of, "colour": "red"}], "colour unknown"),
    "times that are none": ([{**rows_of, "measured": {**rows_of["measured"], "tuned_us": 0}}], "positive"),  # type: ignore[dict-item]
    "an infinite time": ([{**rows_of, "measured": {**rows_of["measured"], "tuned_us": 1e999}}], "positive"),  # type: ignore[dict-item]
    "a time of 400 digits": ([{**rows_of, "measured": {**rows_of["measured"], "tuned_us": 10**400}}], "positive"),  # type: ignore[dict-item]
    "deep nesting": ("[" * 100_000, "one JSON document"),
    "an entry twice": ([rows_of, rows_of], "again"),
}  # fmt: skip


@pytest.mark.parametrize("content, words", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    """BadTuning names the file and the entry."""
    path = tmp_path / "tuning.json"
    text = content if isinstance(content, str) else json.dumps({"schema": 1, "entries": content})
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadTuning, match=words) as caught:
        read(path)
    assert str(path) in caught.value.asked
    assert caught.value.hint


def test_what_is_no_file_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, a device without end, a file of gigabytes: refused at once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "great").open("wb") as file:
        file.truncate(2**33)
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "device", tmp_path / "great"):
        with pytest.raises(BadTuning):
            read(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFile, match="write measured plans"):
        write(tmp_path / "file" / "tuning.json", [])
