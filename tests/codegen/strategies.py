"""Specs for hypothesis: any that ScanSpec accepts, with lengths where plans change drawn often."""

from __future__ import annotations

from hypothesis import strategies as st

from scanops.codegen import ScanSpec
from scanops.codegen.dtypes import DTYPES
from scanops.codegen.operators import BUILT_IN
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.targets import TARGETS

__all__ = ["specs", "targets"]

_POWERS = st.integers(0, 31).map(lambda k: 2**k)
_NEAR_POWERS = st.tuples(_POWERS, st.integers(-1, 1)).map(sum).filter(lambda n: 1 <= n <= MAX_LENGTH)
_SIZES = st.one_of(st.integers(1, 2000), st.integers(1, MAX_LENGTH), _NEAR_POWERS)
_LAYOUTS = st.sampled_from(["dense", "rows", "transposed", "strided"])
_DENSE = st.just("dense")
_OPERATORS = sorted(BUILT_IN)
_MASKS = [None, *sorted(DTYPES)]
_SEGMENTS = [None, "flags", "int32", "int64"]


def _outputs(op: str) -> st.SearchStrategy[str]:
    """Legal output dtypes; none is named where the default is legal for any input."""
    kinds = BUILT_IN[op].kinds
    legal = [name for name, row in DTYPES.items() if row.kind in kinds]
    always = all(BUILT_IN[op].result(row).kind in kinds for row in DTYPES.values())
    return st.sampled_from([""] * always + legal)


targets = st.sampled_from(sorted(TARGETS))


def _specs(op: str, mask: str | None, segments: str | None) -> st.SearchStrategy[ScanSpec]:
    return st.builds(
        ScanSpec,
        op=st.just(op),
        dtype=st.sampled_from(sorted(DTYPES)),
        length=_SIZES,
        out_dtype=_outputs(op),
        mask=st.just(mask),
        gate=st.sampled_from(sorted(DTYPES)) if BUILT_IN[op].gated else st.none(),
        segments=st.just(segments),
        initial=st.booleans() if BUILT_IN[op].resumes else st.just(False),
        final=st.booleans(),
        reverse=st.booleans(),
        exclusive=st.booleans(),
        inner=st.one_of(st.just(1), _SIZES),
        lines=st.sampled_from(["many", "few"]),
        input_layout=_LAYOUTS,
        mask_layout=_LAYOUTS if mask else _DENSE,
        gate_layout=_LAYOUTS if BUILT_IN[op].gated else _DENSE,
        starts_layout=_LAYOUTS if segments == "flags" else _DENSE,
        aligned=st.booleans(),
    )


specs: st.SearchStrategy[ScanSpec] = st.tuples(
    st.sampled_from(_OPERATORS), st.sampled_from(_MASKS), st.sampled_from(_SEGMENTS)
).flatmap(lambda drawn: _specs(*drawn))
