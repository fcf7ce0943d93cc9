"""Exit codes, the shape of errors, what goes to which stream, and that a refused request does nothing."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import scanops
from scanops import environment
from scanops._version import TESTED, note_untested
from scanops.build_request import PLATFORM
from scanops.cli import main
from scanops.cli.store import store
from scanops.codegen.abi import ABI
from scanops.store.packs import PACK, finish
from scanops.store.signatures import sign
from tests.cli.conftest import PASSPHRASE, Ask, Call, parse_json
from tests.store.sources import script

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


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for color, changes, shown in ((False, {}, False), (True, {}, True), (True, {"NO_COLOR": "1"}, False)):
        result = CliRunner().invoke(main, BAD_SPEC, color=color, env=changes)
        assert ("\x1b[31m\x1b[1m" in result.stderr) is shown, changes


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
        f"generate {SPEC} -o -": "./-",
        "pack . -o -": "./-",
        "precompile absent.toml -o pack --targets cpu": "absent.toml",
        "record -o x": "PROGRAM",
        "record -o - -- true --json": "./-",  # this --json belongs to the program
        "store prune --days many": "many",
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
        f"build {SPEC} --target cpu --target sm_1": "sm_1",
        "tune sum-f32-any": "sum-f32-any",
        "precompile one.toml -o pack": "targets",
        "precompile empty.toml -o pack --targets cpu": "empty.toml",
    },
    ("BadSpecFile", 2): {
        "precompile number.toml -o pack --targets cpu": "number.toml",
        f"generate {SPEC} --import number.toml": "number.toml",
    },
    ("MissingRequirement", 1): {
        f"tune {SPEC}": "GPU",
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
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    ("kind", "code", "line"),
    [(*error, line) for error, lines in REFUSED.items() for line in lines],
    ids=lambda value: str(value)[:60],
)
def test_refused(
    call: Call, ask: Ask, files: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, line: str
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
    left = {str(path.relative_to(files)): path.read_text() for path in files.rglob("*") if path.is_file()}
    assert left == FILES


# ---- scanops doctor: what is absent is no failure, what is broken is


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with torch, a folder of programs that is the whole PATH, and a pack of one kernel."""

    call: Call
    patch: pytest.MonkeyPatch
    programs: Path
    pack: Path

    def doctor(self) -> tuple[Any, dict[str, Any]]:
        """``scanops doctor --json``: (answer, findings by name)."""
        result = self.call("doctor", "--json")
        answer = parse_json(result.stdout)
        checks = {check["name"]: check for check in answer["checks"]}
        assert result.exit_code == (0 if answer["ok"] else 1)
        assert all(check["next"] for check in checks.values() if check["status"] != "ok")
        assert not any("\n" in check["summary"] for check in checks.values())
        return answer, checks

    def gpu(self, *capability: int) -> None:
        """Pretend a GPU of this compute capability."""
        facts = {"is_available": True, "device_count": 1, "get_device_name": "a GPU"}
        for name, value in {**facts, "get_device_capability": capability}.items():
            self.patch.setattr(torch.cuda, name, lambda value=value: value)

    def edit(self, old: str, new: str) -> None:
        """Replace a part of pack.json."""
        text = (self.pack / PACK).read_text()
        assert old in text
        (self.pack / PACK).write_text(text.replace(old, new))


