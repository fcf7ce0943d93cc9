"""Names of code, as far as a script can judge them: functions are verbs, and no two things share a name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import figures

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (figures.ROOT / ".git").exists(), reason="needs a git checkout"
)

# Names that are left to change: they only become fewer.
PARTICIPLES = {
    "scanops/ops/linearised.py kept",
}
REPEATED = {
    "classes": {"Layout"},
    "aliases": {"Function", "Outputs", "Scan", "States", "Tensors"},
    "modules": {"fused"},
}


@pytest.fixture(scope="module")
def sources() -> list[Path]:
    """The sources of the package and of the generator."""
    return [*figures.sources("scanops"), *figures.sources("codegen")]


def test_no_function_is_called_by_a_participle(sources: list[Path]) -> None:
    found = {place.partition(":")[0] + " " + place.split()[1] for place in figures.participles(sources)}
    assert sorted(found - PARTICIPLES) == []


def test_no_two_classes_aliases_or_modules_share_a_name(sources: list[Path]) -> None:
    found = figures.find_repeated_names(sources)
    assert {
        kind: {name: at for name, at in found[kind].items() if name not in REPEATED[kind]} for kind in REPEATED
    } == {kind: {} for kind in REPEATED}


def test_constants_of_kernels_are_not_in_lower_case() -> None:
    kernels = [path for path in figures.list_tracked("generated") if path.suffix == ".cu"]
    assert len(kernels) >= 8
    found = {path.name: figures.lower_case_constants(path.read_text(encoding="utf-8")) for path in kernels}
    assert {name: names for name, names in found.items() if names} == {}


def test_which_constants_are_found() -> None:
    text = """
constexpr int kRight = 1, tile = 2;
static constexpr unsigned long long wrong = 1ull;
struct A {
    static constexpr int kFine = 2;
    static constexpr bool is_flat = true;
};
constexpr int place_of(int k) { return k; }
inline constexpr float list[] = {1};
void f() {
    constexpr int rows = kRight;
    if constexpr (kRight == 1) return;
}
"""
    assert figures.lower_case_constants(text) == ["wrong", "is_flat", "list"]
