//@ scan_items
// The total of a thread's consecutive items.
__device__ __forceinline__ ThreadState scan_items(const Items& s) {
    ThreadState total = kAppends ? append(empty_state(), s.item[0]) : s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = append(total, s.item[k]);
    return total;
}
