// Half types in memory, which are computed in float.
#pragma once

#ifdef __CUDACC__  // the emulator's cuda_runtime.h defines it for a CPU
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float bfloat_to_float(unsigned short bits) {
    float value;
    asm("mov.b32 %0, { %1, %2 };" : "=f"(value) : "h"((unsigned short)0), "h"(bits));
    return value;
}
#endif

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
