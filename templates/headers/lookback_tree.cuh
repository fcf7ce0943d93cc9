//@
// ---- look-back: each column's totals are folded by kFoldLanes lanes of one warp
//@ kFoldColumns
constexpr int kFoldColumns = kColumns > kWarps ? kColumns / kWarps : 1;  // columns per warp
//@ kFoldWarps
constexpr int kFoldWarps = kColumns / kFoldColumns;                      // warps that fold
//@ kFoldLanes
constexpr int kFoldLanes = 32 / kFoldColumns;
//@ kTileLooks
constexpr int kTileLooks = !kHasPeers ? 0 : kGroup > kFoldLanes ? kGroup / kFoldLanes : 1;  // tiles that a lane folds
//@ kGroupLooks
constexpr int kGroupLooks = !kHasGroups ? 0 : kStretch > kFoldLanes ? kStretch / kFoldLanes : 1;  // groups likewise
//@ kLooks
constexpr int kLooks = kHasPeers || kHasGroups ? kTileLooks + kGroupLooks + kHasCarry : 1;
//@ kFoldColumns
static_assert(kColumns <= kThreads && kFoldColumns <= 32, "a lane for every column");
//@

//@ groups_of
// Number of groups of so many tiles, the last of which may be partial.
__device__ __forceinline__ int groups_of(int tiles, int size) { return (tiles + size - 1) / size; }

//@ column_of
// A panel's column in an array of the states of its threads.
__device__ __forceinline__ State& column_of(States* states, int column) {
    return states[column / kVector].column[column % kVector];
}

//@ column_number
// The number in its panel of a column of `column_of`.
__device__ __forceinline__ int column_number(int column) {
    return column / kVector * kPitch + column % kVector * kSpacing;
}

//@ scan_warp_totals
// Replace the totals of a column's warps by the exclusive prefix of each; returns the total of the tile.
__device__ __forceinline__ State scan_warp_totals(States (*warp_total)[kLanes], int column) {
    State total = identity();
    for (int w = 0; w < kWarps; ++w) {
        State& warps = column_of(warp_total[w], column);
        const State newer = warps;
        warps = total;
        total = combine(total, newer);
    }
    return total;
}

//@ look_back
// Replace the carry-in of a panel's columns in `ahead` by the exclusive prefix of a tile. The lanes of a column fold it
// in an order that depends on the tile's position alone. Each total is published as soon as it is known, by the lane
// that holds it, because other blocks wait for it. Called by the first kFoldWarps warps.
// carry_of(column, begins): the carry-in of a column, where nothing is chained to it. `launch` stays in shared
// memory, as registers are scarce.
template <class CarryOf>
__device__ __forceinline__ void look_back(const Board& board, const unsigned& launch, unsigned panel, int tile,
                                          int tiles_a_line, States (*warp_total)[kLanes], States* ahead, CarryOf carry_of) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int folded = warp * kFoldColumns + lane % kFoldColumns;  // the column
    const bool last = lane / kFoldColumns == kFoldLanes - 1;  // the lane that holds the column's totals
    const int group = tile / kGroup, stretch = tile / (kGroup * kStretch);
    // a column has statuses of its tiles, then of groups, then of groups of groups
    const int groups_at = kHasPeers ? tiles_a_line : 0;
    const int stretches_at = groups_at + (kHasGroups ? groups_of(tiles_a_line, kGroup) : 0);
    const int end = stretches_at + (kHasCarry ? groups_of(tiles_a_line, kGroup * kStretch) : 0);
    const long long statuses = (long long)panel * kColumns * end + folded;
    const auto status_of = [&](int index) { return statuses + (long long)index * kColumns; };

    // the totals that this lane folds: of tiles, then of groups, then the chained prefix
    bool needed[kLooks], waits[kLooks];
    long long place[kLooks];
    Words words[kLooks];
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
        const int own_tile = group * kGroup + lane / kFoldColumns * kTileLooks + k;
        const int own_group = stretch * kStretch + lane / kFoldColumns * kGroupLooks + k - kTileLooks;
        const bool of_tiles = k < kTileLooks, of_groups = !of_tiles && k < kTileLooks + kGroupLooks;
        needed[k] = of_tiles ? own_tile < tile : of_groups ? own_group < group : last && stretch > 0;
        place[k] = status_of(of_tiles ? own_tile : of_groups ? groups_at + own_group : stretches_at + stretch - 1);
        waits[k] = needed[k];
    }
    const auto look = [&] {  // at all missing words at once: one memory round trip
#pragma unroll
        for (int k = 0; k < kLooks; ++k)
            if (waits[k]) words[k] = peek(board, place[k]);
#pragma unroll
        for (int k = 0; k < kLooks; ++k) waits[k] = waits[k] && is_missing(words[k], launch);
    };
    const auto waiting = [&](int begin, int end) {
        bool any = false;
#pragma unroll
        for (int k = 0; k < kLooks; ++k) any = any || (k >= begin && k < end && waits[k]);
        return any;
    };
    const auto fold = [&](int begin, int end) {
        State sum = identity();
#pragma unroll
        for (int k = 0; k < kLooks; ++k)
            if (k >= begin && k < end && needed[k]) sum = combine(sum, total_of(words[k]));
        return scan_lanes<kFoldColumns>(sum, lane);
    };

    // ---- publish the tile's total before looking back: other blocks wait for it
    State total = identity();
    if (last) {
        total = scan_warp_totals(warp_total, folded);
        if (kHasPeers) publish(board, launch, status_of(tile), total);
    }

    // ---- fold the tiles above it in its group, then the groups above it, and the groups of groups above those
    State tiles = identity(), groups = identity();
    if constexpr (kHasPeers) {
        while (waiting(0, kTileLooks)) look();
        tiles = fold(0, kTileLooks);
    }
    if (kHasGroups && last && tile % kGroup == kGroup - 1)
        publish(board, launch, status_of(groups_at + group), kHasPeers ? combine(tiles, total) : total);
    while (waiting(kTileLooks, kLooks)) look();
    if constexpr (kHasGroups) groups = fold(kTileLooks, kTileLooks + kGroupLooks);
    if (last) {
        State before = carry_of(folded, !kHasCarry || stretch == 0);
        if (kHasCarry && stretch > 0) before = total_of(words[kLooks - 1]);
        if (kHasGroups) before = combine(before, groups);
        if (kHasPeers) before = combine(before, tiles);
        if (kHasCarry && tile % (kGroup * kStretch) == kGroup * kStretch - 1)
            publish(board, launch, status_of(stretches_at + stretch), combine(before, total));
        column_of(ahead, folded) = before;
    }
}

