// The host API that generated launchers call.
#pragma once
#pragma GCC system_header

#include <string.h>

#include "state.h"

namespace scanops_emulator __attribute__((visibility("hidden"))) {

// A grid and the function that runs one thread of it.
struct Launch {
    dim3 grid, block;
    size_t shared_bytes;
    void (*invoke)(const void* closure);
    const void* closure;
};

cudaError_t run_grid(const Launch& launch);

// The numbers from 0 to `count`, as a pack.
template <size_t count, size_t... at>
struct Places : Places<count - 1, count - 1, at...> {};
template <size_t... at>
struct Places<0, at...> {};

const char* last_report();
cudaError_t take_last_error();

}  // namespace scanops_emulator

template <class... Parameters>
[[maybe_unused]] static cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                                                     size_t shared_bytes = 0, cudaStream_t = nullptr) {
    // By value into every thread, as on a GPU: a thread may change its copy of a parameter.
    const auto call = [&] {
        [&]<size_t... at>(scanops_emulator::Places<0, at...>) {
            kernel(*static_cast<Parameters*>(arguments[at])...);
        }(scanops_emulator::Places<sizeof...(Parameters)>());
    };
    return scanops_emulator::run_grid(
        {grid, block, shared_bytes, [](const void* closure) { (*static_cast<decltype(call)*>(closure))(); }, &call});
}

// Shared memory of any size is there already: dynamic_shared declares it.
template <class Kernel>
[[maybe_unused]] static cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
    return cudaSuccess;
}

[[maybe_unused]] static inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument: more dynamic shared memory than the kernel declares";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument: grid or block dimensions";
        case cudaErrorAssert: return scanops_emulator::last_report();
    }
    return "unrecognized error code";
}

[[maybe_unused]] static inline cudaError_t cudaGetLastError() { return scanops_emulator::take_last_error(); }

[[maybe_unused]] static inline cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t = nullptr) {
    memset(target, value, bytes);
    return cudaSuccess;
}
