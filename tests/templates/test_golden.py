"""``generated/`` is what the templates give; and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops import ScanSpec, generate
from scanops.codegen.plan import STRATEGIES
from tools.golden import GOLDEN, golden_files, main

DIRECTORY = Path(__file__).parents[2] / "generated"


def test_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is as rendered now, and there are no others."""
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {path.name for path in DIRECTORY.iterdir()} == golden_files().keys()


def test_the_list_shows_each_strategy_and_each_class() -> None:
    """At most 20 kernels, so that a reader can look at all of them; slugs are canonical and differ."""
    specs = [row.spec for row in GOLDEN]
    assert [spec.slug for spec in specs] == [row.slug for row in GOLDEN]
    assert len({row.slug for row in GOLDEN}) == len({row.shows for row in GOLDEN}) == len(GOLDEN) <= 20
    assert {row.plan.strategy for row in GOLDEN} == set(STRATEGIES)
    assert {spec.accumulator.kind for spec in specs} == {"int", "float", "complex"}
    assert {spec.operator.name for spec in specs} >= {"sum", "prod", "linear", "logcumsumexp", "cummax"}
    assert {(spec.reverse, spec.exclusive) for spec in specs} >= {(False, False), (True, False), (True, True)}


def test_the_command_writes_checks_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files without the banner are kept, and a check reports stale and missing files without writing them."""
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
