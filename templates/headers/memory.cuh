// Where items lie in memory.
#pragma once

// Lowest index in memory of `items` items of a line, from a scan position on.
__device__ __forceinline__ Position memory_index(Position position, int items, Position length) {
    return kReverse ? length - items - position : position;
}

// The items of a line, of which a complete scan has one less than results.
__device__ __forceinline__ constexpr Position items_in(Position length) { return length - kComplete; }

// What is not read is 0 in registers. In shared memory it stays, unless all items of a thread decide by which
// instructions it computes, and so the bits of its results.
template <class Slot>
__device__ __forceinline__ void leave_out([[maybe_unused]] Slot& slot) {
    if constexpr (kZeroFills) slot = {};
}

struct Neighbours {               // the dimension along which lines are adjacent in some operand
    long long size;               // size of the dimension
    long long lines;              // difference of the numbers of adjacent lines
    long long operand_stride[4];  // the same in items of each operand
};
