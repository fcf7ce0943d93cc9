// The scan of a thread's items, then across the lanes of their row or warp.
#pragma once

// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kThreadRuns], Items (&s)[kThreadRuns], State before,
                                             [[maybe_unused]] const RowPart& part) {
    if constexpr (kInRuns) {
        before = scan_lanes(scan_items(s[0]), part.lane);  // inclusive of this thread's items
        const State older = shuffle_up(before, 1);
        p[0] = part.lane > 0 ? older : identity();
    } else if constexpr (kLanes == 1) {
#pragma unroll
        for (int j = 0; j < kThreadRuns; ++j) {
            p[j] = before;
            before = combine(before, scan_items(s[j]));
        }
    } else {
        State t[kThreadRuns];
#pragma unroll
        for (int j = 0; j < kThreadRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), part.lane);
#pragma unroll
        for (int j = 0; j < kThreadRuns; ++j)
            p[j] = chain_lanes(before, j < part.accesses ? t[j] : identity(), part.lane, part.last);
    }
    return before;
}
