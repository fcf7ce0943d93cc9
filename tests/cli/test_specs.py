"""Specs in the words of the command line: every field of every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from click.testing import Result

from scanops import ScanSpec, generate
from scanops.cli import main
from scanops.cli.specs import _FLAGS

Call = Callable[..., Result]
Parsed = Callable[[str], Any]
SWITCHES = ("reverse", "exclusive", "initial", "final")
SLUGS = (
    "sum-f32-n32768-mask_b8-reverse",
    "prod-f16-n33-inner5-out_f32-exclusive",
    "sum-i32-n1000-mask_f32-strided-strided_mask-unaligned",
    "sum-f64-n100000-few",
    "sum-f32-any-le4096-by4-acc_compensated",
    "linear-bf16-n4096-gate_f32-offsets_i32-initial-final",
    "linear-f32-any-inner64-gate_f32-segments-columns-strided_gate-rows_starts",
    "max-f32-n100-offsets_i64-initial",
)


def words_of(spec: ScanSpec) -> list[str]:
    """Every field of a spec that is not at its default, as options."""
    words = ["--any-length"] if spec.takes_length else []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value == field.default or value is None:
            continue
        flag = _FLAGS[field.name]
        words += [flag] if field.name in (*SWITCHES, "aligned", "lines") else [flag, str(value)]
    return words


@pytest.mark.parametrize("slug", SLUGS)
def test_options_say_the_same_as_a_slug(call: Call, parsed: Parsed, slug: str) -> None:
    spec = ScanSpec.parse(slug)
    result = call("generate", *words_of(spec))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == generate(spec)
    planned = call("plan", *words_of(spec), "--target", "sm_90", "--json")
    assert parsed(planned.stdout)["spec"] == spec.to_dict()


@pytest.mark.parametrize("slug", SLUGS[-2:])
def test_a_kernel_is_built_of_options(call: Call, parsed: Parsed, slug: str) -> None:
    result = call("build", *words_of(ScanSpec.parse(slug)), "--target", "cpu", "--json")
    (kernel,) = parsed(result.stdout)["kernels"]
    assert (kernel["slug"], kernel["ok"]) == (slug, True)


def test_every_field_has_an_option() -> None:
    assert set(_FLAGS) - {"any_length"} == {field.name for field in fields(ScanSpec)}
    for name in ("generate", "plan", "build"):
        flags = {flag for parameter in main.commands[name].params for flag in parameter.opts}  # type: ignore[attr-defined]
        assert set(_FLAGS.values()) <= flags


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--op, --dtype, --length"),
        (("--op", "sum", "--dtype", "f32"), "or --length"),
        (("sum-f32-n8", "--final", "--gate", "f32"), "leave out --final, --gate"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--any-length"), "do not go together"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--at-most", "9"), "at_most"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--multiple", "4"), "multiple"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--gate", "f32"), "gate"),
        (("--op", "linear", "--dtype", "f32", "--length", "8"), "gate"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--segments", "int16"), "'int32'"),
        (("--op", "sum", "--dtype", "f32", "--length", "8", "--gate-layout", "rows"), "gate_layout"),
    ],
)
def test_what_makes_no_spec(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call("plan", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())
