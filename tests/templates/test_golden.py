"""Level 2: generated/ is what the templates give; and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen import ScanSpec, generate
from tests.templates.cases import STRATEGIES
from tools.golden import GOLDEN, Golden, golden_files, main

DIRECTORY = Path(__file__).parents[2] / "generated"
MOST = 20  # of which a reader can look at every one


def test_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_generated_holds_nothing_else() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == golden_files().keys()


def test_the_list_shows_each_strategy_and_each_class_once() -> None:
    specs = [row.spec for row in GOLDEN]
    assert len(GOLDEN) <= MOST
    assert {row.plan.strategy for row in GOLDEN} == set(STRATEGIES)
    assert {spec.accumulator.kind for spec in specs} == {"int", "float", "complex"}
    assert {spec.out.bytes for spec in specs} == {2, 4, 8}
    assert {spec.operator.name for spec in specs} >= {"sum", "prod", "linear", "logcumsumexp", "cummax"}
    assert {(spec.reverse, spec.exclusive) for spec in specs} >= {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_a_slug_is_the_one_of_its_spec(row: Golden) -> None:
    assert row.spec.slug == row.slug


def test_slugs_and_descriptions_differ() -> None:
    assert len({row.slug for row in GOLDEN}) == len({row.shows for row in GOLDEN}) == len(GOLDEN)


def test_the_command_writes_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["--directory", str(tmp_path)]
    (tmp_path / "sum-f32-n5.cu").write_text(generate(ScanSpec(op="sum", dtype="float32", length=5)))
    (tmp_path / "own.cu").write_text("// somebody's own\n")
    assert main(here) == 0
    assert "removed sum-f32-n5.cu" in capsys.readouterr().out
    written = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "own.cu"}
    assert written == golden_files() and (tmp_path / "own.cu").exists()
    assert main(["--check", *here]) == 0

    stale, missing = (tmp_path / row.file for row in GOLDEN[:2])
    text = stale.read_text().replace("scan_kernel", "kernel")
    stale.write_text(text)
    missing.unlink()
    capsys.readouterr()
    assert main(["--check", *here]) == 1
    said = capsys.readouterr().out
    assert f"{stale.name}: stale" in said and f"{missing.name}: missing" in said and "+scan_kernel" in said
    assert len(said.splitlines()) < 40
    assert stale.read_text() == text and not missing.exists()