@pytest.fixture
def machine(call: Call, folder: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Neither GPU nor compilers, and a store that does not exist."""
    finish(folder)
    (bare / "open").mkdir()
    (bare / "open").chmod(0o777)
    (bare / "plans.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(bare)
    monkeypatch.setenv("SCANOPS_STORE", str(bare / "deep" / "store"))
    monkeypatch.setenv("SCANOPS_PACKS", str(folder))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return Machine(call=call, patch=monkeypatch, programs=bare / "programs", pack=folder)


def test_this_machine(call: Call) -> None:
    answer = parse_json(call("doctor", "--json").stdout)
    assert {"torch", "GPU", "driver", "nvcc", "g++", "ninja", "store"} <= {check["name"] for check in answer["checks"]}
    assert answer["can"]["compose"] is True
    assert {row["name"] for row in answer["variables"]} == {row.name for row in environment.VARIABLES}


def test_what_is_missing_is_no_failure(machine: Machine, tmp_path: Path) -> None:
    """Doctor creates nothing."""
    machine.patch.delenv("SCANOPS_PACKS")
    answer, found = machine.doctor()
    missing = {name for name, check in found.items() if check["status"] == "missing"} - {"driver"}
    assert (answer["ok"], missing) == (True, {"GPU", "NVRTC", "nvcc", "g++", "ninja", "builders", "native calls"})
    assert answer["can"] == {"run": False, "build": False, "emulate": False, "compose": True}
    assert not (tmp_path / "deep").exists()
    text = machine.call("doctor")
    assert text.exit_code == 0 and answer["verdict"] == text.stdout.splitlines()[-1]
    assert all(check["next"] in text.stdout for check in found.values() if check["next"])
    script(machine.programs / "g++", "echo g++ 12")
    assert machine.doctor()[0]["can"] == {"run": False, "build": False, "emulate": True, "compose": True}


def test_untested_versions_are_named(machine: Machine) -> None:
    words = [note_untested(name, "3.99.1+cpu") for name in TESTED]
    machine.patch.setattr(torch, "__version__", "3.99.1+cpu")
    machine.patch.setattr(platform, "python_version", lambda: "3.99.1+cpu")
    assert all(words) and machine.doctor()[1]["torch"]["summary"].endswith("".join(words))
    assert [note_untested(name, f"{version}.1") for name in TESTED for version in TESTED[name]] == [""] * 4


Change = Callable[[Machine], object]


def setting(name: str, value: str) -> Change:
    return lambda machine: machine.patch.setenv(name, value)


BROKEN: tuple[tuple[str, Change, str], ...] = (
    ("SCANOPS_LOCK_SECONDS", setting("SCANOPS_LOCK_SECONDS", "soon"), ""),
    ("SCANOPS_POLICY", setting("SCANOPS_POLICY", "soon"), ""),
    ("SCANOPS_RECORD", setting("SCANOPS_RECORD", "~no-such-user/specs.toml"), ""),
    ("SCANOPS_REQUIRE_SIGNED", setting("SCANOPS_REQUIRE_SIGNED", ""), ""),
    ("SCANOPS_TUNING", setting("SCANOPS_TUNING", "absent.json:plans.json"), ""),  # fails each lookup of a kernel
    ("store", setting("SCANOPS_STORE", "plans.json"), ""),
    ("store", setting("SCANOPS_STORE", "open"), ""),  # others may write there
    ("GPU", lambda machine: machine.gpu(3, 5), ""),
    ("nvcc", lambda machine: script(machine.programs / "nvcc", "echo cannot load >&2; exit 127"), ""),
    ("nvcc", setting("SCANOPS_NVCC", "absent"), ""),
    ("NVRTC", setting("SCANOPS_NVRTC", "absent"), "absent"),
    ("SCANOPS_BUILDER", setting("SCANOPS_BUILDER", "gcc"), ""),
    ("pack", lambda machine: machine.edit('"schema": 4', '"schema": 2'), "kernels: 2"),
    ("pack", lambda machine: machine.edit(f'"abi": {ABI}', '"abi": 1'), "ABI 1"),
    ("pack", lambda machine: machine.edit(PLATFORM, "linux-vax"), "linux-vax"),
    ("pack", lambda machine: next(machine.pack.glob("*/kernel.so")).chmod(0o666), "kernel.so: others may write"),
    ("pack", lambda machine: machine.pack.chmod(0o777), "mode 0777"),
    ("pack", setting("SCANOPS_PACKS", "typo"), "no such folder"),
    ("SCANOPS_POLCY", setting("SCANOPS_POLCY", "never"), "no variable of scanops"),
    ("SCANOPS_NATIVE", setting("SCANOPS_NATIVE", "maybe"), "cannot read SCANOPS_NATIVE: 'maybe'"),
    ("SCANOPS_TUNING", setting("SCANOPS_TUNING", "nope.json"), "no such file"),
)


@pytest.mark.parametrize(("check", "change", "part"), BROKEN)
def test_what_is_broken_is_a_failure(machine: Machine, check: str, change: Change, part: str) -> None:
    script(machine.programs / "g++", "echo g++ 12")
    change(machine)
    answer, found = machine.doctor()
    assert (answer["ok"], found[check]["status"], found[check].get("writable", False)) == (False, "broken", False)
    assert part in found[check]["summary"] and check in answer["verdict"] and not answer["can"]["build"]


def test_a_pack_and_who_signed_it(machine: Machine, keys: tuple[Path, Path]) -> None:
    (private, public), (answer, found) = keys, machine.doctor()
    facts = {name: found["pack"][name] for name in ("status", "kernels", "targets", "signed")}
    assert facts == {"status": "ok", "kernels": 1, "targets": ["cpu"], "signed": False}
    assert (answer["ok"], answer["can"]["emulate"], answer["can"]["build"]) == (True, True, False)
    machine.patch.setenv("SCANOPS_REQUIRE_SIGNED", str(public))
    assert machine.doctor()[1]["pack"]["status"] == "broken"
    signer = sign(machine.pack, private, lambda: PASSPHRASE)
    _, found = machine.doctor()
    assert (found["pack"]["status"], found["pack"]["signer"]) == ("ok", signer)
    assert found["SCANOPS_REQUIRE_SIGNED"]["keys"] == [signer]
    machine.patch.setenv("SCANOPS_REQUIRE_SIGNED", str(private))
    assert "a private key" in machine.doctor()[1]["SCANOPS_REQUIRE_SIGNED"]["summary"]


def test_a_pack_for_another_gpu_and_a_read_only_store(machine: Machine) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    machine.patch.setattr(tempfile, "TemporaryDirectory", refused)
    answer, found = machine.doctor()
    assert (answer["ok"], found["store"]["status"]) == (True, "missing")
    machine.gpu(8, 7)
    answer, found = machine.doctor()
    assert (found["GPU"]["status"], found["GPU"]["target"]) == ("ok", "sm_86")
    assert (found["pack"]["status"], answer["can"]["run"]) == ("missing", False)
    assert "--targets sm_86" in found["pack"]["next"]
    machine.edit('"targets": [\n  "cpu"', '"targets": [\n  "sm_86"')
    assert machine.doctor()[0]["can"]["run"] is True
    (machine.pack / PACK).unlink()
    found = machine.doctor()[1]
    assert (found["pack"]["status"], "no pack.json" in found["pack"]["summary"]) == ("missing", True)
    machine.patch.delenv("SCANOPS_PACKS")
    assert machine.doctor()[1]["store"]["status"] == "broken"
