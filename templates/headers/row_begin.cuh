// Items in front of a row. Each namespace that scans includes it.

// Items before the row's first are ignored.
__device__ __forceinline__ void begin_row(Items& s, Position position) {
#pragma unroll
    for (int k = 0; k < kItemsPerLoad; ++k)
        if (position < -k) s.item[k] = identity();
}
