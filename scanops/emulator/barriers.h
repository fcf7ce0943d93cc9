// __syncthreads. Stricter than a GPU, which forgives threads that have left: generated kernels must not rely on that.
#pragma once
#pragma GCC system_header

namespace scanops_emulator __attribute__((visibility("hidden"))) {

void barrier(int line);

}  // namespace scanops_emulator

[[maybe_unused]] static inline void __syncthreads(int line = __builtin_LINE()) {
    asm volatile("" ::: "memory");
    scanops_emulator::barrier(line);
    asm volatile("" ::: "memory");
}
