"""Level 2: generated/ is what the templates give; and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanops.codegen import ScanSpec, generate
from scanops.codegen.__main__ import main
from scanops.codegen.dtypes import DTYPES
from scanops.codegen.golden import COMMAND, GOLDEN, Golden, golden_files
from scanops.codegen.operators import OPERATORS
from scanops.codegen.targets import TARGETS
from tests.templates.cases import STRATEGIES

DIRECTORY = Path(__file__).parents[2] / "generated"
LEAST = 16


def test_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--golden", "--check", "--directory", str(DIRECTORY)]) == 0, capsys.readouterr().out


def test_generated_holds_nothing_else() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == golden_files().keys()


def test_the_list_covers_what_there_is() -> None:
    assert len(GOLDEN) >= LEAST
    specs = [row.spec for row in GOLDEN]
    strategies = [row.plan.strategy for row in GOLDEN if row.spec.length is not None]  # the others come last
    assert set(strategies) == set(STRATEGIES)
    assert strategies == sorted(strategies, key=strategies.index), "the list is not grouped by strategy"
    assert {spec.dtype for spec in specs} >= {"float32", "float64", "float16", "bfloat16", "int32", "int64"}
    assert {spec.mask for spec in specs} >= {None, "bool", "float32"}
    assert {(spec.reverse, spec.exclusive) for spec in specs} == {(r, e) for r in (True, False) for e in (True, False)}
    assert {spec.input_layout for spec in specs} == {"dense", "rows", "columns", "transposed", "strided"}
    assert {spec.mask_layout for spec in specs} == {"dense", "strided"}
    assert {spec.aligned for spec in specs} == {True, False}
    assert {row.plan.loops for row in GOLDEN if row.plan.strategy == "columns"} == {True, False}


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_a_slug_is_the_one_of_its_spec(row: Golden) -> None:
    assert row.spec.slug == row.slug


def test_slugs_and_descriptions_differ() -> None:
    assert len({row.slug for row in GOLDEN}) == len({row.shows for row in GOLDEN}) == len(GOLDEN)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an empty generated/ in it, which is where the command runs."""
    (tmp_path / "generated").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "generated"


def test_golden_renders_and_removes(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "sum-f32-n5.cu").write_text(generate(ScanSpec(op="sum", dtype="float32", length=5)))
    (checkout / "own.cu").write_text("// somebody's own\n")
    assert main(["--golden"]) == 0
    written = {path.name: path.read_text() for path in checkout.iterdir() if path.name != "own.cu"}
    assert written == golden_files()
    assert (checkout / "own.cu").exists()
    assert main(["--golden", "--check"]) == 0
    assert "removed sum-f32-n5.cu" in capsys.readouterr().out


def test_check_says_what_is_stale_and_writes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--golden"]) == 0
    stale, missing = (checkout / row.file for row in GOLDEN[:2])
    text = stale.read_text().replace("scan_kernel", "kernel")
    stale.write_text(text)
    missing.unlink()
    capsys.readouterr()

    assert main(["--golden", "--check"]) == 1
    said = capsys.readouterr().out
    assert f"{stale.name}: stale" in said and f"{missing.name}: missing" in said
    assert "+scan_kernel" in said and COMMAND in said
    assert len(said.splitlines()) < 40
    assert stale.read_text() == text and not missing.exists()


def test_golden_elsewhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--golden"]) == 2
    assert "--directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_slug_prints_its_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sum-bf16-n100", "--target", "sm_75"]) == 0
    assert capsys.readouterr().out == generate(ScanSpec.parse("sum-bf16-n100"), "sm_75")


@pytest.mark.parametrize("arguments", [["median-f32-n5"], ["sum-f32"], ["sum-f32-n5", "--target", "sm_1"]])
def test_a_request_that_makes_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "allowed:" in captured.err and "next:" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--check"], ["--list", "--golden"], ["--check", "sum-f32-n5"]])
def test_a_command_line_that_makes_no_sense(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_list_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    first = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert first == {"operator", "dtype", "target", *OPERATORS, *DTYPES, *TARGETS}
