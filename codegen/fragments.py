"""The C++ types and expressions a spec turns into: all that a template prints about dtypes and the operator."""

from __future__ import annotations

from dataclasses import dataclass

from scanops.codegen.dtypes import DType
from scanops.codegen.spec import ScanSpec

__all__ = ["Fragments", "fragments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """C++ text for one spec. Expressions are over the names given beside them."""

    value: str  # C type of the accumulator
    scalar_state: bool  # a state is a plain Value, not a struct
    element: str  # x (Input) and m (Mask) -> Value
    result: str  # state -> Output
    intrinsics: tuple[str, ...]  # macros of intrinsics.cuh.j2 the expressions call
    state_bytes: int  # size of one State


def fragments(spec: ScanSpec) -> Fragments:
    """The fragments of ``spec``."""
    dtypes = [spec.input, spec.out, *([spec.weight] if spec.weight else [])]
    fields = len(spec.operator.fields)
    return Fragments(
        value=spec.out.accumulator,
        scalar_state=fields == 1,
        element=_element(spec),
        result=spec.out.write.format(x=spec.operator.project),
        intrinsics=tuple(sorted({row.intrinsic for row in dtypes if row.intrinsic})),
        state_bytes=fields * max(spec.out.bytes, 4),
    )


def _element(spec: ScanSpec) -> str:
    """Read, multiply by the weight in the promoted dtype, convert to the output's dtype: the order torch does it in.

    Half products stay in float: rounding them to half first, as ``x * mask`` does, would only lose bits.
    """
    term, text = spec.input, spec.input.read.format(x="x")
    if spec.weight:
        left = _convert(text, spec.input, spec.term)
        right = _convert(spec.weight.read.format(x="m"), spec.weight, spec.term)
        term, text = spec.term, _product(left, right, spec.term)
    text = _convert(text, term, spec.out)
    return text if spec.out.accumulator == spec.out.value else f"({spec.out.accumulator})({text})"


def _convert(text: str, source: DType, to: DType) -> str:
    exact = source == to or (source.value == to.value and to.intrinsic is None)
    return text if exact else to.rounded.format(x=text, value=to.value)


def _product(left: str, right: str, dtype: DType) -> str:
    if dtype.kind == "float":
        return f"{left} * {right}"
    return f"({dtype.value})(({dtype.accumulator})({left}) * ({dtype.accumulator})({right}))"
