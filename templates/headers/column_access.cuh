// A thread's part of a column tile, its operands, and stores of its results.
#pragma once

struct Place {  // a thread's columns, and its rows of a tile
    int lane, warp;
    int in_tile;       // index of the thread's columns in the column tile
    int there;         // column c of the thread exists if it is less than this
    long long line;    // number of the first one's line
    long long step;    // from the number of a line to that of the thread's next
    long long item;    // index of its first row in a dense operand
    Position first;    // scan position of the first row that it accesses
    Position scanned;  // and of the first one that it scans, another one where lanes exchange rows
    Position live;     // rows from `first` to the end of its columns
};

// How many of a thread's columns exist, at least; `left`: columns from its first one to the end of the column tile.
__device__ __forceinline__ int columns_of(int left) { return (left + kSpacing - 1) / kSpacing; }

// Whether row k of a thread exists; `live`: rows from its first to the end of its columns.
template <bool uneven = kUneven>
__device__ __forceinline__ bool is_live(Position live, int k) {
    return uneven ? live > k : !kPartialColumns || live > 0;
}

// One item for all columns of a thread.
template <typename Item>
__device__ __forceinline__ Access<Item> repeat(Item item) {
    Access<Item> items;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) items.column[c] = item;
    return items;
}

template <typename Item>
struct Source {         // an operand, as a thread reads it
    const Item* first;  // the first row of the next tile to read, of the thread, or of a warp that copies it together
    long long step;     // items from one row to the next in scan order
    const Item* begin;  // the operand's first item
    const Item* end;
    long long pitch = 0;  // of transposed operands: from one run of contiguous items to the next
};

// An operand that is read a row further on.
template <typename Item>
__device__ __forceinline__ Source<Item> shift_source(Source<Item> x) {
    x.first += x.step;
    return x;
}

typedef Operands<Source> Sources;  // of a thread

// Move on to the next tile.
__device__ __forceinline__ void advance(Sources& from) {
    for_each_operand([&](auto, auto& x) { x.first += kTileItems * x.step; }, from);
}

// Likewise; `to`: the first row of the next tile to store.
__device__ __forceinline__ void advance(Outputs<PointerTo>& to) {
    for_each_output([&](auto& y) { y += kTileItems * kStep; }, to);
}

template <typename Item>
__device__ __forceinline__ void store_access(Item* to, const Access<Item>& y, int there) {
    if (kStridedColumns || (kRealigns && (size_t)to % alignof(Access<Item>) != 0)) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
            if (!kStridedColumns || !kPartialColumns || there > c) to[c * kSpacing] = y.column[c];
    } else {
        *reinterpret_cast<Access<Item>*>(to) = y;
    }
}

// Store the results of the k-th row that a thread accesses, if it exists.
__device__ __forceinline__ void store_row(const Outputs<PointerTo>& to, int k, const Results& results, Position live,
                                          int there) {
    if (!is_live(live, k * kStride)) return;
    const long long further = k * kStride * kStep;  // items
    for_each_output([&](auto* y, auto& result) { store_access(y + further, result, there); }, to, results);
}
