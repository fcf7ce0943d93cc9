"""The same bytes in every process, and a banner whose digest and command are true."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from scanops import ScanSpec, generate
from scanops.codegen.targets import TARGETS
from tests.scripts import ran
from tools.golden import GOLDEN, Golden

RENDER = """
import hashlib, sys
from scanops import ScanSpec, generate
from tests.scripts import ran
from tools.golden import golden_files
for name, text in golden_files().items():
    print(name, hashlib.sha256(text.encode()).hexdigest())
for target in sys.argv[1].split(","):
    for slug in sys.argv[2].split(","):
        print(target, slug, hashlib.sha256(generate(ScanSpec.parse(slug), target).encode()).hexdigest())
assert "torch" not in sys.modules, "codegen imported torch"
"""
ROOT = Path(__file__).parents[2]
FEW = ("sum-bf16-n100", "prod-f32-n32768-mask_f32-reverse", "sum-f64-n9-inner9-strided", "sum-f32-n99999999")


def body_below_banner(source: str) -> str:
    """The text that the banner's digest covers: all below the comment lines and the blank line after them."""
    return source.split("\n\n", 1)[1]


def test_two_processes_render_the_same_bytes(tmp_path: Path) -> None:
    """With other hash seeds, directories, users and time zones; and torch is not imported on the way."""
    outputs = []
    for number in ("1", "2"):
        directory = tmp_path / number
        directory.mkdir()
        names = {"PYTHONHASHSEED": number, "HOME": str(directory), "USER": f"user{number}", "TZ": f"UTC+{number}"}
        words = (sys.executable, "-c", RENDER, ",".join(TARGETS), ",".join(FEW))
        outputs.append(ran(*words, folder=directory, LC_ALL="C", PYTHONPATH=str(ROOT), **names).stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(GOLDEN) + 1 + len(TARGETS) * len(FEW)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.slug)
def test_the_banner_tells_the_truth(row: Golden) -> None:
    """The digest is that of the body, and the command names this kernel; the text is ASCII."""
    lines = row.spec.inner if row.few else None
    text = generate(row.spec, "sm_75", lines=lines)
    banner = text.split("\n\n", 1)[0]
    assert text.isascii() and all(line.startswith("//") for line in banner.splitlines())
    digest = re.search(r"^// content  sha256 ([0-9a-f]{16,64}) ", banner, re.MULTILINE)
    assert digest and hashlib.sha256(body_below_banner(text).encode()).hexdigest().startswith(digest[1])
    again = re.search(r"^// again    (.+)$", banner, re.MULTILINE)
    assert again and shlex.split(again[1]) == [
        *("scanops", "generate", row.slug, "--target", "sm_75"),
        *(("--lines", str(lines)) if lines else ()),
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_targets_differ_in_banner_and_intrinsics_alone(target: str) -> None:
    """One body serves all targets, except for what intrinsics.cuh.j2 decides."""
    spec = ScanSpec.parse("sum-f32-n4096-mask_f32")
    assert body_below_banner(generate(spec, target)) == body_below_banner(generate(spec))
    bfloat = generate(ScanSpec.parse("sum-bf16-n100"), target)
    assert ("cvt.rn.bf16" in bfloat) == TARGETS[target].bfloat_convert
