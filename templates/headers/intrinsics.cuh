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

//@ store_relaxed, load_relaxed
#ifdef __CUDACC__
// Tile status words: relaxed 64-bit accesses, which L1 does not serve, at the scope of the GPU, or of the system where
// other GPUs read them.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long value) {
    if constexpr (kLinked)
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* word) {
    unsigned long long value;
    if constexpr (kLinked)
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    else
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
#endif

//@ nanoseconds
#ifdef __CUDACC__
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
#endif

//@ dynamic_shared
#ifdef __CUDACC__
// Dynamic shared memory, sized by the launch: more than the 48 KB of a static declaration.
#define dynamic_shared(Layout, name)                              \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    Layout& name = *reinterpret_cast<Layout*>(name##_bytes)
#endif

//@ copy_async, copy_async_commit, copy_async_wait
#ifdef __CUDACC__
// Asynchronous global-to-shared copy of 4, 8 or 16 bytes (cp.async), 16 with L1 bypass (cp.async.cg) if so asked.
// Fewer bytes pass through a register, and all of them where a target has no cp.async.
template <bool bypasses = false, class Item>
__device__ __forceinline__ void copy_async(Item* shared, const void* global) {
    [[maybe_unused]] const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (!kCopiesAsync || sizeof(Item) < 4)
        *shared = *static_cast<const Item*>(global);
    else if constexpr (bypasses && sizeof(Item) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(global), "n"(sizeof(Item)) : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most `groups` of this thread's newest copy groups are in flight (cp.async.wait_group).
template <int groups>
__device__ __forceinline__ void copy_async_wait() {
    if constexpr (kCopiesAsync) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
#endif
