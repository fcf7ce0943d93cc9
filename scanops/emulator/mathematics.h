// CUDA's mathematical functions, for float by the plain name too. Declared here: <math.h> takes g++ longer to read than
// all else in a kernel together.
#pragma once
#pragma GCC system_header

// A whole number counts as a double.
#define SCANOPS_UNARY(name)                                                                                        \
    extern "C" double name(double) noexcept;                                                                       \
    extern "C" float name##f(float) noexcept;                                                                      \
    [[maybe_unused]] static inline float name(float value) { return __builtin_##name##f(value); }                  \
    template <class Whole>                                                                                         \
    [[maybe_unused]] static inline double name(Whole value) {                                                      \
        return __builtin_##name(static_cast<double>(value));                                                       \
    }
SCANOPS_UNARY(acos)
SCANOPS_UNARY(acosh)
SCANOPS_UNARY(asin)
SCANOPS_UNARY(asinh)
SCANOPS_UNARY(atan)
SCANOPS_UNARY(atanh)
SCANOPS_UNARY(cbrt)
SCANOPS_UNARY(ceil)
SCANOPS_UNARY(cos)
SCANOPS_UNARY(cosh)
SCANOPS_UNARY(erf)
SCANOPS_UNARY(erfc)
SCANOPS_UNARY(exp)
SCANOPS_UNARY(exp2)
SCANOPS_UNARY(expm1)
SCANOPS_UNARY(fabs)
SCANOPS_UNARY(floor)
SCANOPS_UNARY(lgamma)
SCANOPS_UNARY(log)
SCANOPS_UNARY(log10)
SCANOPS_UNARY(log1p)
SCANOPS_UNARY(log2)
SCANOPS_UNARY(logb)
SCANOPS_UNARY(nearbyint)
SCANOPS_UNARY(rint)
SCANOPS_UNARY(round)
SCANOPS_UNARY(sin)
SCANOPS_UNARY(sinh)
SCANOPS_UNARY(sqrt)
SCANOPS_UNARY(tan)
SCANOPS_UNARY(tanh)
SCANOPS_UNARY(tgamma)
SCANOPS_UNARY(trunc)
#undef SCANOPS_UNARY

#define SCANOPS_BINARY(name)                                                                                       \
    extern "C" double name(double, double) noexcept;                                                               \
    extern "C" float name##f(float, float) noexcept;                                                               \
    [[maybe_unused]] static inline float name(float left, float right) { return __builtin_##name##f(left, right); }
SCANOPS_BINARY(atan2)
SCANOPS_BINARY(copysign)
SCANOPS_BINARY(fdim)
SCANOPS_BINARY(fmax)
SCANOPS_BINARY(fmin)
SCANOPS_BINARY(fmod)
SCANOPS_BINARY(hypot)
SCANOPS_BINARY(nextafter)
SCANOPS_BINARY(pow)
SCANOPS_BINARY(remainder)
#undef SCANOPS_BINARY

extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
[[maybe_unused]] static inline float fma(float left, float right, float more) {
    return __builtin_fmaf(left, right, more);
}

extern "C" double frexp(double, int*) noexcept;
extern "C" float frexpf(float, int*) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
[[maybe_unused]] static inline float frexp(float value, int* power) { return __builtin_frexpf(value, power); }
[[maybe_unused]] static inline float ldexp(float value, int power) { return __builtin_ldexpf(value, power); }

[[maybe_unused]] static inline float exp2_of(float value) {
    const float power = __builtin_exp2f(value);
    return power < 0x1p-126f ? 0 : power;  // a NaN is none
}

[[maybe_unused]] static inline float log2_of(float value) { return __builtin_log2f(value); }
[[maybe_unused]] static inline float quotient(float value, float by) { return value / by; }
[[maybe_unused]] static inline float root_of(float value) { return __builtin_sqrtf(value); }
[[maybe_unused]] static inline float rsqrt_of(float value) { return 1 / __builtin_sqrtf(value); }
[[maybe_unused]] static inline float reciprocal_of(float value) {
    const float inverse = 1 / value;
    return __builtin_fabsf(inverse) < 0x1p-126f ? __builtin_copysignf(0, inverse) : inverse;
}

#define SCANOPS_CLASS(name)                                                                        \
    [[maybe_unused]] static inline bool name(float value) { return __builtin_##name(value) != 0; } \
    [[maybe_unused]] static inline bool name(double value) { return __builtin_##name(value) != 0; }
SCANOPS_CLASS(isfinite)
SCANOPS_CLASS(isinf)
SCANOPS_CLASS(isnan)
SCANOPS_CLASS(signbit)
#undef SCANOPS_CLASS

[[maybe_unused]] static inline int abs(int value) { return value < 0 ? -value : value; }
[[maybe_unused]] static inline long abs(long value) { return value < 0 ? -value : value; }
[[maybe_unused]] static inline long long abs(long long value) { return value < 0 ? -value : value; }
[[maybe_unused]] static inline float abs(float value) { return __builtin_fabsf(value); }
[[maybe_unused]] static inline double abs(double value) { return __builtin_fabs(value); }

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
