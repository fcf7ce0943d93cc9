//@ scan_across
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kThreadRuns], Items (&s)[kThreadRuns], State before,
                                             const RowPart& part) {
    State t[kThreadRuns];
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j) t[j] = scan_lanes(scan_items(s[j]), part.lane);
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j)
        p[j] = chain_lanes(before, j < part.accesses ? t[j] : identity(), part.lane, part.last);
    return before;
}
