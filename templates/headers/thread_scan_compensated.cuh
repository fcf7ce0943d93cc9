//@ scan_items
// The total of a thread's consecutive items, with the rounding errors of its steps; leaves their inclusive scan in
// place.
__device__ __forceinline__ ThreadState scan_items(Items& s) {
    ThreadState total = s.item[0];
    ThreadState lost = {};
#pragma unroll
    for (int k = 1; k < kRunItems; ++k) {
        lost = lose(lost, total, s.item[k]);
        total = s.item[k] = combine(total, s.item[k]);
    }
    return s.item[kRunItems - 1] = regain(total, lost);
}
