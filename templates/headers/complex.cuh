// Complex numbers.
#pragma once

// Real operands may stand on either side. Division by Smith's method avoids intermediate overflow.
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;

    friend __device__ __forceinline__ Complex operator-(Complex a) { return {-a.re, -a.im}; }
    friend __device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
    friend __device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
    friend __device__ __forceinline__ Complex operator*(Complex a, Complex b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
    friend __device__ __forceinline__ Complex operator+(Complex a, Real b) { return {a.re + b, a.im}; }
    friend __device__ __forceinline__ Complex operator+(Real a, Complex b) { return {a + b.re, b.im}; }
    friend __device__ __forceinline__ Complex operator-(Complex a, Real b) { return {a.re - b, a.im}; }
    friend __device__ __forceinline__ Complex operator-(Real a, Complex b) { return {a - b.re, -b.im}; }
    friend __device__ __forceinline__ Complex operator*(Complex a, Real b) { return {a.re * b, a.im * b}; }
    friend __device__ __forceinline__ Complex operator*(Real a, Complex b) { return {a * b.re, a * b.im}; }
    friend __device__ __forceinline__ Complex operator/(Complex a, Real b) { return {a.re / b, a.im / b}; }
    friend __device__ __forceinline__ Complex operator/(Complex a, Complex b) {
        const bool wide = (b.re < 0 ? -b.re : b.re) >= (b.im < 0 ? -b.im : b.im);
        const Real ratio = wide ? (b.re == 0 ? 0 : b.im / b.re) : b.re / b.im;
        const Real size = wide ? b.re + b.im * ratio : b.re * ratio + b.im;
        return wide ? Complex{(a.re + a.im * ratio) / size, (a.im - a.re * ratio) / size}
                    : Complex{(a.re * ratio + a.im) / size, (a.im * ratio - a.re) / size};
    }
    friend __device__ __forceinline__ Complex operator/(Real a, Complex b) { return Complex{a, 0} / b; }
    friend __device__ __forceinline__ bool operator==(Complex a, Complex b) { return a.re == b.re && a.im == b.im; }
    friend __device__ __forceinline__ bool operator==(Complex a, Real b) { return a.re == b && a.im == 0; }
    friend __device__ __forceinline__ bool operator!=(Complex a, Complex b) { return a.re != b.re || a.im != b.im; }
    friend __device__ __forceinline__ bool operator!=(Complex a, Real b) { return a.re != b || a.im != 0; }
};

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Other x) {
    return {(Real)x, 0};
}

template <class Real, class Other>
__device__ __forceinline__ Complex<Real> complex_of(Complex<Other> z) {
    return {(Real)z.re, (Real)z.im};
}
