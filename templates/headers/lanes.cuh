// The lanes of a row: exchanges of states, and scans. Each namespace that scans includes it.

__device__ __forceinline__ State shuffle_up(const State& s, int distance) {
    return exchange_parts(
        [&](auto part) {
            if constexpr (kLanesDown)
                return __shfl_down_sync(kFullMask, part, distance, kLanes);
            else
                return __shfl_up_sync(kFullMask, part, distance, kLanes);
        },
        s);
}

__device__ __forceinline__ State shuffle(const State& s, int source) {
    return exchange_parts([&](auto part) { return __shfl_sync(kFullMask, part, source, kLanes); }, s);
}

// The exclusive prefix of this warp, from the inclusive scan of all warps' totals.
__device__ __forceinline__ State warp_prefix(State totals, int warp) {
    const bool first = warp == (kLanesDown ? kLanes - 1 : 0);
    const State older = shuffle(totals, first ? 0 : warp + (kLanesDown ? 1 : -1));
    return first ? identity() : older;
}

// The older state combined with the newer one, or `otherwise`. Where combine is expensive, all lanes compute it and
// select its result part by part, which costs less than a branch.
__device__ __forceinline__ State combine_if(bool condition, State older, State newer, State otherwise) {
    if constexpr (kSelects) {
        const auto select = [&](auto part, auto other) { return condition ? part : other; };
        return exchange_parts(select, combine(older, newer), otherwise);
    } else {
        return condition ? combine(older, newer) : otherwise;
    }
}

// Inclusive scan across the first `count` lanes.
template <int count = kLanes>
__device__ __forceinline__ State scan_lanes(State s, int lane) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const State older = shuffle_up(s, step);
        s = combine_if(lane >= step, older, s, s);
    }
    return s;
}

// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = combine_if(lane > 0, before, older, before);
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}
