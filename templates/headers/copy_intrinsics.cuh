// Asynchronous copies.
#pragma once

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
