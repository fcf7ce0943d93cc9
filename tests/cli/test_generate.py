"""``scanops generate`` and ``export``, and specs in the words of the command line: every field has an option."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

import pytest

from scanops import ScanSpec, export, generate, make_plan
from scanops.cli import main
from scanops.cli.specs import _FLAGS
from tests.cli.conftest import Ask, Call

SLUG = "sum-f32-n32768-mask_b8-reverse"
SPEC = ScanSpec.parse(SLUG)
EXPORTED = "sum-f32-n32768-mask_b8"
SLUGS = (
    SLUG,
    "prod-f16-n33-inner5-out_f32-exclusive",
    "sum-i32-n1000-mask_f32-strided-strided_mask-unaligned",
    "sum-f64-n100000-few",
    "sum-f32-any-le4096-by4-acc_compensated",
    "linear-bf16-n4096-gate_f32-offsets_i32-initial-final",
    "linear-f32-any-inner64-gate_f32-segments-columns-strided_gate-rows_starts",
)


def words_of(spec: ScanSpec) -> list[str]:
    """Every field of a spec that is not at its default, as options."""
    words = ["--any-length"] if spec.takes_length else []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value != field.default and value is not None:
            switch = field.name in ("reverse", "exclusive", "initial", "final", "aligned", "lines")
            words += [_FLAGS[field.name], *([] if switch else [str(value)])]
    return words


@pytest.mark.parametrize("slug", SLUGS)
def test_options_say_the_same_as_a_slug(call: Call, slug: str) -> None:
    spec = ScanSpec.parse(slug)
    result = call("generate", *words_of(spec))
    assert (result.exit_code, result.stdout) == (0, generate(spec)), result.stderr


def test_every_field_has_an_option() -> None:
    assert set(_FLAGS) - {"any_length"} == {field.name for field in fields(ScanSpec)}
    for name in ("generate", "export", "plan", "build"):
        assert set(_FLAGS.values()) <= {flag for parameter in main.commands[name].params for flag in parameter.opts}


def test_generate(call: Call, ask: Ask, tmp_path: Path) -> None:
    source = generate(SPEC, "sm_80")
    words, file = ("generate", SLUG, "--target", "sm_80"), tmp_path / "kernel.cu"
    answer = ask(*words)
    assert (answer["spec"], answer["slug"], answer["target"]) == (SPEC.to_dict(), SLUG, "sm_80")
    assert answer["plan"]["summary"] == make_plan(SPEC, "sm_80").describe()
    assert (answer["source"], answer["sha256"]) == (source, hashlib.sha256(source.encode()).hexdigest())
    result = call(*words, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", source)


def test_export(call: Call, ask: Ask, tmp_path: Path) -> None:
    text = export(ScanSpec.parse(EXPORTED), "kernelbench", "sm_80")
    options, file = ("--format", "kernelbench", "--target", "sm_80"), tmp_path / "model_new.py"
    assert call("export", EXPORTED, *options).stdout == text
    result = call("export", *words_of(ScanSpec.parse(EXPORTED)), *options, "-o", str(file))
    assert (result.exit_code, result.stdout, file.read_text()) == (0, "", text)
    slugs = ["prod-f32-n1024", "prod-f32-n1024-inner1024"]
    answer = ask("export", *slugs)
    assert answer["text"] == export([ScanSpec.parse(slug) for slug in slugs])
    assert (answer["specs"], answer["format"], answer["target"]) == (slugs, "modelnew", "sm_90")
