"""The C++ type of complex numbers: what every kernel needs, and the arithmetic that expressions may use."""

from __future__ import annotations

import re

__all__ = ["complex_type"]

_TYPE = """\
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {{
    Real re, im;

    friend __device__ __forceinline__ bool operator!=(Complex a, Real b) {{ return a.re != b || a.im != 0; }}

    friend __device__ __forceinline__ Complex operator+(Complex a, Complex b) {{ return {{a.re + b.re, a.im + b.im}}; }}

    friend __device__ __forceinline__ Complex operator*(Complex a, Complex b) {{
        return {{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}};
    }}
{arithmetic}}};

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Other x) {{ return {{(Real)x, 0}}; }}

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Complex<Other> z) {{ return {{(Real)z.re, (Real)z.im}}; }}"""

# Further operators, with real operands on either side. Division by Smith's method avoids intermediate overflow.
_ARITHMETIC = """
Complex operator-(Complex a) { return {-a.re, -a.im}; }
Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
Complex operator+(Complex a, Real b) { return {a.re + b, a.im}; }
Complex operator+(Real a, Complex b) { return {a + b.re, b.im}; }
Complex operator-(Complex a, Real b) { return {a.re - b, a.im}; }
Complex operator-(Real a, Complex b) { return {a - b.re, -b.im}; }
Complex operator*(Complex a, Real b) { return {a.re * b, a.im * b}; }
Complex operator*(Real a, Complex b) { return {a * b.re, a * b.im}; }
Complex operator/(Complex a, Real b) { return {a.re / b, a.im / b}; }
Complex operator/(Complex a, Complex b) {
        const bool wide = (b.re < 0 ? -b.re : b.re) >= (b.im < 0 ? -b.im : b.im);
        const Real ratio = wide ? (b.re == 0 ? 0 : b.im / b.re) : b.re / b.im;
        const Real size = wide ? b.re + b.im * ratio : b.re * ratio + b.im;
        return wide ? Complex{(a.re + a.im * ratio) / size, (a.im - a.re * ratio) / size}
                    : Complex{(a.re * ratio + a.im) / size, (a.im * ratio - a.re) / size};
    }
Complex operator/(Real a, Complex b) { return Complex{a, 0} / b; }
bool operator==(Complex a, Complex b) { return a.re == b.re && a.im == b.im; }
bool operator==(Complex a, Real b) { return a.re == b && a.im == 0; }
bool operator!=(Complex a, Complex b) { return a.re != b.re || a.im != b.im; }
"""
_ASKED = re.compile(r"-|/|==|!=|\d\s*[*+]|[*+]\s*\d")  # anything besides sums and products of complex numbers


def complex_type(expressions: tuple[str, ...]) -> str:
    """Return the C++ type, with the arithmetic that these expressions use: a kernel of sums has no division."""
    asked = any(_ASKED.search(text) for text in expressions)
    marked = r"\n    friend __device__ __forceinline__ \1 "
    lines = re.sub(r"^(Complex|bool) ", marked, _ARITHMETIC.lstrip(), flags=re.MULTILINE)
    return _TYPE.format(arithmetic=lines if asked else "")
