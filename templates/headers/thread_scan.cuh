//@ scan_items
// The total of a thread's consecutive items; leaves their inclusive scan in place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) total = s.item[k] = combine(total, s.item[k]);
    return total;
}
