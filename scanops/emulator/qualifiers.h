// The words CUDA adds to C++, each with its reason for what it becomes.
#pragma once
#pragma GCC system_header

// Hidden: the same kernel name lives in many libraries of one process.
#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
// A hint only: always_inline would copy every helper into every kernel, and compiling them would take twice as long.
// Hidden, as everything here: a library calls its own copy.
#define __forceinline__ inline __attribute__((visibility("hidden")))
#define __noinline__ static __attribute__((noinline))

// One section holds all shared memory of the library, so that it can be poisoned, saved and restored as a range.
// "used" stops the compiler from folding an array that nothing writes to zeros, which would hide the poison.
#define __shared__ static __attribute__((section("scanops_shared"), used))

// Dynamic shared memory is a variable like any other here, so that its arrays are checked.
#define dynamic_shared(Layout, name) __shared__ Layout name

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
