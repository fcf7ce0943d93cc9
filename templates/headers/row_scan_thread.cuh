//@ scan_across
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kThreadRuns], Items (&s)[kThreadRuns], State before,
                                             const RowPart&) {
#pragma unroll
    for (int j = 0; j < kThreadRuns; ++j) {
        p[j] = before;
        before = combine(before, scan_items(s[j]));
    }
    return before;
}
