// The scan of a thread's consecutive items. Templates, so that a kernel declares the functions of an operator that it
// calls, and no others. Each namespace that scans includes it.

// The total of a thread's items. Unless results are computed one from the other, leaves the items' inclusive scan in place.
template <class Items>
__device__ __forceinline__ auto scan_items(Items& s) {
    if constexpr (kExtends) {  // by fewer instructions, if the value stays in range
        s.sum[0] = s.item[0];
        bool right = holds(s.sum[0]);
#pragma unroll
        for (int k = 1; k < kRunItems; ++k) {
            s.sum[k] = extend(s.sum[k - 1], s.item[k]);
            right = right && (k + 1 < kRunItems ? holds(s.sum[k]) : is_right(s.sum[k]));
        }
        if (right) return settle(s.sum[kRunItems - 1]);
    }
    auto total = s.item[0];
    if constexpr (kSerial) {
        if constexpr (kAppends) total = append(empty_state(), total);
#pragma unroll
        for (int k = 1; k < kRunItems; ++k) total = append(total, s.item[k]);
    } else if constexpr (kCompensates) {  // with the rounding errors of its steps
        auto lost = decltype(total){};
#pragma unroll
        for (int k = 1; k < kRunItems; ++k) {
            lost = lose(lost, total, s.item[k]);
            total = s.item[k] = combine(total, s.item[k]);
        }
        total = s.item[kRunItems - 1] = regain(total, lost);
    } else {
#pragma unroll
        for (int k = 1; k < kRunItems; ++k) total = s.item[k] = combine(total, s.item[k]);
    }
    return total;
}
