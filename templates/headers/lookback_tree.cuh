// Look-back of columns: each column's totals are folded by kFoldLanes lanes of one warp.
#pragma once

inline constexpr long long kMostBlocks = 0xffffffffLL;  // that an unsigned number counts

inline constexpr int kFoldColumns = kTileColumns > kBlockWarps ? kTileColumns / kBlockWarps : 1;  // columns per warp
inline constexpr int kFoldWarps = kTileColumns / kFoldColumns;  // warps that fold
inline constexpr int kFoldLanes = kWarpThreads / kFoldColumns;
inline constexpr int kTileLooks = !kFoldsTiles               ? 0
                           : kGroupTiles > kFoldLanes ? kGroupTiles / kFoldLanes
                                                      : 1;  // tiles that a lane folds
inline constexpr int kGroupLooks = !kFoldsGroups                    ? 0
                            : kSupergroupGroups > kFoldLanes ? kSupergroupGroups / kFoldLanes
                                                             : 1;  // groups likewise
inline constexpr int kFoldLooks = kFoldsTiles || kFoldsGroups ? kTileLooks + kGroupLooks + kChainsPrefixes : 1;
static_assert(kTileColumns <= kBlockThreads && kFoldColumns <= kWarpThreads, "a lane for every column");

// Number of groups of so many tiles, the last of which may be partial.
__device__ __forceinline__ int groups_of(int tiles, int size) { return (tiles + size - 1) / size; }

// A column tile's column in an array of the states of its threads.
__device__ __forceinline__ State& column_of(States* states, int column) {
    return states[column / kThreadColumns].column[column % kThreadColumns];
}

// The number in its column tile of a column of `column_of`.
__device__ __forceinline__ int column_number(int column) {
    return column / kThreadColumns * kPitch + column % kThreadColumns * kSpacing;
}

// Replace the totals of a column's warps by the exclusive prefix of each; returns the total of the tile.
__device__ __forceinline__ State scan_warp_totals(States (*warp_aggregate)[kLanes], int column) {
    State total = identity();
    for (int w = 0; w < kBlockWarps; ++w) {
        State& warps = column_of(warp_aggregate[w], column);
        const State newer = warps;
        warps = total;
        total = combine(total, newer);
    }
    return total;
}

// Replace the carry-in of a column tile's columns in `ahead` by the exclusive prefix of a tile. The lanes of a column fold it
// in an order that depends on the tile's position alone. Each total is published as soon as it is known, by the lane
// that holds it, because other blocks wait for it. Called by the first kFoldWarps warps.
// carry_of(column, begins): the carry-in of a column, where nothing is chained to it. `launch` stays in shared
// memory, as registers are scarce.
template <class CarryOf>
__device__ __forceinline__ void look_back(const TileStatus& tile_status, const unsigned& epoch, unsigned column_tile,
                                          int tile, int tiles_a_line, States (*warp_aggregate)[kLanes], States* ahead,
                                          CarryOf carry_of) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const int folded = warp * kFoldColumns + lane % kFoldColumns;  // the column
    const bool last = lane / kFoldColumns == kFoldLanes - 1;       // the lane that holds the column's totals
    const int group = tile / kGroupTiles, stretch = tile / (kGroupTiles * kSupergroupGroups);
    // a column has statuses of its tiles, then of groups, then of groups of groups
    const int groups_at = kFoldsTiles ? tiles_a_line : 0;
    const int stretches_at = groups_at + (kFoldsGroups ? groups_of(tiles_a_line, kGroupTiles) : 0);
    const int end = stretches_at + (kChainsPrefixes ? groups_of(tiles_a_line, kGroupTiles * kSupergroupGroups) : 0);
    const long long statuses = (long long)column_tile * kTileColumns * end + folded;
    const auto status_of = [&](int index) { return statuses + (long long)index * kTileColumns; };

    // the totals that this lane folds: of tiles, then of groups, then the chained prefix
    bool needed[kFoldLooks], waits[kFoldLooks];
    long long place[kFoldLooks];
    StatusWords words[kFoldLooks];
#pragma unroll
    for (int k = 0; k < kFoldLooks; ++k) {
        const int own_tile = group * kGroupTiles + lane / kFoldColumns * kTileLooks + k;
        const int own_group = stretch * kSupergroupGroups + lane / kFoldColumns * kGroupLooks + k - kTileLooks;
        const bool of_tiles = k < kTileLooks, of_groups = !of_tiles && k < kTileLooks + kGroupLooks;
        needed[k] = of_tiles ? own_tile < tile : of_groups ? own_group < group : last && stretch > 0;
        place[k] = status_of(of_tiles ? own_tile : of_groups ? groups_at + own_group : stretches_at + stretch - 1);
        waits[k] = needed[k];
    }
    const auto look = [&] {  // at all missing words at once: one memory round trip
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k)
            if (waits[k]) words[k] = load_status(tile_status, place[k]);
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k) waits[k] = waits[k] && is_stale(words[k], epoch);
    };
    const auto waiting = [&](int begin, int end) {
        bool any = false;
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k) any = any || (k >= begin && k < end && waits[k]);
        return __any_sync(kFullMask, any);  // lanes that wait look together: 1135379 x 64, cummax, takes 290 us, not 352
    };
    const auto fold = [&](int begin, int end) {
        State sum = identity();
#pragma unroll
        for (int k = 0; k < kFoldLooks; ++k)
            if (k >= begin && k < end && needed[k]) sum = combine(sum, value_of(words[k]));
        return scan_lanes<kFoldColumns>(sum, lane);
    };

    // ---- publish the tile's total before looking back: other blocks wait for it
    State total = identity();
    if (last) {
        total = scan_warp_totals(warp_aggregate, folded);
        if (kFoldsTiles) publish(tile_status, epoch, status_of(tile), total);
    }

    // ---- fold the tiles above it in its group, then the groups above it, and the groups of groups above those
    State tiles = identity(), groups = identity();
    if constexpr (kFoldsTiles) {
        while (waiting(0, kTileLooks)) look();
        tiles = fold(0, kTileLooks);
    }
    if (kFoldsGroups && last && tile % kGroupTiles == kGroupTiles - 1)
        publish(tile_status, epoch, status_of(groups_at + group), kFoldsTiles ? combine(tiles, total) : total);
    while (waiting(kTileLooks, kFoldLooks)) look();
    if constexpr (kFoldsGroups) groups = fold(kTileLooks, kTileLooks + kGroupLooks);
    if (last) {
        State before = carry_of(folded, !kChainsPrefixes || stretch == 0);
        if (kChainsPrefixes && stretch > 0) before = value_of(words[kFoldLooks - 1]);
        if (kFoldsGroups) before = combine(before, groups);
        if (kFoldsTiles) before = combine(before, tiles);
        if (kChainsPrefixes && tile % (kGroupTiles * kSupergroupGroups) == kGroupTiles * kSupergroupGroups - 1)
            publish(tile_status, epoch, status_of(stretches_at + stretch), combine(before, total));
        column_of(ahead, folded) = before;
    }
}
