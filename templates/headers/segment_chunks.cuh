// Chunks of segments that begin among some items.
#pragma once

// Call use(item) for each chunk of segment k that begins at item `first` + `item`, of `count` items.
template <class Use>
__device__ __forceinline__ void each_chunk(const Segments& segments, int k, long long first, int count, Use use) {
    const long long begin = begin_of(segments, k) - first, left = begin_of(segments, k + 1) - first;
    const int end = (int)(left < count ? left : count), chunk = segments.chunk;
    long long item = begin < 0 ? begin + (-begin + chunk - 1) / chunk * chunk : begin;
    for (; item < end; item += chunk) use((int)item);
}

// Bit k of `marks`: whether a segment begins at item `first` + k of the items of a warp, in memory order; `low` segments
// at most begin before.
template <int items>
__device__ __forceinline__ void mark_begins(unsigned* marks, const Segments& segments, long long first, int low,
                                            int lane) {
    __syncwarp();  // all lanes have read the marks of the tile before
    for (int w = lane; w < items / kWordBits; w += kWarpThreads) marks[w] = 0;
    if constexpr (kFlagsNextItems) ++first;  // an item begins a segment, in scan order, if the next in memory does
    __syncwarp();
    for (low = low > 0 ? low - 1 : 0; __any_sync(kFullMask, low + lane < segments.count - 1); low += kWarpThreads) {
        const bool inside = low + lane < segments.count - 1 && begin_of(segments, low + lane) < first + items;
        if (inside)
            each_chunk(segments, low + lane, first, items,
                       [&](int item) { atomicOr(&marks[item / kWordBits], 1u << item % kWordBits); });
        if (!__all_sync(kFullMask, inside)) break;
    }
    __syncwarp();
}

// Bit k: whether a segment begins at item `first` + k, of `count` items; `low` segments at most begin before.
__device__ __forceinline__ Begins find_starts(const Segments& segments, long long first, int count, int low) {
    Begins starts = 0;
    if constexpr (kFlagsNextItems) ++first;  // as above
    for (int k = low > 0 ? low - 1 : 0; k < segments.count - 1 && begin_of(segments, k) < first + count; ++k)
        each_chunk(segments, k, first, count, [&](int item) { starts |= (Begins)1 << item; });
    return starts;
}
