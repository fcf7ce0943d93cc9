"""Specs for the tests of the text: every golden, and a wider list that no file is committed for."""

from __future__ import annotations

import itertools
from typing import Any

from scanops.codegen import ScanSpec
from scanops.codegen.golden import GOLDEN
from scanops.codegen.operators import BUILT_IN

__all__ = ["SHAPES", "STRATEGIES", "WIDER"]

STRATEGIES = ("staged", "warp", "block", "transposed", "columns", "panels", "split", "wave")

SHAPES: tuple[dict[str, Any], ...] = (
    {"length": 1},
    {"length": 2},
    {"length": 31},
    {"length": 100},
    {"length": 1024},
    {"length": 2049},
    {"length": 8192},
    {"length": 32769},
    {"length": 10**6},
    {"length": 2**31},
    {"length": 100003, "lines": "few"},
    {"length": 2**31, "lines": "few"},
    {"length": 1, "inner": 3},
    {"length": 7, "inner": 64},
    {"length": 4096, "inner": 33},
    {"length": 100, "inner": 4},
    {"length": 1000, "inner": 64},
    {"length": 4096, "inner": 4},
    {"length": 30000, "inner": 64},
    {"length": 100000, "inner": 100, "lines": "few"},
    {"length": 5000, "inner": 2, "lines": "few"},
    {"length": 2**31, "inner": 2**31},
)
_VIEWS: tuple[dict[str, Any], ...] = (  # of columns that are neighbours, and off the boundary
    {"input_layout": "columns"},
    {"input_layout": "columns", "mask": "bool", "mask_layout": "columns"},
    {"mask": "bool"},
    {"aligned": False},
    {"aligned": False, "input_layout": "columns", "mask": "float32"},
)
_ELEMENTS: tuple[dict[str, Any], ...] = (
    {"dtype": "float32"},
    {"dtype": "float16", "mask": "bool"},
    {"dtype": "int32", "mask": "float64"},
    {"dtype": "int64"},
    {"dtype": "float32", "mask": "float32", "mask_layout": "strided"},
    {"dtype": "bfloat16", "input_layout": "strided"},
    {"dtype": "bool", "mask": "bool", "mask_layout": "strided", "input_layout": "strided"},
    {"dtype": "float64", "aligned": False},
)


# Rows and columns of inputs that lie the other way round: short ones and long ones, every size of an item, every way a
# mask may lie, accesses of all widths.
_TRANSPOSED = (
    "sum-f32-n4096-transposed",
    "prod-f32-n1002-mask_b8-reverse-exclusive-transposed",
    "sum-bf16-n300-mask_b8-exclusive-transposed-transposed_mask",
    "sum-f16-n1001-reverse-transposed-unaligned",
    "prod-i8-n77-mask_i64-transposed-rows_mask",
    "sum-f64-n2147483648-exclusive-transposed",
    "prod-f32-n17-transposed-unaligned",
    "sum-f32-n4096-inner4096-reverse-transposed",
    "prod-bf16-n1000-inner50-mask_b8-exclusive-transposed",
    "sum-f16-n1001-inner77-mask_b8-reverse-exclusive-transposed-unaligned",
    "sum-i8-n64-inner64-transposed",
    "prod-f64-n3000-inner333-mask_f64-reverse-transposed-transposed_mask",
    "sum-f32-n2147483648-inner2147483648-transposed",
    "sum-f32-n100-inner5-transposed",  # columns, gathered: too few lie side by side
)


def _wider() -> list[ScanSpec]:
    turns = itertools.cycle(itertools.product(BUILT_IN, (False, True), (False, True)))
    found = {golden.slug: golden.spec for golden in GOLDEN}
    found |= {slug: ScanSpec.parse(slug) for slug in _TRANSPOSED}
    for shape, element in itertools.product(SHAPES, _ELEMENTS):
        op, reverse, exclusive = next(turns)
        spec = ScanSpec(op=op, reverse=reverse, exclusive=exclusive, **shape, **element)
        found[spec.slug] = spec
    for shape, view in itertools.product((shape for shape in SHAPES if shape.get("inner", 1) > 1), _VIEWS):
        op, reverse, exclusive = next(turns)
        spec = ScanSpec(op=op, dtype="float32", reverse=reverse, exclusive=exclusive, **shape, **view)
        found[spec.slug] = spec
    return list(found.values())


WIDER: list[ScanSpec] = _wider()
