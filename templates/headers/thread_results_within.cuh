//@ state_before
__device__ __forceinline__ const ThreadState& state_before(int, const ThreadState& last, const Items&) { return last; }

//@ each_result
// Call use(k, result) for each item, in order, given the prefix before the items. A result is the
// prefix before its item, in the item's own segment.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        use(k, result_of(within(state_before(k, last, s), s.item[k])));
        last = append(last, s.item[k]);
    }
}

//@ state_after
// The state after the first `count` items, of which there is one at least.
__device__ __forceinline__ ThreadState state_after(int count, const ThreadState& prefix, const Items& s) {
    ThreadState last = prefix, after = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        last = append(last, s.item[k]);
        if (count == k + 1) after = last;
    }
    return after;
}
