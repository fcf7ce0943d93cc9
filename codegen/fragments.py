"""The C++ types and expressions a spec turns into: all that a template prints about dtypes and the operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import DTYPES, DType, dtype_named, literal
from scanops.codegen.spec import ScanSpec

__all__ = ["Fragments", "fragments"]

COMPLEX = """\
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;

    friend __device__ __forceinline__ bool operator!=(Complex a, Real b) { return a.re != b || a.im != 0; }

    friend __device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }

    friend __device__ __forceinline__ Complex operator*(Complex a, Complex b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
};

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Other x) { return {(Real)x, 0}; }

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Complex<Other> z) { return {(Real)z.re, (Real)z.im}; }"""
# Functions of complex numbers by name. As reals do, they compute what is left of 1 without forming the sum with 1.
COMPLEX_HELPERS = {
    "exp_difference": """\
Value exp_difference(Value a, Value b) {  // exp(a - b); equal infinities differ by nothing
    const auto size = exp(a.re == b.re ? 0 : a.re - b.re);
    return {size * cos(a.im - b.im), size * sin(a.im - b.im)};
}""",
    "both_nan": """\
Value both_nan(Value z) {  // a number with a part that is NaN is NaN
    const auto sum = z.re + z.im;
    return z.re == z.re && z.im == z.im ? z : Value{sum, sum};
}""",
    "log1p": """\
Value log1p(Value z) {  // log(1 + z)
    const auto above = z.re * (2 + z.re) + z.im * z.im;  // |1 + z|^2 - 1
    const auto size = 2 * above > -1 ? log1p(above) / 2 : log(hypot(1 + z.re, z.im));
    return {size, atan2(z.im, 1 + z.re)};
}""",
}
# Exact whatever a and b are, as long as the sum is finite: Knuth's TwoSum.
LOST_BY_SUM = """\
Value lost_by_sum(Value a, Value b) {  // a + b without rounding, less a + b
    const Value sum = a + b, of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}"""
INT_BYTES = 4  # of a field that holds an index in the line, which has at most 2^31 items, or the like
DOUBLE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """C++ text for one spec. Expressions are over the names given beside them."""

    declarations: tuple[str, ...]  # C types that the names below are made of
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
    operator, out = spec.operator, spec.accumulator
    dtypes = [*(source.dtype for source in spec.sources), out, spec.out]
    of_parts = any(row.kind == "complex" for row in dtypes)
    identity = _constants(spec, operator.identity)
    expressions = (
        *operator.lift,
        *operator.combine,
        *operator.append,
        *identity,
        operator.project,
        operator.indices,
        *operator.resumes,
    )
    return Fragments(
        declarations=(COMPLEX,) if of_parts else (),
        value=_value(spec),
        scalar_state=len(operator.fields) == 1,
        fields=tuple(("int" if name in operator.places else "Value", name) for name in operator.fields),
        parts=_parts(spec),
        lift=_as_fields(spec, operator.lift),
        resume=_constants(spec, operator.resumes),
        identity=identity,
        element=_element(spec),
        gate=_gate(spec),
        carry=spec.carry,
        final=_narrowed(spec, spec.carry),
        offset=DTYPES[str(spec.segments)].storage if spec.by_offsets else "",
        result=_narrowed(spec, spec.out),
        calls=operator.costly and out.bytes >= DOUBLE_BYTES,
        helpers=tuple(
            text for name, text in _helpers(out).items() if any(re.search(rf"\b{name}\b", part) for part in expressions)
        ),
        intrinsics=tuple(sorted({row.intrinsic for row in dtypes if row.intrinsic})),
        state_bytes=_state_bytes(spec),
    )


def _parts(spec: ScanSpec) -> tuple[str, ...]:
    operator, whole = spec.operator, spec.accumulator.parts
    parts = [f".{name}{part}" for name in operator.fields for part in (("",) if name in operator.places else whole)]
    plain = tuple(parts) if operator.fields[1:] else whole
    return plain if spec.segments is None else (*(f".plain{part}" for part in plain), ".bounds")


def _state_bytes(spec: ScanSpec) -> int:
    of_value = max(spec.accumulator.bytes, 4)
    sizes = [INT_BYTES if name in spec.operator.places else of_value for name in spec.operator.fields]
    plain = -(-sum(sizes) // max(sizes)) * max(sizes)
    return plain if spec.segments is None else plain + max(sizes)  # INT_BYTES, and what keeps the boundary


def _value(spec: ScanSpec) -> str:
    return spec.accumulator.ordered if spec.operator.ordered else spec.accumulator.accumulator


def _narrowed(spec: ScanSpec, to: DType) -> str:
    """The result, narrowed from what it was accumulated in, then as it is stored."""
    text = spec.operator.project
    if spec.accumulator != to:
        text = to.rounded.format(x=text) if to.kind == "complex" else f"({to.accumulator})({text})"
    return to.write.format(x=text)


def _gate(spec: ScanSpec) -> str:
    """Converted to what is computed in; to halves it is not rounded, as they are computed in float."""
    if spec.gate is None:
        return ""
    gate = dtype_named(spec.gate)
    text = gate.read.format(x="g")
    if "complex" in (gate.kind, spec.accumulator.kind):
        return _convert(text, gate, spec.accumulator)
    return f"({_value(spec)})({text})"


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


def _constants(spec: ScanSpec, expressions: tuple[str, ...]) -> tuple[str, ...]:
    """Constants as values of the fields' types, bounds among them; what mentions x is left as it is."""
    out, operator = spec.accumulator, spec.operator
    bounds = {"lowest": literal(out.lowest), "highest": literal(out.highest)}

    def constant(name: str, text: str) -> str:
        text = re.sub(r"\b(lowest|highest)\b", lambda found: bounds[found[0]], text)
        of_parts = out.kind == "complex" and name not in operator.places and not re.search(r"\bx\b", text)
        return f"{{{text}, 0}}" if of_parts else text

    texts = _as_fields(spec, expressions)
    return tuple(constant(*pair) for pair in zip(operator.fields, texts, strict=bool(texts)))


