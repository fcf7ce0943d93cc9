// 8-bit floats in memory, which are computed in float.
#pragma once

#ifdef __CUDACC__
// An 8-bit float by moving exponent and mantissa to float's position and scaling by the difference of the biases.
template <int shift>
__device__ __forceinline__ float scaled_float8(unsigned char bits, float scale, bool is_nan) {
    if (is_nan) return __uint_as_float(0x7fc00000u);
    const float scaled = __uint_as_float((bits & 0x7fu) << shift) * scale;
    return __uint_as_float((bits & 0x80u) << 24 | __float_as_uint(scaled));
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float e4m3fnuz_to_float(unsigned char bits) {
    return scaled_float8<20>(bits, 0x1p119f, bits == 0x80u);
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float e5m2fnuz_to_float(unsigned char bits) {
    return scaled_float8<21>(bits, 0x1p111f, bits == 0x80u);
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float e4m3fn_to_float(unsigned char bits) {
    if constexpr (kConvertsFloat8) {
        float value;
        asm("{.reg .b32 pair; .reg .b16 low, high;\n\t"
            "cvt.rn.f16x2.e4m3x2 pair, %1;\n\t"
            "mov.b32 {low, high}, pair;\n\t"
            "cvt.f32.f16 %0, low;}"
            : "=f"(value)
            : "h"((unsigned short)bits));
        return value;
    } else {
        return scaled_float8<20>(bits, 0x1p120f, (bits & 0x7fu) == 0x7fu);
    }
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float e5m2_to_float(unsigned char bits) {
    float value;  // of the half whose upper byte this is
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)(bits << 8)));
    return value;
}
#endif
