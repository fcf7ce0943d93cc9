"""Exit codes, the shape of errors, and what goes to which stream, for every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

import scanops
from scanops.cli import main
from scanops.cli.store import store
from tests.cli.conftest import Call

BAD_SPEC = ("generate", "sum-f32")
COMMANDS = [(name,) for name in sorted(main.commands) if name != "store"]
COMMANDS += [("store", name) for name in store.commands]


def test_help_and_version(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command has --json and an example; summaries are whole at 80 columns."""
    for words in COMMANDS:
        result = call(*words, "--help")
        assert result.exit_code == 0 and "--json" in result.stdout
        assert f"Example:\n    scanops {' '.join(words)}" in result.stdout
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), ("store",)):
        commands = call(*words, "--help").stdout.partition("Commands:")[2]
        assert commands and "..." not in commands
    assert call("--version").stdout == f"scanops {scanops.__version__}\n"


def test_an_error_has_four_parts(call: Call) -> None:
    lines = call(*BAD_SPEC).stderr.splitlines()
    assert lines[0].startswith("UnsupportedRequest: ") and "'sum-f32'" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["allowed", "got", "next"]


def test_a_dash_is_standard_output(call: Call) -> None:
    for name in ("generate", "export"):
        assert call(name, "sum-f32-n4", "-o", "-").stdout == call(name, "sum-f32-n4").stdout != ""


def test_colours_on_a_terminal_only(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b" not in call(*BAD_SPEC).stderr
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31m" in call(*BAD_SPEC).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in call(*BAD_SPEC).stderr


def test_without_torch() -> None:
    """What needs torch says so, and doctor reports it."""
    code = "import sys; sys.modules['torch'] = None; from scanops.cli import main; main([sys.argv[1]])"
    for name, stream in (("demo", "stderr"), ("doctor", "stdout")):
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
        assert (done.returncode, "pip install torch" in getattr(done, stream)) == (1, True), done.stderr
