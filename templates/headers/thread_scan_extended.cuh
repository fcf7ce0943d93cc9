//@ scan_items
// The total of a thread's consecutive items: by fewer instructions, if the value stays in range.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    s.sum[0] = s.item[0];
    bool right = holds(s.sum[0]);
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) {
        s.sum[k] = extend(s.sum[k - 1], s.item[k]);
        right = right && (k + 1 < kRunItems ? holds(s.sum[k]) : is_right(s.sum[k]));
    }
    if (right) return settle(s.sum[kRunItems - 1]);
    ThreadState total = kAppends ? append(empty_state(), s.item[0]) : s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k)
        total = kSerial ? append(total, s.item[k]) : (s.item[k] = combine(total, s.item[k]));
    return total;
}
