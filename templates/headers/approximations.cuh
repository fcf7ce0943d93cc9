// Functions of one instruction or two, less exact than those of the CUDA math library.
#pragma once

#ifdef __CUDACC__
__device__ __forceinline__ float exp2_of(float x) {  // to 2 ulp; subnormal results are 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float log2_of(float x) {  // absolute error 2^-22, relative above 1
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float reciprocal_of(float x) {  // to 1 ulp; subnormal results are 0
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float root_of(float x) {  // to 1 ulp
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float rsqrt_of(float x) {  // to 2 ulp
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ float quotient(float x, float y) {  // to 2 ulp
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
#endif
