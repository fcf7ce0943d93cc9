"""Exit codes, the shape of errors, and what goes to which stream, for every command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import scanops
from scanops.cli import main
from scanops.cli.store import store

Call = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
BAD_SPEC = ("generate", "sum-f32")


COMMANDS = [(name,) for name in sorted(main.commands) if name != "store"]
COMMANDS += [("store", name) for name in store.commands]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_json_and_an_example(call: Call, words: tuple[str, ...]) -> None:
    result = call(*words, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert f"Example:\n    scanops {' '.join(words)}" in result.stdout


def test_help_shows_whole_summaries_at_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), ("store",)):
        commands = call(*words, "--help").stdout.partition("Commands:")[2]
        assert commands and "..." not in commands


def test_version(call: Call) -> None:
    assert call("--version").stdout == f"scanops {scanops.__version__}\n"


def test_an_error_has_four_parts_on_stderr(call: Call) -> None:
    result = call(*BAD_SPEC)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("UnsupportedRequest: ") and "'sum-f32'" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["allowed", "got", "next"]


def test_an_error_as_json(call: Call, parsed: Callable[[str], Any]) -> None:
    result = call(*BAD_SPEC, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    answer = parsed(result.stdout)
    assert answer["ok"] is False
    assert answer["error"]["kind"] == "UnsupportedRequest"
    assert set(answer["error"]) == {"kind", "asked", "allowed", "value", "next"}
    assert all(answer["error"].values())


def test_a_usage_error_is_2_and_says_nothing_on_stdout(call: Call) -> None:
    for words in (("nonsense",), ("build",), ("generate", "--length", "many")):
        result = call(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Usage:" in result.stderr


def test_a_usage_error_as_json(call: Call, parsed: Callable[[str], Any]) -> None:
    """Whether click finds it or the command does."""
    for words in (
        ("build",),
        ("generate", "--length", "many"),
        ("store", "prune"),
        ("record", "-o", "x"),
        ("tune", "--merge"),
    ):
        result = call(*words, "--json")
        assert (result.exit_code, result.stderr) == (2, ""), words
        answer = parsed(result.stdout)
        assert answer["ok"] is False and answer["error"]["kind"] == "UsageError"
        assert set(answer["error"]) == {"kind", "asked", "allowed", "value", "next"} and all(answer["error"].values())
    # What belongs to the program is no option of ours.
    result = call("record", "-o", "-", "--", "true", "--json")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("name", ["generate", "export"])
def test_a_dash_is_standard_output_for_what_is_one_text(
    call: Call, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(name, "sum-f32-n4", "-o", "-").stdout == call(name, "sum-f32-n4").stdout != ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("tune", "sum-f32-n4"), ("record", "-o", "-", "--", "true"), ("pack", ".")])
def test_a_dash_is_no_file(call: Call, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words, *(() if "-o" in words else ("-o", "-")))
    assert (result.exit_code, "./-" in result.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_colours_on_a_terminal_only(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b" not in call(*BAD_SPEC).stderr
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31m" in call(*BAD_SPEC).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in call(*BAD_SPEC).stderr


def test_what_needs_no_torch_does_not_import_it() -> None:
    code = """
import sys
from scanops.cli import main
from scanops.cli.store import store
for words in (["--help"], ["generate", "sum-f32-n100"], ["generate", "sum-f32-n100", "--json"]):
    try:
        main(words)
    except SystemExit as done:
        assert done.code == 0, words
    assert "torch" not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_without_torch() -> None:
    """Commands that need torch say so; doctor reports what is missing."""
    code = """
import sys
sys.modules["torch"] = None
from scanops.cli import main
for words in (["demo"], ["doctor"]):
    try:
        main(words)
    except SystemExit as done:
        assert done.code == 1, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install torch" in done.stdout and "pip install torch" in done.stderr
