// The results of a thread's consecutive items, given the prefix before them. `States` is the state of an item.
#pragma once

// The prefix before item k in its segment, where `last` is the state before it in its line.
template <class States, class Items>
__device__ __forceinline__ States state_before([[maybe_unused]] int k, const States& last,
                                               [[maybe_unused]] const Items& s) {
    if constexpr (kResumes)
        if (begins(s, k)) return s.start[k];
    return last;
}

// The state of the result of item k, where totals made by extend are right.
template <class States, class Items>
__device__ __forceinline__ States state_at(int k, const States& prefix, const Items& s) {
    if (kExclusive && k == 0) return prefix;
    return behind(prefix, s.sum[kExclusive ? k - 1 : k]);
}

// Call use(k, result) for each item, in order.
template <class States, class Items, class Use>
__device__ __forceinline__ void each_result(const States& prefix, const Items& s, Use use) {
    if constexpr (kExtends) {
        const bool right = is_right_behind(prefix, s.sum[kRunItems - 1]);
        if constexpr (kQuick) {
            const States first = state_at(0, prefix, s);
            if (right && is_quick(first, state_at(kRunItems - 1, prefix, s))) {
#pragma unroll
                for (int k = 0; k < kRunItems; ++k) use(k, quick_result_of(first, state_at(k, prefix, s)));
                return;
            }
        }
        if (right) {
#pragma unroll
            for (int k = 0; k < kRunItems; ++k) use(k, result_of(state_at(k, prefix, s)));
            return;
        }
    }
    States last = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kWithin)
            use(k, result_of(within(state_before(k, last, s), s.item[k])));
        else if constexpr (kExclusive)
            use(k, result_of(last));
        if constexpr (kSerial)
            last = append(last, s.item[k]);
        else
            last = combine(prefix, s.item[k]);
        if constexpr (!kExclusive) use(k, result_of(last));
    }
}

// The state after the first `count` items, of which there is one at least.
template <class States, class Items>
__device__ __forceinline__ States state_after(int count, const States& prefix, const Items& s) {
    States last = prefix, after = prefix;
#pragma unroll
    for (int k = 0; k < kRunItems; ++k) {
        if constexpr (kSerial) last = append(last, s.item[k]);
        if (count == k + 1) after = kSerial ? last : combine(prefix, s.item[k]);
    }
    return after;
}
