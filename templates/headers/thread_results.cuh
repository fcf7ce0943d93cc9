//@ each_result
// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

//@ state_after
// The state after the first `count` items, of which there is one at least.
__device__ __forceinline__ ThreadState state_after(int count, const ThreadState& prefix, const Items& s) {
    ThreadState after = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k)
        if (count == k + 1) after = combine(prefix, s.item[k]);
    return after;
}
