// The host API that generated launchers call.
#pragma once
#pragma GCC system_header

#include <string.h>

#include "state.h"

namespace scanops_emulator __attribute__((visibility("hidden"))) {

cudaError_t run_grid(const cudaLaunchConfig_t& config, void (*invoke)(const void*), const void* arguments);
const char* last_report();
cudaError_t take_last_error();

}  // namespace scanops_emulator

template <class... Parameters, class... Arguments>
[[maybe_unused]] static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                                                       Arguments&&... arguments) {
    // By value into every thread, as on a GPU: a thread may change its copy of a parameter.
    const auto call = [&] { kernel(static_cast<Parameters>(arguments)...); };
    return scanops_emulator::run_grid(
        *config, [](const void* closure) { (*static_cast<decltype(call)*>(closure))(); }, &call);
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
            return "invalid argument: launch attributes, or more dynamic shared memory than the kernel declares";
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
