// Programmatic dependent launch: a kernel begins while the kernel ahead of it on its stream ends.
#pragma once

#ifdef __CUDACC__
// Wait until the kernels ahead on the stream have ended, and what they wrote can be read (griddepcontrol.wait). Before
// it a kernel reads its parameters alone. It does nothing where the launch did not ask for an early begin.
__device__ __forceinline__ void wait_for_stream() {
    if constexpr (kBeginsEarly) asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif
