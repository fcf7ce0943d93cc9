// Slabs: a warp's part of a tile, transposed in shared memory.
#pragma once
#include "headers/copy_intrinsics.cuh"

static_assert(kLanes == kWarpThreads, "a warp for each part of a tile");

// Items that are contiguous in memory, and in a slab.
inline constexpr bool kAlong = true;    // those of a line
inline constexpr bool kAcross = false;  // those of neighbouring lines at one position

template <class Item>
struct alignas(16) Slab {  // a warp's part of a tile
    Item item[kTileColumns * kRunItems];
};

// The position of a thread among the block's lines, the first of which is `line`.
__device__ __forceinline__ Place thread_position(long long line, int lines, long long step, Position length) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const Position first = warp * kRunItems;
    // results along lines: the lowest in memory of the warp's; across lines: the thread's
    const long long item =
        kToRows ? line * length + memory_index(first, kRunItems, length)
                : (line / kInner * length + memory_index(first, 1, length)) * kInner + line % kInner + lane * kPitch;
    const int there = columns_of(lines - lane * kPitch);
    return {lane,
            warp,
            lane,
            there,
            line + lane * kPitch * step,
            kSpacing * step,
            item,
            first,
            first,
            there > 0 ? length - first : 0};
}

// `line`: the first of the block's lines at index 0; `beside`: items from a line to its neighbour.
template <bool order, typename Item>
__device__ __forceinline__ Source<Item> source_of(const Item* line, [[maybe_unused]] long long beside,
                                                  [[maybe_unused]] long long step, Position first, Position length) {
    if constexpr (order == kAlong)
        return {line + memory_index(first, kRunItems, length), kReverse ? -1 : 1, {}, {}, beside};
    const long long forward = kReverse ? -step : step;
    return {line + memory_index(first, 1, length) * step, forward, {}, {}, forward};
}

// Items of one line that a lane reads or writes at once in shared memory.
template <typename Item>
constexpr int kPieceItems = kRunItems * sizeof(Item) < 16 ? kRunItems : 16 / sizeof(Item);

// Index of an item of a run in a slab. Pieces of lines are swizzled so that lanes access different banks.
template <bool order, typename Item>
__device__ __forceinline__ int slab_index(int run, int item) {
    if (order == kAcross) return run * kTileColumns + item;
    constexpr int pieces = kRunItems / kPieceItems<Item>;                // pieces per line
    constexpr int swizzled = kPitch * pieces > 8 ? kPitch : 8 / pieces;  // lines with the same swizzle
    static_assert(order == kAcross || (kRunItems % kPieceItems<Item> == 0 && pieces <= 8), "whole pieces, at most 8");
    const int piece = (run * pieces + item / kPieceItems<Item>)^(run / swizzled % 8);
    return piece * kPieceItems<Item> + item % kPieceItems<Item>;
}

// Move a warp's part of a tile to a slab, by asynchronous copies, or from it: groups of lanes move runs of contiguous
// items, which are `pitch` items apart in global memory. Of the warp's lines `lines` exist, of its positions `live`.
template <bool store, bool order, int access, typename Item, typename Pointer>
__device__ __forceinline__ void move_slab(Item* slab, Pointer first, long long pitch, int lines, Position live) {
    constexpr int runs = order == kAlong ? kTileColumns : kRunItems, items = order == kAlong ? kRunItems : kTileColumns;
    constexpr int lanes = items / access < kWarpThreads ? items / access : kWarpThreads;  // lanes per group
    static_assert(runs % (kWarpThreads / lanes) == 0 && items % (lanes * access) == 0,
                  "groups of lanes move whole runs");
    const int run = threadIdx.x % kWarpThreads / lanes, item = threadIdx.x % kWarpThreads % lanes * access;
    const auto run_exists = [&](int k) { return order == kAlong ? k < lines : !kUneven || k < live; };
    const auto item_exists = [&](int k) {
        return order == kAcross ? k < lines : !kUneven || (kReverse ? k >= kRunItems - live : k < live);
    };
    if (!kZeroFills && !item_exists(item)) return;
    first += run * pitch + item;
#pragma unroll
    for (int k = 0; k < runs; k += kWarpThreads / lanes, first += kWarpThreads / lanes * pitch)
#pragma unroll
        for (int part = 0; part < items; part += lanes * access) {
            auto& slot = *reinterpret_cast<Access<Item, access>*>(slab + slab_index<order, Item>(run + k, item + part));
            const bool exists = run_exists(run + k) && ((!kZeroFills && part == 0) || item_exists(item + part));
            if constexpr (!store)
                exists ? copy_async<true>(&slot, first + part) : leave_out(slot);
            else if (exists)
                *reinterpret_cast<Access<Item, access>*>(first + part) = slot;
        }
}

// Move a lane's lines from or to a slab in which they are contiguous.
template <bool store, typename Item>
__device__ __forceinline__ void move_lines(Item* slab, Rows<Item>& rows) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
#pragma unroll
        for (int begin = 0; begin < kRunItems; begin += kPieceItems<Item>) {
            const int place = slab_index<kAlong, Item>(threadIdx.x % kWarpThreads * kPitch + c * kSpacing, begin);
            auto& slot = *reinterpret_cast<Access<Item, kPieceItems<Item>>*>(slab + place);
            Access<Item, kPieceItems<Item>> piece;
            if (!store) piece = slot;
#pragma unroll
            for (int k = 0; k < kPieceItems<Item>; ++k) {
                Item& item = rows.row[kReverse ? kRunItems - 1 - begin - k : begin + k].column[c];
                if (store)
                    piece.column[k] = item;
                else
                    item = piece.column[k];
            }
            if (store) slot = piece;
        }
}

// This lane's items of a tile that arrived.
template <bool order, typename Item>
__device__ __forceinline__ Rows<Item> load(Item* slab) {
    Rows<Item> rows;
    if constexpr (order == kAlong) {
        move_lines<false>(slab, rows);
        return rows;
    }
    slab += threadIdx.x % kWarpThreads * kPitch;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k, slab += kTileColumns) {
        if constexpr (!kStridedColumns) rows.row[k] = *reinterpret_cast<const Access<Item>*>(slab);
#pragma unroll
        for (int c = 0; c < kThreadColumns && kStridedColumns; ++c) rows.row[k].column[c] = slab[c * kSpacing];
    }
    return rows;
}

// Store a warp's results of a tile, contiguous along their lines, by way of a slab.
template <int access, class Item>
__device__ __forceinline__ void store_slab(Slab<Item>& slab, Item* to, Rows<Item>& rows, long long pitch, int lines,
                                           Position live) {
    __syncwarp();  // all lanes have read what the slab held
    move_lines<true>(slab.item, rows);
    __syncwarp();
    move_slab<true, kAlong, access>(slab.item, to, pitch, lines, live);
}
