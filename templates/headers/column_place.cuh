// Where a thread and its dense operands are in a column tile.
#pragma once

// The place of a thread in a column tile, for the tile that begins at a scan position.
__device__ __forceinline__ Place thread_position(unsigned column_tile, Position begin, Position length) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads, in_tile = threadIdx.x % kLanes;
    const long long outer = column_tile / kColumnTiles;
    const long long column = column_tile % kColumnTiles * (long long)kTileColumns + in_tile * kPitch;
    const int there = columns_of(kPartialColumns ? (int)min(kInner - column, (long long)kTileColumns) : kTileColumns);
    const Position scanned = begin + (int)threadIdx.x / kLanes * kRunItems;
    const Position first = kExchangesRows ? begin + warp * kWarpRows + lane / kLanes : scanned;
    const long long line = outer * kInner + column;
    const long long item = (outer * length + memory_index(first, 1, length)) * kInner + column;
    return {lane, warp, in_tile, there, line, kSpacing, item, first, scanned, there > 0 ? length - first : 0};
}

// A dense operand of so many items. flat: a warp's rows are contiguous; `first` is the lowest item in memory of these.
template <bool flat, typename Item>
__device__ __forceinline__ Source<Item> dense(const Item* begin, const Place& at, long long items) {
    const int row = kReverse ? kWarpRows - 1 - at.lane / kLanes : at.lane / kLanes;
    const Item* const own = begin + at.item;
    return {flat ? own - at.in_tile * kThreadColumns - row * (long long)kInner : own, kStep, begin, begin + items};
}
