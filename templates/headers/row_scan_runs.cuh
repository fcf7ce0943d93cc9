//@ scan_across
// Exclusive prefixes of a thread's runs in their row or warp, which `before` precedes; returns the total.
__device__ __forceinline__ State scan_across(State (&p)[kThreadRuns], Items (&s)[kThreadRuns], State before,
                                             const RowPart& part) {
    before = scan_lanes(scan_items(s[0]), part.lane);  // inclusive of this thread's items
    const State older = shuffle_up(before, 1);
    p[0] = part.lane > 0 ? older : identity();
    return before;
}
