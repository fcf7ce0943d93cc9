"""ScanSpec: validation of its fields, defaults, and slugs that are read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

import scanops
from scanops import ScanSpec, make_plan
from scanops.codegen.dtypes import DTYPES
from scanops.codegen.spec import FIELDS, MAX_LENGTH
from scanops.errors import UnsupportedRequest
from tests.codegen.strategies import specs
from tests.requests.checks import refused

RECURRENCE: dict[str, Any] = {"op": "linear_gradient", "dtype": "float32", "gate": "float32", "saved": "float32"}
PRODUCT: dict[str, Any] = {"op": "prod_gradient", "dtype": "float32", "gate": "float32"}
GOOD: dict[str, Any] = {"op": "sum", "dtype": "float32", "length": 100}

LAYOUTS = "'dense' or 'rows' or 'columns' or 'transposed' or 'strided'"
# Gradients with the wrong operands, or that one tile cannot recompute.
BAD_GRADIENTS: tuple[dict[str, Any], ...] = (
    {**RECURRENCE, "saved": None},
    {**RECURRENCE, "saved": "int64"},
    {"op": "runs_gradient", "dtype": "float32", "saved": "float32"},
    {"op": "sum", "dtype": "float32", "saved": "float32"},
    {"op": "sum_gradient", "dtype": "float32", "mask": "float32"},
    {**PRODUCT, "gate": None},
    {**RECURRENCE, "saved_initial": True},
    {"op": "runs_gradient", "dtype": "float32", "saved": "int64", "saved_results": True},
    {"op": "sum", "dtype": "float32", "saved_results": True},
    {**RECURRENCE, "saved": None, "saved_results": True},
    {**PRODUCT, "inner": 4},
    {**PRODUCT, "segments": "flags"},
    {**PRODUCT, "length": 4097},
    {**PRODUCT, "length": 2049},
    {**PRODUCT, "gate_layout": "strided"},
    {**RECURRENCE, "saved_results": "yes"},
)
# Invalid fields, and words that the error must have.
BAD: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"op": "median"}, ("'median'", "'sum'", "'prod'")),
    *(({"op": op}, (repr(op), "'sum'", "'bitwise_xor'")) for op in ("SUM", "", None, 3)),
    *(({"dtype": dtype}, (repr(dtype), *DTYPES)) for dtype in ("complex32", "f8", "", None, 32)),
    ({"out_dtype": "float8"}, ("float8", "output dtype")),
    ({"out_dtype": "bool"}, ("bool", "int or float")),
    ({"op": "logcumsumexp", "dtype": "int32"}, ("pass an input, or a dtype, of kind",)),
    ({"op": "bitwise_or"}, ("pass an input, or a dtype, of kind",)),
    ({"mask": "complex32"}, ("complex32", "mask dtype")),
    ({"mask": ""}, ("''", "mask dtype")),
    ({"length": 0}, ("length=0", "1 to")),
    ({"length": MAX_LENGTH + 1}, (f"length={MAX_LENGTH + 1}", str(MAX_LENGTH), "split")),
    ({"length": 2.0}, ("length=2.0", "integer")),
    ({"length": True}, ("length=True", "integer")),
    ({"at_most": 200}, ("at_most=200", "length=None")),
    ({"length": None, "at_most": 0}, ("at_most=0", "1 to")),
    ({"length": None, "at_most": MAX_LENGTH + 1}, (str(MAX_LENGTH), "leave")),
    ({"multiple": 4}, ("multiple=4", "length=None")),
    ({"length": None, "multiple": True}, ("multiple=True", "integer")),
    ({"accumulate": "float16"}, ("'float16'", "'float32'", "'float64'", "'compensated'")),
    ({"accumulate": "complex128"}, ("'complex128'", "'float64'")),
    ({"accumulate": "kahan"}, ("'kahan'", "'compensated'")),
    ({"inner": 0}, ("inner=0", "1 to")),
    ({"inner": MAX_LENGTH + 1}, (f"inner={MAX_LENGTH + 1}", str(MAX_LENGTH))),
    ({"gate": "float32"}, ("gate='float32'", "leave gate out")),
    ({"op": "linear"}, ("gate=None", "pass the gate's dtype")),
    ({"op": "linear", "gate": "float8"}, ("float8", "gate dtype")),
    ({"saved": "float32"}, ("saved='float32'", "leave saved out")),
    ({"saved_results": True}, ("op='sum'", "results")),
    ({"segments": "int8"}, ("'int8'", "'flags'", "'int64'")),
    ({"gate_layout": "sparse"}, ("'sparse'", LAYOUTS)),
    ({"gate_layout": "rows"}, ("gate_layout='rows'", "input_layout", "leave gate_layout out")),
    ({"segments": "flags", "starts_layout": "columns"}, ("inner=1", "starts_layout='columns'")),
    ({"input_layout": "line"}, ("'line'", LAYOUTS)),
    *(({name: "sparse"}, ("'sparse'", LAYOUTS)) for name in ("input_layout", "mask_layout")),
    ({"complete": True}, ("exclusive=False", "exclusive=True without")),
    ({"complete": True, "exclusive": True, "final": True, "input_layout": "rows"}, ("final=True", "is the carry-out")),
    ({"complete": True, "exclusive": True, "inner": 4}, ("input_layout='dense'", "one item less")),
    *(
        ({name: 1}, (f"{name}=1", "True or False"))
        for name in ("initial", "final", "per_segment", "chunked", "reverse", "exclusive", "complete", "aligned")
    ),
    ({"linked": 1}, ("linked=1", "True or False")),
    ({"linked": True, "initial": True}, ("initial=True", "without initial and final")),
    ({"linked": True, "final": True}, ("final=True", "without initial and final")),
    ({"totals": True, "final": True}, ("final=True", "recurrences with final=True")),
    ({"linked": True, "segments": "int32"}, ("segments='int32'", "by flags or none")),
    ({"per_segment": True, "final": True, "segments": "flags"}, ("segments='flags'", "needs offsets")),
    ({"per_segment": True, "segments": "int32"}, ("initial=False", "initial or final")),
    ({"chunked": True, "segments": "flags"}, ("segments='flags'", "needs offsets")),
    ({"chunked": True, "segments": "int32", "per_segment": True, "final": True}, ("per_segment=True", "needs offsets")),
    ({"ragged": "int8"}, ("'int8'", "'int32'", "'int64'")),
    ({"ragged": "int32", "inner": 8}, ("length=100", "length=None and inner above 1")),
    *(({"map": text}, (repr(text), "scanops traced")) for text in ("x + 1", "[]", None)),
    ({"states": 257}, ("states=257", "from 0 to 256", "summed dimension")),
    ({"states": 4}, ("op='sum'", "op='linear' with map")),
    ({"saves": True}, ("saves=True", "need states")),
    ({"gradient": "1"}, ("gradient='1'", "need states")),
    ({"line_sums": True}, ("line_sums=True", "0 to 0")),
    ({**RECURRENCE, "line_sums": 1}, ("inner=1", "of columns")),
    ({**RECURRENCE, "line_sums": 1, "inner": 8, "input_layout": "transposed"}, ("'transposed'", "of columns")),
    ({**RECURRENCE, "line_sums": 2, "inner": 8}, ("line_sums=2", "0 to 1")),
    ({"op": "cummax", "line_sums": 1, "inner": 8}, ("line_sums=1", "0 to 0")),
    *((change, ()) for change in BAD_GRADIENTS),
)


@pytest.mark.parametrize(("change", "words"), BAD, ids=[str(change) for change, _ in BAD])
def test_an_invalid_field(change: dict[str, Any], words: tuple[str, ...]) -> None:
    """Each error has four parts, the value and what is allowed among them."""
    error = refused(UnsupportedRequest, lambda: ScanSpec(**{**GOOD, **change}))
    assert all(word in str(error) for word in words)


def test_every_field_has_an_invalid_value_above() -> None:
    """A field without a check would be found by a compiler."""
    assert {name for change, _ in BAD for name in change} == {field.name for field in FIELDS}


VIEWS = {"input_layout": "strided", "mask_layout": "strided", "aligned": False}
SLUGS: dict[str, dict[str, Any]] = {
    "sum-f32-n32768-mask_b8-reverse": {"mask": "bool", "length": 32768, "reverse": True},
    "prod-f64-n1-inner7-out_f32-exclusive": {
        "op": "prod",
        "dtype": "float64",
        "length": 1,
        "inner": 7,
        "out_dtype": "float32",
        "exclusive": True,
    },
    "sum-f32-n9-exclusive-complete": {"length": 9, "exclusive": True, "complete": True},
    "sum-f32-n9-offsets_i32-final-per_segment": {
        "length": 9,
        "segments": "int32",
        "final": True,
        "per_segment": True,
    },
    "sum-f32-any": {"length": None},
    "sum-f32-n9-offsets_i64-chunked": {"length": 9, "segments": "int64", "chunked": True},
    "sum-f32-any-le64-inner8-ragged_i64": {"length": None, "at_most": 64, "inner": 8, "ragged": "int64"},
    "sum-f32-any-le4096-by4-inner3-reverse": {
        "length": None,
        "at_most": 4096,
        "multiple": 4,
        "inner": 3,
        "reverse": True,
    },
    "sum-i32-n5-mask_f16-strided-strided_mask-unaligned": {"dtype": "int32", "length": 5, "mask": "float16", **VIEWS},
}


@pytest.mark.parametrize("slug", SLUGS)
def test_slugs_are_stable(slug: str) -> None:
    """Slugs name files in existing stores."""
    spec = ScanSpec(**{**GOOD, **SLUGS[slug]})
    assert spec.slug == str(spec) == slug
    assert ScanSpec.parse(slug) == spec


@pytest.mark.parametrize(
    "slug",
    [
        "sum_gradient-f32-n100-mask_b8-reverse",
        "runs_gradient-f16-n100-saved_i64-reverse",
        "linear_gradient_after_of_terms-f64-n7-gate_f64-exclusive",
        "prod_gradient-bf16-n4096-mask_b8-gate_bf16-reverse-exclusive",
        "linear_gradient-f32-n2048-gate_f32-saved_f32-reverse-exclusive-results_saved",
        "prod_gradient-f32-n9000-gate_f32-saved_f32-exclusive-results_saved-initial_saved",
        "linear_gradient-f32-n100-inner64-gate_f32-saved_f32-strided_gate",
    ],
)
def test_slugs_of_gradients_are_read_back(slug: str) -> None:
    """With saved tensors, gates and recomputation."""
    spec = ScanSpec.parse(slug)
    assert spec.slug == slug and spec.describe() and make_plan(spec, "sm_90").spec == spec


@given(specs)
def test_a_slug_is_a_file_name_that_reads_back(spec: ScanSpec) -> None:
    """So different specs have different slugs; dictionaries rebuild specs, too."""
    assert ScanSpec.parse(spec.slug) == spec == ScanSpec(**spec.to_dict())  # type: ignore[arg-type]
    assert len(spec.slug) <= 160 and set(spec.slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


NO_SLUGS = (
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
)


@pytest.mark.parametrize("slug", NO_SLUGS)
def test_an_invalid_slug(slug: str) -> None:
    """Typed errors, whatever is wrong."""
    refused(UnsupportedRequest, lambda: ScanSpec.parse(slug))


def test_a_slug_of_earlier_versions_that_says_few() -> None:
    """The error says what to write now."""
    with pytest.raises(UnsupportedRequest, match="write sum-f32-n32768-rows, and lines=N"):
        ScanSpec.parse("sum-f32-n32768-few-rows")


def test_a_length_that_is_an_argument() -> None:
    """Specs with length=None have a capacity and a divisor of their lengths."""
    spec = ScanSpec(op="sum", dtype="float32", length=None, at_most=4096, multiple=4)
    assert spec.takes_length and spec.capacity == 4096 and spec.divides(2) and not spec.divides(8)
    assert "up to 4096, a multiple of 4, float32 items" in spec.describe()
    assert ScanSpec(op="sum", dtype="float32", length=None).capacity == MAX_LENGTH
    fixed = ScanSpec(**GOOD)
    assert not fixed.takes_length and fixed.capacity == 100 and fixed.divides(4) and not fixed.divides(8)


@pytest.mark.parametrize("other", ["sum-float32-n5-exclusive-reverse", "sum-f32-n5-inner1-reverse-exclusive"])
def test_another_spelling_gets_the_same_slug(other: str) -> None:
    """Slugs are read in any order, with defaults spelled out, and with the names of dtypes."""
    for dtype, default in (("float16", "float32"), ("float32", "torch.float32"), ("complex64", "c64")):
        plain = ScanSpec(op="sum", dtype=dtype, length=9)
        assert ScanSpec(op="sum", dtype=dtype, length=9, accumulate=default) == plain
    assert ScanSpec.parse(other).slug == "sum-f32-n5-reverse-exclusive"
    assert ScanSpec(op="sum", dtype="torch.float32", length=1, mask="float32").slug == "sum-f32-n1-mask_f32"


@pytest.mark.parametrize("call", [scanops.generate, scanops.make_plan, scanops.export, scanops.compile])
def test_a_short_name_in_place_of_a_spec(call: Callable[[Any], object]) -> None:
    """It stands for its spec; other types, and names of no spec, are refused."""
    if call is not scanops.compile:
        assert call("sum-f32-n100") == call(ScanSpec.parse("sum-f32-n100"))
    with pytest.raises(UnsupportedRequest, match="f33"):
        call("sum-f33-n100")
    for value in (None, 3):
        with pytest.raises(UnsupportedRequest, match=r"a scanops\.ScanSpec"):
            call(value)
        with pytest.raises(UnsupportedRequest, match="scan spec"):
            ScanSpec.parse(value)  # type: ignore[arg-type]
