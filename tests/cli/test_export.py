"""``scanops export``"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import scanops
from scanops import ScanSpec

Call = Callable[..., Result]
SLUG = "sum-f32-n32768-mask_b8"


def test_it_is_the_text_of_the_function(call: Call, tmp_path: Path) -> None:
    text = scanops.export(ScanSpec.parse(SLUG), "kernelbench", "sm_80")
    assert call("export", SLUG, "--format", "kernelbench", "--target", "sm_80").stdout == text
    by_options = ("--op", "sum", "--dtype", "f32", "--length", "32768", "--mask", "bool")
    file = tmp_path / "model_new.py"
    result = call("export", *by_options, "--format", "kernelbench", "--target", "sm_80", "-o", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_text() == text


def test_json_of_several_specs(call: Call, parsed: Callable[[str], Any]) -> None:
    slugs = ["prod-f32-n1024", "prod-f32-n1024-inner1024"]
    answer = parsed(call("export", *slugs, "--json").stdout)
    text = scanops.export([ScanSpec.parse(slug) for slug in slugs])
    assert (answer["ok"], answer["specs"], answer["format"], answer["target"]) == (True, slugs, "modelnew", "sm_90")
    assert answer["text"] == text
    assert answer["sha256"] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--op, --dtype, --length"),
        ((SLUG, "--format", "pdf"), "modelnew, cu, kernelbench, gpumode"),
        ((SLUG, "--format", "gpumode"), "one input"),
        ((SLUG, "--target", "sm_1"), "sm_90"),
    ],
)
def test_bad_requests(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call("export", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.replace("\n", " ")
