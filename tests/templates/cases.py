"""Specs for the tests of the text: every golden, and a wider list that no file is committed for."""

from __future__ import annotations

import itertools
from typing import Any

from scanops.codegen import ScanSpec
from tools.golden import GOLDEN

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


# The other operators, and two outputs in every strategy.
_OPERATORS = (
    "max-i8-n64-mask_b8-reverse",
    "min-i64-n2049-exclusive",
    "max-bf16-n32769",
    "min-b8-n1000-inner64",
    "bitwise_and-u8-n8192-exclusive",
    "bitwise_xor-i32-n31-reverse",
    "logical_or-f16-n4096-inner33",
    "logical_and-b8-n1000000",
    "logcumsumexp-f16-n100-mask_b8",
    "logcumsumexp-f32-n1024-exclusive",
    "logcumsumexp-f32-n100003-reverse-few",
    "logcumsumexp-f64-n40000",
    "logcumsumexp-bf16-n1000-inner64",
    "logcumsumexp-f64-n30000-inner64-mask_f64",
    "cummax-f32-n64",
    "cummax-i8-n31-mask_b8-reverse",
    "cummin-i64-n4096",
    "cummax-f16-n2049-exclusive",
    "cummax-f64-n40000-reverse",
    "cummin-f32-n65535-mask_b8-unaligned",
    "cummax-f32-n2147483648-reverse",
    "cummax-f32-n100003-mask_f32-few",
    "cummin-b8-n7-inner64",
    "cummax-f32-n1000-inner64-reverse",
    "cummax-f64-n30000-inner64",
    "cummax-f32-n4096-inner33-exclusive",
    "cummin-f32-n100000-inner100-mask_b8-few",
    "cummax-f32-n4096-transposed",
    "cummin-bf16-n1000-inner64-reverse-transposed",
    "cummax-f32-n5000-strided",
)


def _wider() -> list[ScanSpec]:
    turns = itertools.cycle(itertools.product(("sum", "prod"), (False, True), (False, True)))
    found = {golden.slug: golden.spec for golden in GOLDEN}
    found |= {slug: ScanSpec.parse(slug) for slug in (*_TRANSPOSED, *_OPERATORS)}
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
