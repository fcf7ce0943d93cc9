"""Level 4: the same bytes everywhere, and a banner that tells the truth."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scanops.codegen import ScanSpec, generate
from scanops.codegen.targets import TARGETS
from tests.templates.cases import WIDER
from tests.templates.reading import body_below_banner
from tools.golden import GOLDEN, Golden

RENDER = """
import hashlib, sys
from scanops.codegen import ScanSpec, generate
from tools.golden import golden_files
for name, text in golden_files().items():
    print(name, hashlib.sha256(text.encode()).hexdigest())
for target in sys.argv[1].split(","):
    for slug in sys.argv[2].split(","):
        print(target, slug, hashlib.sha256(generate(ScanSpec.parse(slug), target).encode()).hexdigest())
assert "torch" not in sys.modules, "codegen imported torch"
"""
ROOT = Path(__file__).parents[2]
FEW = ("sum-bf16-n100", "prod-f32-n32768-mask_f32-reverse", "sum-f64-n9-inner9-strided", "sum-f32-n99999999-few")
# The first match of each is what would make a text differ from machine to machine, or from day to day.
FOREIGN = {
    "a date": r"\b(?:19|20)\d\d-\d\d-\d\d\b",
    "a time": r"\b\d\d:\d\d:\d\d\b",
    "an absolute path": r"(?<![\w.*/])/(?:home|root|usr|tmp|opt|var|work|mnt|etc|Users)\b",
    "a drive": r"\b[A-Z]:\\",
}

Rendering = subprocess.Popen[str]


def rendering(seed: str, directory: Path) -> Rendering:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "PYTHONPATH": str(ROOT), "TZ": f"UTC+{seed}"}
    return subprocess.Popen(
        [sys.executable, "-c", RENDER, ",".join(TARGETS), ",".join(FEW)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env=environment,
    )


def test_two_processes_render_the_same_bytes(tmp_path: Path) -> None:
    """With other hash seeds, from other directories, in other time zones; and torch is not imported on the way."""
    other = tmp_path / "other"
    other.mkdir()
    processes = [rendering("1", tmp_path), rendering("2", other)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (output for output, _ in outputs)
    assert first == second
    assert len(first.splitlines()) == len(GOLDEN) + 1 + len(TARGETS) * len(FEW)


@pytest.mark.parametrize("spec", WIDER, ids=str)
def test_nothing_of_this_machine_is_in_the_text(spec: ScanSpec) -> None:
    text = generate(spec)
    for what, pattern in FOREIGN.items():
        found = re.search(pattern, text)
        assert found is None, f"{what}: {found}"
    for word in (getpass.getuser(), socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    assert text.isascii()


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_the_banner_tells_the_truth(row: Golden) -> None:
    for target in ("sm_75", "sm_90"):
        text = generate(row.spec, target)
        banner = text.split("\n\n", 1)[0]
        assert all(line.startswith("//") for line in banner.splitlines())

        digest = re.search(r"^// content  sha256 ([0-9a-f]{16,64}) ", banner, re.MULTILINE)
        assert digest, banner
        assert hashlib.sha256(body_below_banner(text).encode()).hexdigest().startswith(digest[1])

        again = re.search(r"^// again    (.+)$", banner, re.MULTILINE)
        assert again, banner
        command = shlex.split(again[1])
        assert command == ["scanops", "generate", row.slug, "--target", target]


def test_the_command_of_the_banner() -> None:
    """As it stands there, through the installed command."""
    script = Path(sys.executable).with_name("scanops")
    if not script.exists():
        pytest.skip("the scanops command is not installed beside this Python")
    text = generate(GOLDEN[0].spec)
    again = re.search(r"^// again    scanops (.+)$", text, re.MULTILINE)
    assert again
    done = subprocess.run([script, *shlex.split(again[1])], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == text


@pytest.mark.parametrize("target", TARGETS)
def test_targets_differ_in_banner_and_intrinsics_alone(target: str) -> None:
    """One body serves all targets, except for what intrinsics.cuh.j2 decides."""
    spec = ScanSpec.parse("sum-f32-n4096-mask_f32")
    assert body_below_banner(generate(spec, target)) == body_below_banner(generate(spec))
    bfloat = generate(ScanSpec.parse("sum-bf16-n100"), target)
    assert ("cvt.rn.bf16" in bfloat) == TARGETS[target].bfloat_convert
