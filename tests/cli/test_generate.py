"""``scanops generate``"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops import ScanSpec, generate, make_plan

Call = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
SLUG = "sum-f32-n32768-mask_b8-reverse"


def test_piped_it_is_the_very_text(process: Process) -> None:
    done = process("generate", SLUG)
    assert done.returncode == 0
    assert done.stdout == generate(ScanSpec.parse(SLUG))
    assert done.stderr == ""


def test_on_a_terminal_it_is_coloured_and_nothing_is_lost(process: Process) -> None:
    shown = process("generate", SLUG, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="40").stdout
    assert "\x1b[" in shown
    source = generate(ScanSpec.parse(SLUG))
    longest = max(source.splitlines(), key=len)
    pieces = [piece for piece in longest.split() if piece.isalnum()]
    assert all(piece in shown for piece in pieces)
    assert shown.count("\n") == source.count("\n")


def test_json(call: Call, parsed: Callable[[str], Any]) -> None:
    answer = parsed(call("generate", SLUG, "--target", "sm_80", "--json").stdout)
    spec = ScanSpec.parse(SLUG)
    source = generate(spec, "sm_80")
    assert answer["ok"] is True
    assert answer["spec"] == spec.to_dict()
    assert (answer["slug"], answer["target"]) == (SLUG, "sm_80")
    assert answer["plan"]["summary"] == make_plan(spec, "sm_80").describe()
    assert answer["source"] == source
    assert answer["sha256"] == hashlib.sha256(source.encode()).hexdigest()


def test_to_a_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    result = call("generate", SLUG, "-o", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_bytes() == generate(ScanSpec.parse(SLUG)).encode()


def test_a_file_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    result = call("generate", SLUG, "-o", str(tmp_path / "absent" / "kernel.cu"))
    assert result.exit_code == 1
    assert "UnusableFile" in result.stderr and "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--op, --dtype, --length"),
        (("--op", "sum", "--dtype", "f32"), "--length"),
        ((SLUG, "--unaligned", "--out-dtype", "f64"), "leave out --unaligned, --out-dtype"),
        (("summ-f32-n8",), "did you mean 'sum'?"),
        (("sum-bfloat61-n8",), "did you mean 'bfloat16'?"),
        (("sum-f32-n0",), "1 to 2147483648"),
        (("sum-f32-n" + "9" * 5000,), "write sum-f32-"),
        ((SLUG, "--target", "sm_87"), "use sm_86 or sm_89"),
        ((SLUG, "--target", "sm_60"), "use sm_70"),
        ((SLUG, "--target", "hopper"), "use sm_90"),
        (("sum-f32-n8-revers",), "did you mean 'reverse'?"),
    ],
)
def test_bad_requests(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call("generate", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.replace("\n", " ")
