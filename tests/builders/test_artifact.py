from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from scanops import artifact, files
from scanops.artifact import BuildRequest
from scanops.errors import UnsupportedRequest

CUDA = BuildRequest(name="sum-f32", source="int x;", target="sm_90")
CPU = replace(CUDA, target="cpu")


def test_what_an_identity_follows_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source, target, options, ABI and schema, but no name and no path."""
    changes = ({"source": "int y;"}, {"target": "sm_80"}, {"target": "sm_90a"}, {"target": "cpu"}, {"options": ("-g",)})
    seen = {CUDA.identity, *(replace(CUDA, **change).identity for change in changes)}
    for name, value in (("ABI", artifact.ABI + 1), ("SCHEMA", artifact.SCHEMA + 1), ("LINK_FLAGS", ())):
        with monkeypatch.context() as patch:
            patch.setattr(artifact, name, value)
            seen.add(replace(CUDA).identity)
    assert len(seen) == 9 and {len(identity) for identity in seen} == {64}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", "another")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path))
    assert replace(CUDA, name="another").identity == CUDA.identity  # and from no name or path


def test_identity_for_the_cpu_follows_the_emulator_s_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = []
    for place, text in (("here", "// one"), ("there", "// one"), ("elsewhere", "// another")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "cuda_runtime.h").write_text(text)
        monkeypatch.setitem(artifact.FOLDERS, "emulator", tmp_path / place)
        identities.append(replace(CPU).identity)
        assert replace(CUDA).identity == CUDA.identity
    assert identities[0] == identities[1] != identities[2]


def test_the_digest_of_sources_follows_from_names_and_bytes_alone(tmp_path: Path) -> None:
    """No time, size or place counts, and no file that is no source."""
    digests = []
    for place, name, text in (("a", "x.py", "1"), ("b", "x.py", "1"), ("c", "x.py", "2"), ("d", "y.py", "1")):
        folder = tmp_path / place / "below"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        os.utime(folder / name, (0, 0))
        (folder / f"{place}.pyc").write_text(place)
        digests.append(files.digest(tmp_path / place))
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert set(artifact.source_digests()) == set(files.TREES)


@pytest.mark.parametrize(
    "changes",
    [{"target": text} for text in ("", "sm_", "sm_9x", "compute_90", "gpu", "sm_90 -o x")]
    + [{"name": text} for text in ("", ".hidden", "../up", "a/b", "a b", "x" * 152)],
    ids=repr,
)
def test_targets_and_names_that_are_none(changes: dict[str, str]) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        replace(CUDA, **changes)
    assert caught.value.value in map(repr, changes.values())
