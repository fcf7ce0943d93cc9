//@ half_to_float
#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines it for a CPU
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
#endif

//@ float_to_half
#ifdef __CUDACC__
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

//@ bfloat_to_float
#ifdef __CUDACC__
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    float value;
    asm("mov.b32 %0, { %1, %2 };" : "=f"(value) : "h"((unsigned short)0), "h"(bits));
    return value;
}
#endif

//@ float_to_bfloat
#ifdef __CUDACC__
__device__ __forceinline__ unsigned short float_to_bfloat(float value) {
    if constexpr (kConvertsBfloat) {
        unsigned short bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    } else {
        const unsigned bits = __float_as_uint(value);
        if (value != value) return 0x7fff;
        return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // round to nearest, ties to even
    }
}
#endif

//@ scaled_float8
#ifdef __CUDACC__
// An 8-bit float by moving exponent and mantissa to float's position and scaling by the difference of the biases.
template <int shift>
__device__ __forceinline__ float scaled_float8(unsigned char bits, float scale, bool is_nan) {
    if (is_nan) return __uint_as_float(0x7fc00000u);
    const float scaled = __uint_as_float((bits & 0x7fu) << shift) * scale;
    return __uint_as_float((bits & 0x80u) << 24 | __float_as_uint(scaled));
}
#endif

//@ e4m3fnuz_to_float
#ifdef __CUDACC__
__device__ __forceinline__ float e4m3fnuz_to_float(unsigned char bits) {
    return scaled_float8<20>(bits, 0x1p119f, bits == 0x80u);
}
#endif

//@ e5m2fnuz_to_float
#ifdef __CUDACC__
__device__ __forceinline__ float e5m2fnuz_to_float(unsigned char bits) {
    return scaled_float8<21>(bits, 0x1p111f, bits == 0x80u);
}
#endif

//@ e4m3fn_to_float
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

//@ e5m2_to_float
#ifdef __CUDACC__
__device__ __forceinline__ float e5m2_to_float(unsigned char bits) {
    float value;  // of the half whose upper byte this is
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)(bits << 8)));
    return value;
}
#endif

//@ exp2_of
#ifdef __CUDACC__
__device__ __forceinline__ float exp2_of(float x) {  // to 2 ulp; subnormal results are 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

//@ log2_of
#ifdef __CUDACC__
__device__ __forceinline__ float log2_of(float x) {  // absolute error 2^-22, relative above 1
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

//@ reciprocal_of
#ifdef __CUDACC__
__device__ __forceinline__ float reciprocal_of(float x) {  // to 1 ulp; subnormal results are 0
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

//@ root_of
#ifdef __CUDACC__
__device__ __forceinline__ float root_of(float x) {  // to 1 ulp
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

//@ rsqrt_of
#ifdef __CUDACC__
__device__ __forceinline__ float rsqrt_of(float x) {  // to 2 ulp
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

//@ quotient
#ifdef __CUDACC__
__device__ __forceinline__ float quotient(float x, float y) {  // to 2 ulp
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
#endif
