// Segments that begin among some items.
#pragma once

// Bit k of `marks`: whether a segment begins at item `first` + k of the items of a warp, in memory order; `low` segments
// at most begin before.
template <int items>
__device__ __forceinline__ void mark_begins(unsigned* marks, const Segments& segments, long long first, int low,
                                            int lane) {
    __syncwarp();  // all lanes have read the marks of the tile before
    for (int w = lane; w < items / kWordBits; w += kWarpThreads) marks[w] = 0;
    if constexpr (kFlagsNextItems) ++first;  // an item begins a segment, in scan order, if the next in memory does
    __syncwarp();
    for (bool goes_on = true; __all_sync(kFullMask, goes_on); low += kWarpThreads) {
        const long long item = low + lane < segments.count ? segments.begin[low + lane] - first : items;
        goes_on = item < items;
        if (goes_on && item >= 0) atomicOr(&marks[item / kWordBits], 1u << item % kWordBits);
    }
    __syncwarp();
}

// Bit k: whether a segment begins at item `first` + k, of `count` items; `low` segments at most begin before.
__device__ __forceinline__ Begins find_starts(const Segments& segments, long long first, int count, int low) {
    Begins starts = 0;
    if constexpr (kFlagsNextItems) ++first;  // as above
    for (int k = low; k < segments.count && segments.begin[k] < first + count; ++k)
        if (segments.begin[k] >= first) starts |= (Begins)1 << (segments.begin[k] - first);
    return starts;
}
