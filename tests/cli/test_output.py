"""Exit codes, the shape of errors, what goes to which stream, and that a refused request does nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scanops
from scanops.cli import main
from scanops.cli.store import store
from tests.cli.conftest import Ask, Call

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
    """And no character of a kernel is lost where lines are short."""
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    plain = call("generate", "sum-f32-n4").stdout
    assert "\x1b" not in plain + call(*BAD_SPEC).stderr
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    assert "\x1b[1;31m" in call(*BAD_SPEC).stderr
    shown = call("generate", "sum-f32-n4").stdout
    assert "\x1b[" in shown and re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain
    assert "\x1b[1;31m" not in call(*BAD_SPEC, NO_COLOR="1").stderr


def test_without_torch() -> None:
    """What needs torch says so, and doctor reports it."""
    code = "import sys; sys.modules['torch'] = None; from scanops.cli import main; main([sys.argv[1]])"
    for name, stream in (("demo", "stderr"), ("doctor", "stdout")):
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
        assert (done.returncode, "pip install torch" in getattr(done, stream)) == (1, True), done.stderr


FILES = {
    "one.toml": 'specs = ["sum-f32-n7"]',
    "number.toml": "specs = 3",
    "empty.toml": "",
    "plans.json": "{",
    "earlier.json": '{"cells": []}',
    "plain/file": "",
}
SPEC, LONG = "sum-f32-n4", "9" * 5000
# (kind of the error, exit code) -> command lines as typed in a shell, each with a part of the error
REFUSED: dict[tuple[str, int], dict[str, str]] = {
    ("UsageError", 2): {
        **dict.fromkeys(("generate", "export", "plan", "build", "tune"), "SPEC"),
        f"generate {SPEC} --lines many": "many",
        f"tune {SPEC} --rounds 1": "1",
        f"tune {SPEC} -o -": "./-",
        "pack . -o -": "./-",
        "precompile absent.toml -o pack --targets cpu": "absent.toml",
        "record -o x": "PROGRAM",
        "record -o - -- true --json": "./-",  # this --json belongs to the program
        "store prune": "--max-size",
        "store verify plain --key no.pem": "does not exist",
    },
    ("UnsupportedRequest", 2): {
        "generate sum-f32": "'sum-f32'",
        "generate summ-f32-n8": "did you mean 'sum'?",
        f"generate sum-f32-n{LONG}": "write sum-f32-",
        f"generate {SPEC} --target sm_87": "use sm_86 or sm_89",
        f"generate {SPEC}-gate_f32": "gate",
        f"export {SPEC} --format pdf": "modelnew, cu, kernelbench, gpumode",
        "plan sum-f32-n9-inner4 --lines 6": "6",
        "plan sum-f32-n8 --ranks 0": "ranks=0",
        f"build {SPEC} --target cpu --target sm_1": "sm_1",
        "tune sum-f32-any": "sum-f32-any",
        "bench --groups table,everything": "everything",
        "bench --filter 'no such cell'": "no such cell",
        "bench --into earlier.json": "earlier.json",
        "precompile one.toml -o pack": "targets",
        "precompile empty.toml -o pack --targets cpu": "empty.toml",
        "store prune --max-size much": "much",
    },
    ("BadSpecFile", 2): {"precompile number.toml -o pack --targets cpu": "number.toml"},
    ("MissingRequirement", 1): {
        f"generate {SPEC} --import no_such_module": "no_such_module",
        f"tune {SPEC}": "GPU",
        "bench": "GPU",
        "record -- /no/such/program": "/no/such/program",
    },
    ("UnusableFile", 1): {
        f"generate {SPEC} -o absent/kernel.cu": "absent/kernel.cu",
        "record -o one.toml/more.toml -- touch ran": "one.toml/more.toml",
    },
    ("BadTuning", 1): {
        f"SCANOPS_TUNING=plans.json plan {SPEC} --target sm_90": "plans.json",
    },
    ("BadStoreEntry", 1): {
        "precompile one.toml -o one.toml/pack --targets cpu": "one.toml/pack",
        "store verify plain": "neither",
    },
    ("BadSignature", 1): {"store verify plain --key plain/file": "no pack.json"},
    ("MissingCompiler", 1): {"SCANOPS_NVCC=/absent SCANOPS_CXX=no-such-compiler demo": "no-such-compiler"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with FILES; no GPU, and a store and a tuning file that do not exist."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SCANOPS_STORE", "store")
    monkeypatch.setenv("SCANOPS_TUNING", "absent.json")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "code", "line"), [(*error, line) for error, lines in REFUSED.items() for line in lines],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_refused(
    call: Call, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, line: str
) -> None:
    """The error is on stderr, or with --json the document; nothing else is printed."""
    words = shlex.split(line)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    text = call(*words)
    assert (text.exit_code, text.stdout) == (code, ""), text.output
    said = " ".join(text.stderr.split())
    assert said.startswith("Usage:" if kind == "UsageError" else f"{kind}: ") and REFUSED[kind, code][line] in said
    place = 2 if words[0] == "store" else 1
    answer = ask(*words[:place], "--json", *words[place:], code=code)
    assert (answer["ok"], answer["error"]["kind"]) == (False, kind)
    assert answer["error"].keys() == {"kind", "asked", "allowed", "value", "next"} and all(answer["error"].values())
    left = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert left == FILES
