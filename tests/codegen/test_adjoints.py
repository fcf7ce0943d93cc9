"""Specs of gradients: their slugs, those that are refused, and plans of rows that are scanned twice."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scanops import ScanSpec, make_plan
from scanops.codegen.candidates import candidates
from scanops.codegen.lines import any_length
from scanops.codegen.operators import listed
from scanops.codegen.spec_checks import AGAIN_LENGTHS
from scanops.codegen.targets import TARGETS
from scanops.errors import UnsupportedRequest
from tests.requests.checks import refused

RECURRENCE: dict[str, Any] = {"op": "linear_gradient", "dtype": "float32", "gate": "float32", "saved": "float32"}
PRODUCT: dict[str, Any] = {"op": "prod_gradient", "dtype": "float32", "gate": "float32"}


def test_gradients_are_not_called_by_name() -> None:
    """``scan`` refuses the name of a gradient's row."""
    with pytest.raises(UnsupportedRequest, match="'sum_gradient'"):
        listed("sum_gradient")


@pytest.mark.parametrize("text", [
    "sum_gradient-f32-n100-mask_b8-reverse",
    "runs_gradient-f16-n100-saved_i64-reverse",
    "linear_gradient_after_of_terms-f64-n7-gate_f64-exclusive",
    "prod_gradient-bf16-n4096-mask_b8-gate_bf16-reverse-exclusive-again",
    "linear_gradient-f32-n100-inner64-gate_f32-saved_f32-strided_gate",
])  # fmt: skip
def test_slugs_are_read_back(text: str) -> None:
    """Slugs of gradient specs, with saved tensors, gates and recomputation."""
    spec = ScanSpec.parse(text)
    assert spec.slug == text and spec.describe() and make_plan(spec, "sm_90").spec == spec


BAD: dict[str, dict[str, Any]] = {
    "nothing saved": {**RECURRENCE, "saved": None},
    "places for values": {**RECURRENCE, "saved": "int64"},
    "values for places": {"op": "runs_gradient", "dtype": "float32", "saved": "float32"},
    "saved for a plain scan": {"op": "sum", "dtype": "float32", "saved": "float32"},
    "weights": {"op": "sum_gradient", "dtype": "float32", "mask": "float32"},
    "no gate": {**PRODUCT, "gate": None, "again": True},
    "again, though saved": {**PRODUCT, "saved": "float32", "again": True},
    "again, though nothing came before": {"op": "sum", "dtype": "float32", "again": True},
    "again, columns": {**PRODUCT, "again": True, "inner": 4},
    "again, segments": {**PRODUCT, "again": True, "segments": "flags"},
    "again, too long": {**PRODUCT, "again": True, "length": 4097},
    "again, too long for rows that begin anywhere": {**PRODUCT, "again": True, "length": 2049},
    "again, strided": {**PRODUCT, "again": True, "gate_layout": "strided"},
    "again a word": {**PRODUCT, "again": "yes"},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    """Specs of gradients with the wrong operands, or that one tile cannot recompute."""
    refused(UnsupportedRequest, lambda: ScanSpec(**{"length": 100, **BAD[name]}))


def test_every_row_that_is_scanned_twice_fits_a_block_of_every_target() -> None:
    """The longest recomputed rows are one tile of a block; candidates keep the strategy."""
    dtypes = {"float16": 4, "bfloat16": 4, "float32": 4, "float64": 8}
    for target, (dtype, size), mask in itertools.product(TARGETS, dtypes.items(), (None, "bool")):
        for most in (AGAIN_LENGTHS[size], AGAIN_LENGTHS[size] // 2 - 1, 1):
            for given in ({**PRODUCT}, {**RECURRENCE, "saved": dtype}):
                spec = ScanSpec(**{**given, "dtype": dtype, "gate": dtype, "mask": mask, "length": most, "again": True})
                plan = make_plan(spec, target)
                assert plan.strategy == "block" and plan.tile >= most
                assert any_length(spec) == spec
    assert {plan.strategy for plan in candidates(spec, "sm_90")} == {"block"}
