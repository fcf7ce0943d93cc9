// The host API that generated launchers call.
#pragma once
#pragma GCC system_header

#include "types.h"

namespace scanops_emulator __attribute__((visibility("hidden"))) {

// A grid, and the function that runs one thread of it.
struct Launch {
    dim3 grid, block;
    size_t shared_bytes;
    void (*invoke)(void (*kernel)(), void** arguments);
    void (*kernel)();
    void** arguments;
};

cudaError_t run_grid(const Launch& launch);

// The numbers from 0 to `count`, as a pack.
template <size_t count, size_t... at>
struct Places : Places<count - 1, count - 1, at...> {};
template <size_t... at>
struct Places<0, at...> {};

// By value into every thread, as on a GPU: a thread may change its copy of a parameter. One function, because each
// function takes the compiler a millisecond.
template <class... Parameters, size_t... at>
[[gnu::always_inline]] inline auto invoke_kernel(Places<0, at...>) {
    return [](void (*kernel)(), void** arguments) {
        reinterpret_cast<void (*)(Parameters...)>(kernel)(*static_cast<Parameters*>(arguments[at])...);
    };
}

}  // namespace scanops_emulator

template <class... Parameters>
[[gnu::always_inline, maybe_unused]] static inline cudaError_t cudaLaunchKernel(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t shared_bytes = 0, cudaStream_t = nullptr) {
    using namespace scanops_emulator;
    return run_grid({grid, block, shared_bytes, invoke_kernel<Parameters...>(Places<sizeof...(Parameters)>()),
                     reinterpret_cast<void (*)()>(kernel), arguments});
}

// Shared memory of any size is there already: dynamic_shared declares it.
template <class Kernel>
[[maybe_unused]] static cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
    return cudaSuccess;
}

__attribute__((visibility("hidden"))) const char* cudaGetErrorString(cudaError_t error);
__attribute__((visibility("hidden"))) cudaError_t cudaGetLastError();

[[maybe_unused]] static inline cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t = nullptr) {
    memset(target, value, bytes);
    return cudaSuccess;
}
