"""``scanops generate`` and ``scanops export``: the text of the functions of these names."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from scanops import ScanSpec, export, generate, make_plan

Call = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Parsed = Callable[[str], Any]
SLUG = "sum-f32-n32768-mask_b8-reverse"
SPEC = ScanSpec.parse(SLUG)
EXPORTED = "sum-f32-n32768-mask_b8"


def test_on_a_terminal_it_is_coloured_and_nothing_is_lost(process: Process) -> None:
    shown = process("generate", SLUG, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="40").stdout
    assert "\x1b[" in shown
    source = generate(SPEC)
    longest = max(source.splitlines(), key=len)
    assert all(piece in shown for piece in longest.split() if piece.isalnum())
    assert shown.count("\n") == source.count("\n")


def test_generate(call: Call, parsed: Parsed, tmp_path: Path) -> None:
    source = generate(SPEC, "sm_80")
    words = ("generate", SLUG, "--target", "sm_80")
    assert call(*words).stdout == source
    answer = parsed(call(*words, "--json").stdout)
    assert (answer["ok"], answer["spec"], answer["slug"], answer["target"]) == (True, SPEC.to_dict(), SLUG, "sm_80")
    assert answer["plan"]["summary"] == make_plan(SPEC, "sm_80").describe()
    assert (answer["source"], answer["sha256"]) == (source, hashlib.sha256(source.encode()).hexdigest())
    file = tmp_path / "kernel.cu"
    result = call(*words, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", source)
    refused = call(*words, "-o", str(tmp_path / "absent" / "kernel.cu"))
    assert (refused.exit_code, "UnusableFile" in refused.stderr) == (1, True)


def test_export(call: Call, parsed: Parsed, tmp_path: Path) -> None:
    text = export(ScanSpec.parse(EXPORTED), "kernelbench", "sm_80")
    options = ("--format", "kernelbench", "--target", "sm_80")
    assert call("export", EXPORTED, *options).stdout == text
    fields = ("--op", "sum", "--dtype", "f32", "--length", "32768", "--mask", "bool")
    file = tmp_path / "model_new.py"
    result = call("export", *fields, *options, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", text)
    slugs = ["prod-f32-n1024", "prod-f32-n1024-inner1024"]
    answer = parsed(call("export", *slugs, "--json").stdout)
    assert answer["text"] == export([ScanSpec.parse(slug) for slug in slugs])
    assert (answer["ok"], answer["specs"], answer["format"], answer["target"]) == (True, slugs, "modelnew", "sm_90")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate",), "--op, --dtype, --length"),
        (("generate", SLUG, "--unaligned", "--out-dtype", "f64"), "leave out --unaligned, --out-dtype"),
        (("generate", "summ-f32-n8"), "did you mean 'sum'?"),
        (("generate", "sum-bfloat61-n8"), "did you mean 'bfloat16'?"),
        (("generate", "sum-f32-n8-revers"), "did you mean 'reverse'?"),
        (("generate", "sum-f32-n0"), "1 to 2147483648"),
        (("generate", "sum-f32-n" + "9" * 5000), "write sum-f32-"),
        (("generate", SLUG, "--target", "sm_87"), "use sm_86 or sm_89"),
        (("generate", SLUG, "--target", "sm_60"), "use sm_70"),
        (("generate", SLUG, "--target", "hopper"), "use sm_90"),
        (("export",), "--op, --dtype, --length"),
        (("export", EXPORTED, "--format", "pdf"), "modelnew, cu, kernelbench, gpumode"),
        (("export", EXPORTED, "--format", "gpumode"), "one input"),
    ],
)
def test_wrong_requests(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.replace("\n", " ")
