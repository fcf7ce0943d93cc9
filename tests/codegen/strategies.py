"""Specs for hypothesis: any that ScanSpec accepts, with lengths where plans change drawn often."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scanops import ScanSpec
from scanops.codegen.dtypes import DTYPES, default_result, promote
from scanops.codegen.operators import OPERATORS
from scanops.codegen.spec import MAX_LENGTH
from scanops.codegen.targets import TARGETS
from scanops.errors import UnsupportedRequest

_POWERS = st.integers(0, 31).map(lambda k: 2**k)
_NEAR_POWERS = st.tuples(_POWERS, st.integers(-1, 1)).map(sum).filter(lambda n: 1 <= n <= MAX_LENGTH)
_SIZES = st.one_of(st.integers(1, 2000), st.integers(1, MAX_LENGTH), _NEAR_POWERS)
_LAYOUTS = st.sampled_from(["dense", "rows", "transposed", "strided"])
_SPREAD = st.sampled_from(["dense", "rows", "transposed", "strided", "line"])
_DENSE = st.just("dense")
_OPERATORS = sorted(OPERATORS)
_SEGMENTS = [None, "flags", "int32", "int64"]


def _meets(dtype: str, *others: str | None) -> bool:
    """Whether there is a dtype for the product of these."""
    try:
        functools.reduce(promote, (DTYPES[name] for name in others if name and name != "bool"), DTYPES[dtype])
    except UnsupportedRequest:
        return False
    return True


_NAMES = sorted(DTYPES)
_PLAIN = [(dtype, mask, None) for dtype in _NAMES for mask in (None, *_NAMES) if _meets(dtype, mask)]
_GATED = [(*operands[:2], gate) for operands in _PLAIN for gate in _NAMES if _meets(*operands[:2], gate)]


def _operands(op: str) -> list[tuple[str, str | None, str | None]]:
    """Dtypes of items, mask and gate that an operator takes: masks of integers are for sums."""
    found = _GATED if OPERATORS[op].gated else _PLAIN
    return [each for each in found if op == "sum" or each[1] is None or DTYPES[each[1]].kind != "int"]


def _outputs(op: str) -> st.SearchStrategy[str]:
    """Legal output dtypes; none is named where the default is legal for any input."""
    kinds = OPERATORS[op].kinds
    legal = [name for name, row in DTYPES.items() if row.kind in kinds and row.stored]
    always = all(default_result(OPERATORS[op].gives, row).kind in kinds for row in DTYPES.values())
    return st.sampled_from([""] * always + legal)


targets = st.sampled_from(sorted(TARGETS))


def _specs(op: str, operands: tuple[str, str | None, str | None], segments: str | None) -> st.SearchStrategy[ScanSpec]:
    dtype, mask, gate = operands

    def build(**fields: Any) -> ScanSpec:
        wanted = fields.pop("accumulate")
        spec = ScanSpec(dtype=dtype, mask=mask, gate=gate, segments=segments, **fields)
        if wanted == "wider":
            return replace(spec, accumulate={"float": "float64", "complex": "complex128"}.get(spec.out.kind))
        return replace(spec, accumulate=wanted) if op == "sum" and spec.out.kind == "float" else spec

    return st.builds(
        build,
        op=st.just(op),
        length=_SIZES,
        out_dtype=_outputs(op),
        accumulate=st.sampled_from([None, None, "wider", "compensated"]),
        initial=st.booleans() if OPERATORS[op].resumes else st.just(False),
        final=st.booleans(),
        reverse=st.booleans(),
        exclusive=st.booleans(),
        inner=st.one_of(st.just(1), _SIZES),
        input_layout=_LAYOUTS,
        mask_layout=_SPREAD if mask else _DENSE,
        gate_layout=_SPREAD if gate else _DENSE,
        starts_layout=_SPREAD if segments == "flags" else _DENSE,
        aligned=st.booleans(),
    )


specs: st.SearchStrategy[ScanSpec] = st.tuples(
    st.sampled_from(_OPERATORS).flatmap(lambda op: st.tuples(st.just(op), st.sampled_from(_operands(op)))),
    st.sampled_from(_SEGMENTS),
).flatmap(lambda drawn: _specs(*drawn[0], drawn[1]))
