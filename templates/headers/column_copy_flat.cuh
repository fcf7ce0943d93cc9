// Asynchronous copies of a tile, where a warp's rows of an operand are one contiguous range.
#pragma once
#include "headers/column_skew.cuh"
#include "headers/copy_intrinsics.cuh"

// A warp's rows are contiguous in this operand: copied by 16-byte accesses in memory order, whichever lane scans them.
// x.first: the lowest item in memory of the warp's rows.
template <bool uneven = kUneven, typename Item>
__device__ __forceinline__ void copy_flat(Access<Item>* stage, const Source<Item>& x, Position live) {
    const int lane = threadIdx.x % kWarpThreads;
    constexpr int wide = 16 / sizeof(Item), items = kWarpRows * kTileColumns;  // of a copy, and of the warp
    const Position rows = live + lane / kLanes;  // from the warp's first row to the end of the column
    const int there = (kPartialColumns || uneven) && rows < kWarpRows ? (int)rows * kTileColumns : items;
    const int skew = kRealigns ? skew_of<16>(x.first) : 0;
    stage += threadIdx.x / kWarpThreads * kPart<Item>;
#pragma unroll
    for (int k = 0; k < items + (kRealigns ? wide : 0); k += kWarpThreads * wide) {
        const int item = k + lane * wide;
        const bool lives = kReverse ? item + wide > items - there + skew : item < there + skew;
        if (item >= items + skew) continue;
        auto* const to = reinterpret_cast<Access<Item, wide>*>(stage + item / kThreadColumns);
        if (!lives) {
            leave_out(*to);
            continue;
        }
        const Item* const from = x.first - skew + item;
        if (!kRealigns || (from >= x.begin && from + wide <= x.end)) {
            copy_async(to, from);
        } else {  // at the ends of the operand, the items that exist
            for (int i = 0; i < wide; ++i)
                if (from + i >= x.begin && from + i < x.end)
                    to->column[i] = from[i];
                else
                    leave_out(to->column[i]);
        }
    }
}

// Copy this lane's part of a tile of all operands.
__device__ __forceinline__ void copy(Ring& ring, int stage, const Sources& from, Position live) {
    for_each_operand(
        [&](auto layout, auto& slots, auto& x) {
            constexpr bool uneven = kUneven || layout.kShift > 0;
            if constexpr (layout.kIsFlat)
                copy_flat<uneven>(slots[stage], x, live - layout.kShift);
            else
                copy_rows<uneven>(slots[stage], x, live - layout.kShift);
        },
        ring, from);
}
