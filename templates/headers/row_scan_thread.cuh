//@ scan_across
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kRuns], Items (&s)[kRuns], State before, const Part&) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
        p[j] = before;
        before = combine(before, scan_items(s[j]));
    }
    return before;
}

