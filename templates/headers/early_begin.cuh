// Programmatic dependent launch: a kernel begins while the kernel that was queued before it ends.
#pragma once

#ifdef __CUDACC__
// Wait until the kernels queued before have ended, and what they wrote can be read (griddepcontrol.wait). Until then a
// kernel reads its parameters alone. Nothing is waited for where the launch did not ask for an early begin.
__device__ __forceinline__ void wait_for_predecessors() {
    if constexpr (kBeginsEarly) asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif
