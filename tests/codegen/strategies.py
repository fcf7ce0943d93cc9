"""Specs for hypothesis: any that ScanSpec accepts, with lengths where plans change drawn often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scanops.codegen import ScanSpec
from scanops.codegen.dtypes import DTYPES, promote
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.targets import TARGETS
from scanops.errors import UnsupportedRequest

__all__ = ["specs", "targets"]

_POWERS = st.integers(0, 31).map(lambda k: 2**k)
_NEAR_POWERS = st.tuples(_POWERS, st.integers(-1, 1)).map(sum).filter(lambda n: 1 <= n <= MAX_LENGTH)
_SIZES = st.one_of(st.integers(1, 2000), st.integers(1, MAX_LENGTH), _NEAR_POWERS)
_LAYOUTS = st.sampled_from(["dense", "rows", "transposed", "strided"])
_OPERATORS = sorted(BUILT_IN)


def _multiplies(dtype: str, mask: str) -> bool:
    try:
        promote(DTYPES[dtype], DTYPES[mask])
    except UnsupportedRequest:
        return False
    return True


_OPERANDS = [(dtype, None) for dtype in sorted(DTYPES)] + [
    (dtype, mask) for dtype in sorted(DTYPES) for mask in sorted(DTYPES) if mask == "bool" or _multiplies(dtype, mask)
]


def _outputs(op: str) -> st.SearchStrategy[str]:
    """Legal output dtypes; none is named where the default is legal for any input."""
    kinds = BUILT_IN[op].kinds
    legal = [name for name, row in DTYPES.items() if row.kind in kinds and row.stored]
    always = all(BUILT_IN[op].result(row).kind in kinds for row in DTYPES.values())
    return st.sampled_from([""] * always + legal)


targets = st.sampled_from(sorted(TARGETS))


def _specs(op: str) -> st.SearchStrategy[ScanSpec]:
    def build(operands: tuple[str, str | None], **fields: Any) -> ScanSpec:
        wanted = fields.pop("accumulate")
        spec = ScanSpec(dtype=operands[0], mask=operands[1], **fields)
        if wanted == "wider":
            return replace(spec, accumulate={"float": "float64", "complex": "complex128"}.get(spec.out.kind))
        return replace(spec, accumulate=wanted) if op == "sum" and spec.out.kind == "float" else spec

    return st.builds(
        build,
        st.sampled_from(_OPERANDS),
        op=st.just(op),
        length=_SIZES,
        out_dtype=_outputs(op),
        accumulate=st.sampled_from([None, None, "wider", "compensated"]),
        reverse=st.booleans(),
        exclusive=st.booleans(),
        inner=st.one_of(st.just(1), _SIZES),
        lines=st.sampled_from(["many", "few"]),
        input_layout=_LAYOUTS,
        mask_layout=_LAYOUTS,
        aligned=st.booleans(),
    )


specs: st.SearchStrategy[ScanSpec] = st.sampled_from(_OPERATORS).flatmap(_specs)
