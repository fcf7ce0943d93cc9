from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import scanops
from scanops import artifact, files
from scanops.artifact import BuildRequest
from scanops.errors import UnsupportedRequest
from scanops.store import identity

CUDA = BuildRequest(name="sum-f32", source="int x;", target="sm_90")
CPU = replace(CUDA, target="cpu")


@pytest.mark.parametrize(
    "other",
    [
        replace(CUDA, source="int y;"),
        replace(CUDA, target="sm_80"),
        replace(CUDA, target="sm_90a"),
        replace(CUDA, options=("-lineinfo",)),
        CPU,
    ],
)
def test_identity_depends_on_source_target_and_flags(other: BuildRequest) -> None:
    assert other.identity != CUDA.identity


def test_identity_depends_on_abi_schema_and_link_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {CUDA.identity}
    for name, value in (("ABI", artifact.ABI + 1), ("SCHEMA", artifact.SCHEMA + 1), ("LINK_FLAGS", ())):
        with monkeypatch.context() as patch:
            patch.setattr(artifact, name, value)
            seen.add(replace(CUDA).identity)
    assert len(seen) == 4


def test_identity_does_not_depend_on_names_or_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = CUDA.identity
    assert len(before) == 64
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", "another")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path))
    assert replace(CUDA, name="another").identity == before


def test_identity_for_the_cpu_follows_the_emulator_s_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = []
    for place, text in (("here", "// one"), ("there", "// one"), ("elsewhere", "// another")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "cuda_runtime.h").write_text(text)
        monkeypatch.setattr(artifact, "EMULATOR", tmp_path / place)
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
    assert set(identity.source_digests()) == set(files.TREES)


def test_the_abi_is_declared_once() -> None:
    """Every library gets the number from Python: a generated kernel, the laws of operators, the native call path."""
    for spec in ("sum-f32-n8", "max-f32-n5000"):
        assert f"int scanops_abi() {{ return {artifact.ABI}; }}" in scanops.generate(scanops.ScanSpec.parse(spec))
    root = Path(scanops.__file__).parents[1]
    texts = [*(root / "templates").rglob("*.j2"), *(root / "scanops").rglob("*.cpp")]
    declared = [path for path in texts if re.search(r"scanops_abi\(\) \{ return \d", path.read_text(encoding="utf-8"))]
    assert declared == []


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