def _helpers(out: DType) -> dict[str, str]:
    """Functions by name. Of an integer nothing is asked: a comparison with itself would be a mistake to a compiler."""
    return {
        "lost_by_sum": LOST_BY_SUM,
        "infinity": "float infinity() { return __uint_as_float(0x7f800000); }",
        **(OF_OTHERS if out.kind != "float" else OF_DOUBLES if out.bytes == DOUBLE_BYTES else OF_FLOATS),
        **(COMPLEX_HELPERS if out.kind == "complex" else {}),
    }


# A number as mantissa * 2^exponent, 0.5 <= |mantissa| < 1; what has no such form is its own mantissa.
OF_DOUBLES = {
    "is_nan": "bool is_nan(Value x) { return x != x; }",
    "mantissa": "Value mantissa(Value x) { int exponent; return x - x == 0 ? frexp(x, &exponent) : x; }",
    "exponent": "int exponent(Value x) { int exponent = 0; if (x - x == 0) frexp(x, &exponent); return exponent; }",
    "settled": "Value settled(Value x) { return fabs(x) < (Value)0.5 ? x + x : x; }",
    "unsettled": "int unsettled(Value x) { return fabs(x) < (Value)0.5 ? -1 : 0; }",
    "bounded": "int bounded(int power) { return power < -65536 ? -65536 : power > 65536 ? 65536 : power; }",
    "scaled": "Value scaled(Value x, int power) { return ldexp(x, power); }",
}
OF_FLOATS = OF_DOUBLES | {
    "mantissa": """\
Value mantissa(Value x) {  // of what is no power of 2 times one, x itself
    const unsigned bits = __float_as_uint(x), field = bits >> 23 & 255;  // of the exponent
    return field - 1 < 254 ? __uint_as_float(bits & 0x807fffffu | 0x3f000000u) : x;
}""",
    "exponent": """\
int exponent(Value x) {
    const unsigned field = __float_as_uint(x) >> 23 & 255;
    return field - 1 < 254 ? (int)field - 126 : 0;
}""",
    "scaled": """\
Value scaled(Value x, int power) {  // in three steps: 2^power may be out of range
    power = power < -375 ? -375 : power > 375 ? 375 : power;
    const int third = power / 3;
    const Value step = __uint_as_float((third + 127u) << 23);
    return x * step * step * __uint_as_float((power - 2 * third + 127u) << 23);
}""",
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

    Where a wider accumulator is asked for, elements are converted to that and not to the output's dtype first. Half
    products stay in float: rounding them to half first, as ``x * mask`` does, would only lose bits.
    """
    term, text = spec.input, spec.input.read.format(x="x")
    if spec.weight:
        left = _convert(text, spec.input, spec.term)
        right = _convert(spec.weight.read.format(x="m"), spec.weight, spec.term)
        term, text = spec.term, _product(left, right, spec.term)
    text = _convert(text, term, spec.accumulator)
    return text if _value(spec) == spec.accumulator.value else f"({_value(spec)})({text})"


def _convert(text: str, source: DType, to: DType) -> str:
    if source.kind == "complex" and to.kind not in ("complex", "bool"):
        text = f"({text}).re"  # as torch does it; and as true as any number is one with any part
    exact = source == to or (source.value == to.value and to.intrinsic is None)
    return text if exact else to.rounded.format(x=text, value=to.value)


def _product(left: str, right: str, dtype: DType) -> str:
    if dtype.kind in ("float", "complex"):
        return f"{left} * {right}"
    return f"({dtype.value})(({dtype.accumulator})({left}) * ({dtype.accumulator})({right}))"
