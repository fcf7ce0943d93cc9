// CUDA's own types as far as generated kernels and their launchers name them.
#pragma once
#pragma GCC system_header

#include <stddef.h>

// Declared here, as the mathematical functions: each system header costs every kernel time to compile.
extern "C" void* memcpy(void* __restrict target, const void* __restrict source, size_t bytes) noexcept;
extern "C" void* memset(void* target, int value, size_t bytes) noexcept;

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Values are CUDA's.
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorAssert = 710,
};

typedef struct CUstream_st* cudaStream_t;

// The running thread's; host/schedule.h sets them at every switch.
__attribute__((visibility("hidden"))) extern uint3 threadIdx;
__attribute__((visibility("hidden"))) extern uint3 blockIdx;
__attribute__((visibility("hidden"))) extern dim3 blockDim;
__attribute__((visibility("hidden"))) extern dim3 gridDim;
[[maybe_unused]] static constexpr int warpSize = 32;
