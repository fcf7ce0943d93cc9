//@ state_at
// The state of the result of item k, given the prefix before the items.
__device__ __forceinline__ ThreadState state_at(int k, const ThreadState& prefix, const Items& s) {
    if (kExclusive && k == 0) return prefix;
    return behind(prefix, s.sum[kExclusive ? k - 1 : k]);
}

//@ each_result
// Call use(k, result) for each item, in order, given the prefix before the items.
template <class Use>
__device__ __forceinline__ void each_result(const ThreadState& prefix, const Items& s, Use use) {
    const bool right = is_right_behind(prefix, s.sum[kRunItems - 1]);
    if (right) {
#pragma unroll
        for (int k = 0; k < kRunItems; ++k) use(k, result_of(state_at(k, prefix, s)));
        return;
    }
    ThreadState last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kExclusive) use(k, result_of(last));
        last = kSerial ? append(last, s.item[k]) : combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

//@ state_after
// The state after the first `count` items, of which there is one at least.
__device__ __forceinline__ ThreadState state_after(int count, const ThreadState& prefix, const Items& s) {
    ThreadState last = prefix, after = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        last = kSerial ? append(last, s.item[k]) : combine(prefix, s.item[k]);
        if (count == k + 1) after = last;
    }
    return after;
}
