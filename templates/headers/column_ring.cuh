// The ring of tiles in shared memory.
#pragma once
#include "headers/copy_intrinsics.cuh"

template <class Item>
using RingStages = Access<Item>[kStages][kStage<Item>];

typedef Operands<RingStages> Ring;  // multistage ring of tiles

// Copy a thread's rows of a tile, one access each.
template <bool uneven = kUneven, typename Item>
__device__ __forceinline__ void copy_rows(Access<Item>* stage, const Source<Item>& x, Position live) {
    const Item* from = x.first;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, from += kStride * x.step) {
        Access<Item>* const to = stage + copied_place<Item>(k);
        // Full accesses bypass L1: 256 x 1024 x 1024 has 0.974 of a copy this way and 0.829 through L1. Where lanes
        // exchange rows, neighbours share cache lines: 4096 x 4096 x 16 has 0.90 through L1 and 0.85 past it (H200).
        if (is_live<uneven>(live, k * kStride))
            copy_async<!kExchangesRows>(to, from);
        else
            leave_out(*to);
    }
}
