from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scanops import artifact
from scanops.artifact import BuildRequest
from scanops.errors import UnsupportedRequest

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
            seen.add(CUDA.identity)
    assert len(seen) == 4


def test_identity_does_not_depend_on_names_or_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = CUDA.identity
    assert len(before) == 64
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANOPS_CXX", "another")
    monkeypatch.setenv("SCANOPS_STORE", str(tmp_path))
    assert replace(CUDA, name="another").identity == before


def test_identity_for_the_cpu_follows_the_emulator_s_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / name for name in ("here", "there")]
    for place in places:
        place.mkdir()
        (place / "cuda_runtime.h").write_text("// one\n")
    identities = []
    for place in places:
        monkeypatch.setattr(artifact, "EMULATOR", place)
        identities.append(CPU.identity)
    assert identities[0] == identities[1]
    unaffected = CUDA.identity
    (places[1] / "cuda_runtime.h").write_text("// another\n")
    assert CPU.identity != identities[1]
    (places[0] / "warp.h").write_text("")
    monkeypatch.setattr(artifact, "EMULATOR", places[0])
    assert CPU.identity != identities[0]
    assert CUDA.identity == unaffected


def test_flags_hold_the_word_arch_and_no_path() -> None:
    assert CUDA.flags == ("-std=c++17", "-O3", "-gencode=arch=compute_90,code=sm_90")
    assert not any("/" in flag for flag in CPU.flags + CUDA.flags)


@pytest.mark.parametrize("target", ["", "sm_", "sm_9x", "compute_90", "gpu", "sm_90 -o x"])
def test_a_target_that_is_none(target: str) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        replace(CUDA, target=target)
    assert caught.value.value == repr(target)


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 152])
def test_a_name_that_is_no_file_name(name: str) -> None:
    with pytest.raises(UnsupportedRequest):
        replace(CUDA, name=name)
