//@ count_begins
// The number of segments that begin before `place`, which all lanes of the warp name alike.
__device__ __forceinline__ int count_begins(const Segments& segments, long long place, int lane) {
    int low = 0, count = segments.count;  // range that holds the first of them
    while (count > 0) {                   // split the rest into 32 parts; count those that end before `place`
        const int part = (count + kWarpThreads - 1) / kWarpThreads, last = (lane + 1) * part - 1;
        const bool before = last < count && segments.begin[low + last] < place;
        const int whole = __popc(__ballot_sync(kFullMask, before));
        low += whole * part;
        count = min(count - whole * part, part - 1);
    }
    return low;
}

//@ mark_begins
// Bit k of `marks`: whether a segment begins at item `first` + k of the items of a warp, in memory order.
__device__ __forceinline__ void mark_begins(unsigned* marks, const Segments& segments, long long first, int lane) {
    __syncwarp();  // all lanes have read the marks of the tile before
    for (int w = lane; w < kWarpItems / kWordBits; w += kWarpThreads) marks[w] = 0;
    if constexpr (kFlagsNextItems) ++first;  // an item begins a segment, in scan order, if the next in memory does
    int low = count_begins(segments, first, lane);
    __syncwarp();
    for (bool inside = true; __all_sync(kFullMask, inside); low += kWarpThreads) {
        const long long item = low + lane < segments.count ? segments.begin[low + lane] - first : kWarpItems;
        inside = item >= 0 && item < kWarpItems;  // offsets that were overwritten may fall
        if (inside) atomicOr(&marks[item / kWordBits], 1u << item % kWordBits);
    }
    __syncwarp();
}

//@ find_starts
// Bit k: whether a segment begins at item `first` + k, of `count` items; `low` segments at most begin before.
__device__ __forceinline__ Begins find_starts(const Segments& segments, long long first, int count, int low) {
    Begins starts = 0;
    if constexpr (kFlagsNextItems) ++first;  // as above
    for (int k = low; k < segments.count && segments.begin[k] < first + count; ++k)
        if (segments.begin[k] >= first) starts |= (Begins)1 << (segments.begin[k] - first);
    return starts;
}
