// Vectors of a row that are kept in the ring in shared memory.
#pragma once
#include "headers/copy_intrinsics.cuh"

template <class To>
__device__ __forceinline__ void fetch(To* to, const void* from) {
    copy_async(to, from);
}  // in flight

// Where the ring holds access j of a thread, and access j of an operand whose lanes share accesses.
__device__ __forceinline__ int slot_of(int j, [[maybe_unused]] int lane) {
    return kInRuns ? access_place<kBankPeriod>(lane + kWarpThreads * j) : j * kBlockThreads;
}

__device__ __forceinline__ int shifted_slot_of(int j) { return kWarpThreads * j; }
