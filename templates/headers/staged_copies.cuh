//@ phase
// Items between the preceding 16-byte boundary and the rows.
template <class Item>
__device__ __forceinline__ int phase(const Item* rows) {
    return kSlackBytes == 0 ? 0 : (int)((unsigned long long)rows % 16 / sizeof(Item));
}

//@ copy_items
// A warp copies items between global and shared memory, where they lie alike after a 16-byte boundary: by 16-byte
// accesses, and single items at both ends.
template <bool async, class Item>
__device__ __forceinline__ void copy_items(Item* to, const Item* from, int count, int lane) {
    constexpr int width = 16 / (int)sizeof(Item), stride = kWarpThreads * width;
    const auto copy = [&](int i) {  // a 16-byte access
        auto* const wide = reinterpret_cast<Vector<unsigned, 4>*>(to + i);
        if constexpr (async)
            copy_async(wide, from + i);
        else
            *wide = *reinterpret_cast<const Vector<unsigned, 4>*>(from + i);
    };
    const int begin = phase(async ? from : to), end = begin + count;  // after the boundary
    to -= begin, from -= begin;
    int i = lane * width;
    if (kSlackBytes == 0 && end == kRoomItems) {  // all rows of the warp exist, and end on a boundary
#pragma unroll 8
        for (int step = 0; step < kRoomItems / stride; ++step, i += stride) copy(i);
        if (i < kRoomItems) copy(i);
        return;
    }
    const int first = begin > 0 ? width : 0, whole = end / width * width;
#pragma unroll 8
    for (i += first; i < whole; i += stride) copy(i);
    if (lane >= begin && lane < first && lane < end) to[lane] = from[lane];
    const int last = (whole > first ? whole : first) + lane;
    if (last < end) to[last] = from[last];
}
