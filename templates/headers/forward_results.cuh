// The results of the forward scan before a thread's items.
#pragma once

// The result before each item.
__device__ __forceinline__ WideVector<Former> results(State prefix, const Items& s) {
    WideVector<Former> f;
#pragma unroll
    for (int k = 0; k < kItemsPerLoad; ++k) {
        f.item[place_of(k, kItemsPerLoad)] = output_of(prefix);
        prefix = append(prefix, s.item[k]);
    }
    return f;
}

// Set the results before a thread's items.
__device__ __forceinline__ void find(Accesses& a, const RowPart& part, int warp, int warps, State* warp_aggregate) {
    Items s[kThreadLoads];
    State prefix[kThreadLoads], ahead = identity();
    const int lane = part.lane, later = kLanes - 1 - lane;  // lanes that precede this one in the forward scan
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) {
        s[j] = forward_prefix::lift_items(a, j);
        if constexpr (kGuarded) begin_row(s[j], part.end - part.at(j) - kItemsPerLoad);
        prefix[j] = scan_lanes(scan_items(s[j]), later);
    }
#pragma unroll
    for (int j = kThreadLoads - 1; j >= 0; --j) prefix[j] = chain_lanes(ahead, prefix[j], later, 0);
    if (lane == 0) warp_aggregate[warp] = ahead;
    __syncthreads();
    const State all = scan_lanes(lane < warps ? warp_aggregate[lane] : identity(), later);
    const State behind = warp_prefix(all, warp);
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j) a.f[j] = results(combine(behind, prefix[j]), s[j]);
}
