"""C++ functions that operator expressions call, for floats, doubles, complex numbers and integers."""

from __future__ import annotations

import re

from scanops.codegen.spec import ScanSpec

__all__ = ["functions_called"]

DOUBLE_BYTES = 8
# Functions of complex numbers by name. Like their real counterparts they avoid the cancellation of forming 1 + z.
COMPLEX_HELPERS = {
    "is_zero": "bool is_zero(Value z) { return z.re == 0 && z.im == 0; }",
    "exp_difference": """\
Value exp_difference(Value a, Value b) {  // exp(a - b); equal infinities differ by 0
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
# Exact for any a and b with a finite sum: Knuth's TwoSum.
LOST_BY_SUM = """\
Value lost_by_sum(Value a, Value b) {  // the rounding error of a + b
    const Value sum = a + b, of_b = sum - a;
    return (a - (sum - of_b)) + (b - of_b);
}"""
# For half types, whose precision is 2^-11: the relative error is at most 2e-5.
LOG_OF_MORE_IN_HALVES = """\
Value log_of_more(Value x) {  // log(1 + x)
    const Value of_little = fma(x * x, fma(x, (Value)0.33333333, (Value)-0.5), x);
    return x < (Value)0x1p-6 ? of_little : log2_of(1 + x) * (Value)0.69314718;
}"""
RATIO = """\
Value ratio(Value a, Value b) {  // exp(min(a, b) - max(a, b)); 1 for equal infinities
    return exp(a == b ? 0 : -fabs(a - b));
}"""
# With 1 + x = 2^k (1 + f), -0.25 <= f < 0.5: k log(2) + log(1 + f). The polynomial's relative error is at most 2.8e-8,
# that of the sum 1.1 ulp. The result for x = -1 is arbitrary and finite: it is added to an infinity.
LOG_OF_MORE = """\
Value log_of_more(Value x) {  // log(1 + x)
    const int twos = (int)((__float_as_uint(1 + x) - 0x3f400000u) & 0xff800000u);  // k, in the exponent bits of a float
    const Value unit = __uint_as_float(0x3f800000u - (unsigned)twos);
    const Value f = fma(x, unit, unit - 1);
    Value p = fma((Value)0.054131854, f, (Value)-0.12067317);
    p = fma(p, f, (Value)0.14983916);
    p = fma(p, f, (Value)-0.16822818);
    p = fma(p, f, (Value)0.19977078);
    p = fma(p, f, (Value)-0.24993442);
    p = fma(p, f, (Value)0.3333355);
    p = fma(p, f, (Value)-0.5000006);
    return fma((Value)twos, (Value)8.2629582e-8, fma(f * f, p, f));  // log(2) / 2^23
}"""
OF_DOUBLES = {
    "is_nan": "bool is_nan(Value x) { return x != x; }",
    "is_zero": "bool is_zero(Value x) { return x == 0; }",
    "near_exp": "Value near_exp(Value x) { return exp(x); }",
    "ratio": RATIO,
    "log_of_more": "Value log_of_more(Value x) { return log1p(x); }",
}
OF_FLOATS = OF_DOUBLES | {
    # Relative error about (3 + |x|) 2^-23: for few terms close to their reference.
    "near_exp": "Value near_exp(Value x) { return exp2_of(x * 1.44269504f); }",
    "log_of_more": LOG_OF_MORE,
}
OF_OTHERS = {
    "is_nan": "bool is_nan(Value) { return false; }",
    "is_zero": "bool is_zero(Value x) { return x == 0; }",
}


def functions_called(spec: ScanSpec, text: str) -> tuple[str, ...]:
    """Return the functions that ``text`` calls, directly or through others, in order of dependence."""
    functions, called = _functions(spec), set()
    for name in reversed(functions):
        if re.search(rf"\b{name}\(", text):
            called.add(name)
            text += functions[name]
    return tuple(function for name, function in functions.items() if name in called)


def _functions(spec: ScanSpec) -> dict[str, str]:
    """Functions by name for the accumulator. For integers is_nan is constant: compilers warn about x != x."""
    out = spec.accumulator
    return {
        "lost_by_sum": LOST_BY_SUM,
        "infinity": "float infinity() { return __uint_as_float(0x7f800000); }",
        **(OF_OTHERS if out.kind != "float" else OF_DOUBLES if out.bytes == DOUBLE_BYTES else OF_FLOATS),
        **({"log_of_more": LOG_OF_MORE_IN_HALVES} if spec.out.bytes < 4 and not spec.final else {}),
        **(COMPLEX_HELPERS if out.kind == "complex" else {}),
    }
