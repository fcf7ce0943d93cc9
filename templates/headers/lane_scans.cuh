//@ combine_if
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

//@ scan_lanes
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

//@ chain_lanes
// The exclusive prefix of this lane's access, given that of the row's accesses; advances `before` past them.
__device__ __forceinline__ State chain_lanes(State& before, State inclusive, int lane, int last = kLanes - 1) {
    const State older = shuffle_up(inclusive, 1);
    const State prefix = combine_if(lane > 0, before, older, before);
    before = combine(before, shuffle(inclusive, last));
    return prefix;
}
