"""The C++ types and expressions a spec turns into: all that a template prints about dtypes and the operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import DType, literal
from scanops.codegen.spec import ScanSpec

__all__ = ["Fragments", "fragments"]

INDEX_BYTES = 4  # of a field that holds an index in the line: the longest line has 2^31 items
DOUBLE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """C++ text for one spec. Expressions are over the names given beside them."""

    value: str  # C type of the accumulator
    scalar_state: bool  # a state is a plain Value, not a struct
    fields: tuple[tuple[str, str], ...]  # (C type, name) of the state's fields
    parts: tuple[str, ...]  # what is appended to a state's name for each part of it that one shuffle carries
    lift: tuple[str, ...]  # one expression for each field
    identity: tuple[str, ...]  # one constant for each field
    element: str  # x (Input) and m (Mask) -> Value
    result: str  # state -> Output
    calls: bool  # combine and result are functions that are called, not repeated
    helpers: tuple[str, ...]  # functions that the expressions call
    intrinsics: tuple[str, ...]  # macros of intrinsics.cuh.j2 the expressions call
    state_bytes: int  # size of one State


def fragments(spec: ScanSpec) -> Fragments:
    """The fragments of ``spec``."""
    operator, out = spec.operator, spec.out
    dtypes = [spec.input, out, *([spec.weight] if spec.weight else [])]
    sizes = [INDEX_BYTES if name in operator.places else max(out.bytes, 4) for name in operator.fields]
    identity = tuple(_with_bounds(text, out) for text in _as_fields(spec, operator.identity))
    expressions = (*operator.lift, *operator.combine, *identity, operator.project, operator.indices)
    return Fragments(
        value=_value(spec),
        scalar_state=len(operator.fields) == 1,
        fields=tuple(("int" if name in operator.places else "Value", name) for name in operator.fields),
        parts=tuple(f".{name}" for name in operator.fields) if operator.fields[1:] else ("",),
        lift=_as_fields(spec, operator.lift),
        identity=identity,
        element=_element(spec),
        result=out.write.format(x=operator.project),
        calls=operator.costly and out.bytes == DOUBLE_BYTES,
        helpers=tuple(text for name, text in _helpers(out).items() if any(name in part for part in expressions)),
        intrinsics=tuple(sorted({row.intrinsic for row in dtypes if row.intrinsic})),
        state_bytes=-(-sum(sizes) // max(sizes)) * max(sizes),
    )


def _value(spec: ScanSpec) -> str:
    return spec.out.ordered if spec.operator.ordered else spec.out.accumulator


def _as_fields(spec: ScanSpec, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Converted to the fields' types where a struct's braces would refuse to, because a value might not fit."""
    operator = spec.operator
    if not operator.fields[1:]:
        return expressions
    unsigned = _value(spec).startswith("unsigned")

    def converted(name: str, text: str) -> str:
        place = name in operator.places
        fits = re.fullmatch(r"x|i|-?\d+|lowest|highest", text) and (place or not (unsigned and text[0] == "-"))
        return text if fits else f"({'int' if place else 'Value'})({text})"

    return tuple(converted(*pair) for pair in zip(operator.fields, expressions, strict=True))


def _with_bounds(text: str, out: DType) -> str:
    bounds = {"lowest": literal(out.lowest), "highest": literal(out.highest)}
    return re.sub(r"\b(lowest|highest)\b", lambda found: bounds[found[0]], text)


def _helpers(out: DType) -> dict[str, str]:
    """Functions by name. Of an integer nothing is asked: a comparison with itself would be a mistake to a compiler."""
    floating = out.kind == "float"
    return {
        "is_nan": "bool is_nan(Value x) { return x != x; }" if floating else "bool is_nan(Value) { return false; }",
        "infinity": "float infinity() { return __uint_as_float(0x7f800000); }",
    }


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
    return text if _value(spec) == spec.out.value else f"({_value(spec)})({text})"


def _convert(text: str, source: DType, to: DType) -> str:
    exact = source == to or (source.value == to.value and to.intrinsic is None)
    return text if exact else to.rounded.format(x=text, value=to.value)


def _product(left: str, right: str, dtype: DType) -> str:
    if dtype.kind == "float":
        return f"{left} * {right}"
    return f"({dtype.value})(({dtype.accumulator})({left}) * ({dtype.accumulator})({right}))"
