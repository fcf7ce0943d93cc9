//@ shuffle_up
// Lanes are in reverse order: the one before a lane in scan order is the next one.
__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts([&](auto part) { return __shfl_down_sync(kFullMask, part, distance, kLanes); }, s);
}

//@ shuffle
__device__ __forceinline__ State shuffle(const State& s, int source) {
    return exchange_parts([&](auto part) { return __shfl_sync(kFullMask, part, source, kLanes); }, s);
}

//@ warp_prefix
// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warp_prefix(State totals, int warp) {
    const bool first = warp == kLanes - 1;
    const State older = shuffle(totals, first ? 0 : warp + 1);
    return first ? identity() : older;
}
