"""The C++ types and expressions a spec turns into: all that a template prints about dtypes and the operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scanops.codegen.dtypes import DType, literal
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
INDEX_BYTES = 4  # of a field that holds an index in the line: the longest line has 2^31 items
DOUBLE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """C++ text for one spec. Expressions are over the names given beside them."""

    declarations: tuple[str, ...]  # C types that the names below are made of
    value: str  # C type of the accumulator
    scalar_state: bool  # a state is a plain Value, not a struct
    fields: tuple[tuple[str, str], ...]  # (C type, name) of the state's fields
    parts: tuple[str, ...]  # what is appended to a state's name for each part of it that one shuffle carries
    identity: tuple[str, ...]  # one constant for each field
    element: str  # x (Input) and m (Mask) -> Value
    result: str  # state -> Output
    calls: bool  # combine and result are functions that are called, not repeated
    helpers: tuple[str, ...]  # functions that the expressions call
    intrinsics: tuple[str, ...]  # macros of intrinsics.cuh.j2 the expressions call
    state_bytes: int  # size of one State


def fragments(spec: ScanSpec) -> Fragments:
    """The fragments of ``spec``."""
    operator, out = spec.operator, spec.accumulator
    dtypes = [spec.input, out, spec.out, *([spec.weight] if spec.weight else [])]
    of_parts = any(row.kind == "complex" for row in dtypes)
    within = {name: ("",) if name in operator.places else out.parts for name in operator.fields}
    parts = [f".{name}{part}" for name in operator.fields for part in within[name]]
    sizes = [INDEX_BYTES if name in operator.places else max(out.bytes, 4) for name in operator.fields]
    identity = tuple(_with_bounds(text, out) for text in operator.identity)
    expressions = (*operator.combine, operator.project, *identity)
    return Fragments(
        declarations=(COMPLEX,) if of_parts else (),
        value=_value(spec),
        scalar_state=len(operator.fields) == 1,
        fields=tuple(("int" if name in operator.places else "Value", name) for name in operator.fields),
        parts=tuple(parts) if operator.fields[1:] else out.parts,
        identity=identity,
        element=_element(spec),
        result=_result(spec),
        calls=operator.costly and out.bytes >= DOUBLE_BYTES,
        helpers=tuple(text for name, text in _helpers(out).items() if any(name in part for part in expressions)),
        intrinsics=tuple(sorted({row.intrinsic for row in dtypes if row.intrinsic})),
        state_bytes=-(-sum(sizes) // max(sizes)) * max(sizes),
    )


def _value(spec: ScanSpec) -> str:
    return spec.accumulator.ordered if spec.operator.ordered else spec.accumulator.accumulator


def _result(spec: ScanSpec) -> str:
    """Narrowed from what it was accumulated in, then as it is stored."""
    out, text = spec.out, spec.operator.project
    if spec.accumulator != out:
        text = out.rounded.format(x=text) if out.kind == "complex" else f"({out.accumulator})({text})"
    return out.write.format(x=text)


def _with_bounds(text: str, out: DType) -> str:
    bounds = {"lowest": literal(out.lowest), "highest": literal(out.highest)}
    constant = re.sub(r"\b(lowest|highest)\b", lambda found: bounds[found[0]], text)
    return f"{{{constant}, 0}}" if out.kind == "complex" else constant


def _helpers(out: DType) -> dict[str, str]:
    """Functions by name. Of an integer nothing is asked: a comparison with itself would be a mistake to a compiler."""
    floating = out.kind == "float"
    return {
        "is_nan": "bool is_nan(Value x) { return x != x; }" if floating else "bool is_nan(Value) { return false; }",
        "lost_by_sum": LOST_BY_SUM,
        "infinity": "float infinity() { return __uint_as_float(0x7f800000); }",
        **(COMPLEX_HELPERS if out.kind == "complex" else {}),
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
