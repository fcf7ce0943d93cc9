"""The C++ types and expressions a spec turns into: all that a template prints about dtypes and the operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import DTYPES, DType, carried, dtype_named, literal
from scanops.codegen.operators import Operator
from scanops.codegen.spec import ScanSpec

__all__ = ["Fragments", "fragments"]

INT_BYTES = 4  # of a field that holds an index in the line, which has at most 2^31 items, or the like
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
    resume: tuple[str, ...]  # x (Value), a result that is carried in -> one expression for each field; or none
    element: str  # x (Input) and m (Mask) -> Value
    gate: str  # g (Gate) -> Value; empty without one
    carry: DType  # of results that lines begin or end with: as exact as what they are computed in
    final: str  # state -> Carry
    offset: str  # C type of the offsets of segments; empty without them
    result: str  # state -> Output
    calls: bool  # combine and result are functions that are called, not repeated
    helpers: tuple[str, ...]  # functions that the expressions call
    intrinsics: tuple[str, ...]  # macros of intrinsics.cuh.j2 the expressions call
    state_bytes: int  # size of one State


def fragments(spec: ScanSpec) -> Fragments:
    """The fragments of ``spec``."""
    operator, out = spec.operator, spec.out
    dtypes = [spec.input, out, *([spec.weight] if spec.weight else [])]
    carry = carried(out)
    identity = tuple(_with_bounds(text, out) for text in _as_fields(spec, operator.identity))
    expressions = (*operator.lift, *operator.combine, *identity, operator.project, operator.indices, *operator.resumes)
    return Fragments(
        value=_value(spec),
        scalar_state=len(operator.fields) == 1,
        fields=tuple(("int" if name in operator.places else "Value", name) for name in operator.fields),
        parts=_parts(operator, segmented=spec.segments is not None),
        lift=_as_fields(spec, operator.lift),
        resume=_as_fields(spec, operator.resumes),
        identity=identity,
        element=_element(spec),
        gate=f"({_value(spec)})({dtype_named(spec.gate).read.format(x='g')})" if spec.gate else "",
        carry=carry,
        final=carry.write.format(x=operator.project),
        offset=DTYPES[str(spec.segments)].storage if spec.by_offsets else "",
        result=out.write.format(x=operator.project),
        calls=operator.costly and out.bytes == DOUBLE_BYTES,
        helpers=tuple(
            text for name, text in _helpers(out).items() if any(re.search(rf"\b{name}\b", part) for part in expressions)
        ),
        intrinsics=tuple(sorted({row.intrinsic for row in dtypes if row.intrinsic})),
        state_bytes=_state_bytes(spec),
    )


def _parts(operator: Operator, *, segmented: bool) -> tuple[str, ...]:
    plain = tuple(f".{name}" for name in operator.fields) if operator.fields[1:] else ("",)
    return (*(f".plain{part}" for part in plain), ".bounds") if segmented else plain


def _state_bytes(spec: ScanSpec) -> int:
    sizes = [INT_BYTES if name in spec.operator.places else max(spec.out.bytes, 4) for name in spec.operator.fields]
    plain = -(-sum(sizes) // max(sizes)) * max(sizes)
    return plain if spec.segments is None else plain + max(sizes)  # INT_BYTES, and what keeps the boundary


def _value(spec: ScanSpec) -> str:
    return spec.out.ordered if spec.operator.ordered else spec.out.accumulator


def _as_fields(spec: ScanSpec, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Converted to the fields' types where a struct's braces would refuse to, because a value might not fit."""
    operator = spec.operator
    if not operator.fields[1:] or not expressions:
        return expressions
    unsigned = _value(spec).startswith("unsigned")

    def converted(name: str, text: str) -> str:
        place = name in operator.places
        fits = re.fullmatch(r"x|g|i|-?\d+|lowest|highest", text) and (place or not (unsigned and text[0] == "-"))
        return text if fits else f"({'int' if place else 'Value'})({text})"

    return tuple(converted(*pair) for pair in zip(operator.fields, expressions, strict=True))


def _with_bounds(text: str, out: DType) -> str:
    bounds = {"lowest": literal(out.lowest), "highest": literal(out.highest)}
    return re.sub(r"\b(lowest|highest)\b", lambda found: bounds[found[0]], text)


def _helpers(out: DType) -> dict[str, str]:
    """Functions by name. Of an integer nothing is asked: a comparison with itself would be a mistake to a compiler."""
    return {
        "infinity": "float infinity() { return __uint_as_float(0x7f800000); }",
        **(OF_FLOATS if out.kind == "float" else OF_OTHERS),
    }


# A number as mantissa * 2^exponent, 0.5 <= |mantissa| < 1, where it is finite and not 0; others are mantissas.
OF_FLOATS = {
    "is_nan": "bool is_nan(Value x) { return x != x; }",
    "mantissa": "Value mantissa(Value x) { int exponent; return x - x == 0 ? frexp(x, &exponent) : x; }",
    "exponent": "int exponent(Value x) { int exponent = 0; if (x - x == 0) frexp(x, &exponent); return exponent; }",
    "settled": "Value settled(Value x) { return fabs(x) < (Value)0.5 ? x + x : x; }",
    "unsettled": "int unsettled(Value x) { return fabs(x) < (Value)0.5 ? -1 : 0; }",
    "bounded": "int bounded(int power) { return power < -65536 ? -65536 : power > 65536 ? 65536 : power; }",
    "scaled": "Value scaled(Value x, int power) { return ldexp(x, power); }",
}
OF_OTHERS = {  # which do not overflow to anything but one another
    "is_nan": "bool is_nan(Value) { return false; }",
    "mantissa": "Value mantissa(Value x) { return x; }",
    "exponent": "int exponent(Value) { return 0; }",
    "settled": "Value settled(Value x) { return x; }",
    "unsettled": "int unsettled(Value) { return 0; }",
    "bounded": "int bounded(int power) { return power; }",
    "scaled": "Value scaled(Value x, int) { return x; }",
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
