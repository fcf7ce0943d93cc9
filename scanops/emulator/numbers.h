// Half and bfloat16 as bits, bit casts, shifts of two words, min and max.
#pragma once
#pragma GCC system_header

[[maybe_unused]] static inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
[[maybe_unused]] static inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
[[maybe_unused]] static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

// For each byte of a and b, 1 where a's is less.
[[maybe_unused]] static inline unsigned __vsetltu4(unsigned a, unsigned b) {
    unsigned found = 0;
    for (int n = 0; n < 32; n += 8) found |= static_cast<unsigned>((a >> n & 255) < (b >> n & 255)) << n;
    return found;
}

// A word out of two, `shift` modulo 32 bits from the top of both and from the bottom.
[[maybe_unused]] static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}

[[maybe_unused]] static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}

[[maybe_unused]] static inline float half_to_float(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return __uint_as_float(sign | ((magnitude << 13) + (112u << 23)));
    // Zero or subnormal: a multiple of 2^-24, exact in float.
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return __uint_as_float(sign | __float_as_uint(value));
}

// Round to nearest even; a NaN becomes 0x7fff, as cvt.rn.f16.f32 makes it.
[[maybe_unused]] static inline unsigned short float_to_half(float value) {
    const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // 65520 and up
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 leaves a multiple of 2^-24 in the low bits, rounded to nearest even.
        const float shifted = __uint_as_float(magnitude) + 0.5f;
        return static_cast<unsigned short>(sign | (__float_as_uint(shifted) - __float_as_uint(0.5f)));
    }
    const unsigned odd = magnitude >> 13 & 1;
    return static_cast<unsigned short>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

[[maybe_unused]] static inline float bfloat_to_float(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

// Eight bits: exponent and fraction where float has them, times what their biases differ by.
[[maybe_unused]] static inline float e4m3fn_to_float(unsigned char bits) {
    const unsigned sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);  // NaN; there is no infinity
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 20) * 0x1p120f));
}

[[maybe_unused]] static inline float e5m2_to_float(unsigned char bits) {
    const unsigned sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude >= 0x7cu) return __uint_as_float(sign | 0x7f800000u | (magnitude & 3u) << 21);  // infinity, NaN
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 21) * 0x1p112f));
}

[[maybe_unused]] static inline float e4m3fnuz_to_float(unsigned char bits) {
    if (bits == 0x80u) return __uint_as_float(0x7fc00000u);  // NaN in the place of -0
    return __uint_as_float((bits & 0x80u) << 24 | __float_as_uint(__uint_as_float((bits & 0x7fu) << 20) * 0x1p119f));
}

[[maybe_unused]] static inline float e5m2fnuz_to_float(unsigned char bits) {
    if (bits == 0x80u) return __uint_as_float(0x7fc00000u);  // NaN in the place of -0
    return __uint_as_float((bits & 0x80u) << 24 | __float_as_uint(__uint_as_float((bits & 0x7fu) << 21) * 0x1p111f));
}

// Round to nearest even; a NaN becomes 0x7fff, as cvt.rn.bf16.f32 makes it.
[[maybe_unused]] static inline unsigned short float_to_bfloat(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// CUDA's overloads. A NaN gives way to the other operand in the floating ones.
#define SCANOPS_MIN_MAX(type)                                                                                        \
    [[maybe_unused]] static constexpr type min(type left, type right) { return right < left ? right : left; }        \
    [[maybe_unused]] static constexpr type max(type left, type right) { return left < right ? right : left; }
SCANOPS_MIN_MAX(int)
SCANOPS_MIN_MAX(unsigned)
SCANOPS_MIN_MAX(long)
SCANOPS_MIN_MAX(unsigned long)
SCANOPS_MIN_MAX(long long)
SCANOPS_MIN_MAX(unsigned long long)
#undef SCANOPS_MIN_MAX

[[maybe_unused]] static inline float min(float left, float right) { return __builtin_fminf(left, right); }
[[maybe_unused]] static inline float max(float left, float right) { return __builtin_fmaxf(left, right); }
[[maybe_unused]] static inline double min(double left, double right) { return __builtin_fmin(left, right); }
[[maybe_unused]] static inline double max(double left, double right) { return __builtin_fmax(left, right); }
