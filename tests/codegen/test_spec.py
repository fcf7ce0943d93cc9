"""What a request may ask, and its short name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

import scanops
from scanops.codegen import ScanSpec
from scanops.codegen.dtypes import DTYPES
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.spec import MAX_LENGTH
from scanops.errors import UnsupportedRequest
from tests.codegen.strategies import specs

GOOD: dict[str, Any] = {"op": "sum", "dtype": "float32", "length": 100}

# What is wrong, the field it is in, and words the message must have.
LAYOUTS = "'dense' or 'rows' or 'columns' or 'transposed' or 'strided'"
BAD: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("an operator that does not exist", {"op": "median"}, ("'median'", "'sum'", "'prod'")),
    ("an operator that is no name", {"op": 3}, ("3", "'sum'")),
    ("an input dtype", {"dtype": "complex32"}, ("complex32", "float32", "bfloat16")),
    ("an output dtype", {"out_dtype": "float8"}, ("float8", "output dtype")),
    ("an output kind", {"out_dtype": "bool"}, ("bool", "int or float")),
    ("a mask dtype", {"mask": "complex32"}, ("complex32", "mask dtype")),
    ("an empty mask dtype", {"mask": ""}, ("''", "mask dtype")),
    ("no length", {"length": 0}, ("length=0", "1 to")),
    ("a negative length", {"length": -5}, ("length=-5", "1 to")),
    ("a length over the limit", {"length": MAX_LENGTH + 1}, (f"length={MAX_LENGTH + 1}", str(MAX_LENGTH), "split")),
    ("a length that is no whole number", {"length": 2.0}, ("length=2.0", "integer")),
    ("a length that is a bool", {"length": True}, ("length=True", "integer")),
    ("a greatest length of a kernel for one", {"at_most": 200}, ("at_most=200", "length=None")),
    ("no greatest length", {"length": None, "at_most": 0}, ("at_most=0", "1 to")),
    ("a greatest length over the limit", {"length": None, "at_most": MAX_LENGTH + 1}, (str(MAX_LENGTH), "leave")),
    ("a greatest length that is no whole number", {"length": None, "at_most": 5.0}, ("at_most=5.0", "integer")),
    ("a multiple for one length", {"multiple": 4}, ("multiple=4", "length=None")),
    ("a multiple of nothing", {"length": None, "multiple": 0}, ("multiple=0", "1 to")),
    ("a multiple that is a bool", {"length": None, "multiple": True}, ("multiple=True", "integer")),
    ("a narrower accumulator", {"accumulate": "float16"}, ("'float16'", "'float32'", "'float64'", "'compensated'")),
    ("an accumulator of another kind", {"accumulate": "complex128"}, ("'complex128'", "'float64'")),
    ("no such accumulator", {"accumulate": "kahan"}, ("'kahan'", "'compensated'")),
    ("no inner size", {"inner": 0}, ("inner=0", "1 to")),
    ("an inner size over the limit", {"inner": MAX_LENGTH + 1}, (f"inner={MAX_LENGTH + 1}", str(MAX_LENGTH))),
    ("a gate of an operator that has none", {"gate": "float32"}, ("gate='float32'", "leave gate out")),
    ("an operator without its gate", {"op": "linear"}, ("gate=None", "pass the gate's dtype")),
    ("a gate dtype", {"op": "linear", "gate": "float8"}, ("float8", "gate dtype")),
    ("what no forward scan kept", {"saved": "float32"}, ("saved='float32'", "leave saved out")),
    ("a second scan of what has no first", {"again": True}, ("op='sum'", "exclusive results")),
    ("segments", {"segments": "int8"}, ("'int8'", "'flags'", "'int64'")),
    ("an initial that is no bool", {"initial": 1}, ("initial=1", "True or False")),
    ("a final that is no bool", {"final": None}, ("final=None", "True or False")),
    ("a gate layout", {"gate_layout": "sparse"}, ("'sparse'", LAYOUTS)),
    (
        "a layout of no operand",
        {"gate_layout": "rows"},
        ("gate_layout='rows'", "input_layout", "leave gate_layout out"),
    ),
    (
        "flags by columns of one line",
        {"segments": "flags", "starts_layout": "columns"},
        ("inner=1", "starts_layout='columns'"),
    ),
    ("lines", {"lines": "several"}, ("'several'", "'many' or 'few'")),
    (
        "an input layout",
        {"input_layout": "sparse"},
        ("'sparse'", LAYOUTS),
    ),
    (
        "a mask layout",
        {"mask_layout": "sparse"},
        ("'sparse'", LAYOUTS),
    ),
    ("reverse", {"reverse": "yes"}, ("'yes'", "True or False")),
    ("reverse as a number", {"reverse": 1}, ("reverse=1", "True or False")),
    ("exclusive", {"exclusive": None}, ("exclusive=None", "True or False")),
    ("aligned", {"aligned": 16}, ("aligned=16", "True or False")),
)


@pytest.mark.parametrize(("change", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_field(change: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        ScanSpec(**{**GOOD, **change})
    error = caught.value
    assert all(part for part in (error.asked, error.allowed, str(error.value), error.hint))
    for part in (error.asked, error.allowed, str(error.value), error.hint):
        assert part in str(error)
    for word in words:
        assert word in str(error)


def test_every_field_has_a_bad_value_above() -> None:
    assert {name for _, change, _ in BAD for name in change} == {field.name for field in dataclasses.fields(ScanSpec)}


def test_a_spec_is_frozen_and_keyword_only() -> None:
    spec = ScanSpec(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.length = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        ScanSpec("sum", "float32", 100)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given_as", "name"), [("f32", "float32"), ("torch.float16", "float16"), ("int64", "int64"), ("b8", "bool")]
)
def test_dtypes_are_normalised(given_as: str, name: str) -> None:
    spec = ScanSpec(op="sum", dtype=given_as, length=1, mask=given_as)
    assert (spec.dtype, spec.mask) == (name, name)
    assert spec == ScanSpec(op="sum", dtype=name, length=1, mask=name)


@pytest.mark.parametrize(
    ("op", "dtype", "mask", "out"),
    [
        ("max", "int8", None, "int8"),
        ("max", "bool", "bool", "bool"),
        ("cummin", "float16", "int64", "float16"),
        ("logcumsumexp", "bfloat16", "float16", "float32"),
        ("bitwise_xor", "int16", "int32", "int32"),
        ("logical_or", "float64", None, "bool"),
    ],
)
def test_the_default_output_of_operators_that_keep_it(op: str, dtype: str, mask: str | None, out: str) -> None:
    assert ScanSpec(op=op, dtype=dtype, length=1, mask=mask).out_dtype == out


@pytest.mark.parametrize(("op", "dtype"), [("logcumsumexp", "int32"), ("bitwise_or", "float32")])
def test_an_input_of_a_kind_the_operator_does_not_take(op: str, dtype: str) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        ScanSpec(op=op, dtype=dtype, length=1)
    assert "pass an input, or a dtype, of kind" in caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "mask", "out"),
    [
        ("float16", None, "float16"),
        ("float16", "bool", "float16"),
        ("float16", "bfloat16", "float32"),
        ("float32", "int64", "float32"),
        ("int32", None, "int64"),
        ("bool", "bool", "int64"),
        ("int8", "float16", "float16"),
        ("float32", "float64", "float64"),
    ],
)
def test_the_default_output(dtype: str, mask: str | None, out: str) -> None:
    assert ScanSpec(op="sum", dtype=dtype, length=1, mask=mask).out_dtype == out


SLUGS = {
    "sum-f32-n32768-mask_b8-reverse": {"mask": "bool", "length": 32768, "reverse": True},
    "prod-f64-n1-inner7-out_f32-exclusive-few": {
        "op": "prod",
        "dtype": "float64",
        "length": 1,
        "inner": 7,
        "out_dtype": "float32",
        "exclusive": True,
        "lines": "few",
    },
    "sum-f32-any": {"length": None},
    "sum-f32-any-le4096-by4-inner3-reverse": {
        "length": None,
        "at_most": 4096,
        "multiple": 4,
        "inner": 3,
        "reverse": True,
    },
    "sum-i32-n5-mask_f16-strided-strided_mask-unaligned": {
        "dtype": "int32",
        "length": 5,
        "mask": "float16",
        "input_layout": "strided",
        "mask_layout": "strided",
        "aligned": False,
    },
}


@pytest.mark.parametrize("slug", SLUGS)
def test_slugs_are_stable(slug: str) -> None:
    """They name files in stores that are there already."""
    spec = ScanSpec(**{**GOOD, **SLUGS[slug]})
    assert spec.slug == str(spec) == slug
    assert ScanSpec.parse(slug) == spec


@given(specs)
def test_a_slug_reads_back(spec: ScanSpec) -> None:
    assert ScanSpec.parse(spec.slug) == spec


@given(specs)
def test_a_slug_is_a_file_name(spec: ScanSpec) -> None:
    assert spec.slug.isascii() and len(spec.slug) <= 160
    assert set(spec.slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


@given(specs, specs)
def test_slugs_differ_when_specs_do(first: ScanSpec, second: ScanSpec) -> None:
    assert (first == second) == (first.slug == second.slug)


@given(specs)
def test_changing_one_field_changes_the_slug(spec: ScanSpec) -> None:
    wider = {"float32": "float64", "float16": "float64", "bfloat16": "float64", "complex64": "complex128"}
    spec = dataclasses.replace(spec, accumulate=None)  # which is not legal with every operator and output
    changes: dict[str, Any] = {
        "length": spec.length % MAX_LENGTH + 1,
        **({"segments": "int32" if spec.segments is None else None} if spec.segments != "flags" else {}),
        "initial": not spec.initial,
        "final": not spec.final,
        "reverse": not spec.reverse,
        "exclusive": not spec.exclusive,
        "inner": spec.inner % MAX_LENGTH + 1,
        "lines": "few" if spec.lines == "many" else "many",
        **{f"{each.name}_layout": "dense" if each.layout == "strided" else "strided" for each in spec.sources},
        "aligned": not spec.aligned,
    }
    same = [name for name, row in BUILT_IN.items() if row.gated == spec.operator.gated and spec.out.kind in row.kinds]
    changes |= {"op": next(name for name in same if name != spec.op)} if same[1:] else {}
    others = [name for name, row in DTYPES.items() if row.kind in spec.operator.kinds and row.stored]
    others = [name for name in others if name != spec.out_dtype]
    changes |= {"out_dtype": others[0]} if others else {}
    changes |= {"accumulate": wider[spec.out_dtype]} if spec.out_dtype in wider else {}
    slugs = [spec.slug, *(dataclasses.replace(spec, **{name: value}).slug for name, value in changes.items())]
    assert len(set(slugs)) == len(slugs)


@given(specs)
def test_to_dict_rebuilds(spec: ScanSpec) -> None:
    assert ScanSpec(**spec.to_dict()) == spec  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "slug",
    [
        "",
        "sum",
        "sum-f32",
        "sum-n5",
        "sum-f32-n",
        "sum-f32-n-5",
        "sum-f32-n0",
        "sum-f32-n5-backwards",
        "sum-f32-n5-mask_",
        "sum-f32-n5-mask_x9",
        "sum-f32-n5-inner",
        "sum-f32-nfive",
        "sum-f32-le5",
        "sum-f32-any-n5",
        "sum-f32-any-any",
        "sum-f32-any-le0",
        "sum-f32-n5-le9",
        "sum-f32-any-by",
        "median-f32-n5",
        "sum-f32-n5 ",
    ],
)
def test_what_is_no_slug(slug: str) -> None:
    with pytest.raises(UnsupportedRequest) as caught:
        ScanSpec.parse(slug)
    assert caught.value.allowed and caught.value.hint


def test_a_length_that_is_an_argument() -> None:
    spec = ScanSpec(op="sum", dtype="float32", length=None, at_most=4096, multiple=4)
    assert spec.takes_length and spec.capacity == 4096 and spec.divides(2) and not spec.divides(8)
    assert "up to 4096, a multiple of 4, float32 items" in spec.describe()
    assert ScanSpec(op="sum", dtype="float32", length=None).capacity == MAX_LENGTH
    fixed = ScanSpec(**GOOD)
    assert not fixed.takes_length and fixed.capacity == 100 and fixed.divides(4) and not fixed.divides(8)


@pytest.mark.parametrize("other", ["sum-float32-n5-exclusive-reverse", "sum-f32-n5-inner1-reverse-exclusive"])
def test_another_spelling_gets_the_same_slug(other: str) -> None:
    assert ScanSpec.parse(other).slug == "sum-f32-n5-reverse-exclusive"


@pytest.mark.parametrize("call", [scanops.generate, scanops.make_plan, scanops.export, scanops.compile])
def test_what_is_no_spec(call: Callable[[Any], object]) -> None:
    """A short name above all, which commands take."""
    with pytest.raises(UnsupportedRequest) as caught:
        call("sum-f32-n100")
    assert caught.value.hint == "pass scanops.ScanSpec.parse('sum-f32-n100')"
    for value in (None, 3):
        with pytest.raises(UnsupportedRequest, match=r"a scanops\.ScanSpec"):
            call(value)
        with pytest.raises(UnsupportedRequest, match="scan spec"):
            ScanSpec.parse(value)  # type: ignore[arg-type]
