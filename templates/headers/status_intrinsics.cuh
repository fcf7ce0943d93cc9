// Accesses of words that other blocks, or other GPUs, write meanwhile.
#pragma once

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

#ifdef __CUDACC__
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
#endif
