// Vectors of a row that are kept in registers.
#pragma once

template <class To>
__device__ __forceinline__ void fetch(To* to, const void* from) {
    *to = *static_cast<const To*>(from);
}

// Where a thread keeps access j, and access j of an operand whose lanes share accesses.
__device__ __forceinline__ int slot_of(int j, int) { return j; }

__device__ __forceinline__ int shifted_slot_of(int j) { return j; }
