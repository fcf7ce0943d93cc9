// Searches among the offsets of segments.
#pragma once
#include "headers/approximations.cuh"

// Bit k: whether a segment begins at item k of run j.
template <int runs>
__device__ __forceinline__ unsigned starts_of(const unsigned* marks, int j, int lane) {
    static_assert(runs > 0 && kRunItems <= kWordBits, "bits of two words");
    const int run = j * kWarpThreads + lane, at = (kReverse ? runs * kWarpThreads - 1 - run : run) * kRunItems;
    if constexpr (kWordBits % kRunItems == 0) return marks[at / kWordBits] >> at % kWordBits;
    return __funnelshift_r(marks[at / kWordBits], marks[at / kWordBits + 1], at % kWordBits);
}

// The number of segments that begin before `place` of `length` items, which all lanes of the warp name alike. Each step
// waits for memory. Of many segments the first looks where equal ones would begin, as far as their lengths vary mostly;
// the others split the range that is left into 32 parts, and count those that end before `place`.
__device__ __forceinline__ int count_begins(const Segments& segments, long long place, long long length, int lane) {
    int low = 0, count = segments.count;  // range that holds the first that does not begin before `place`
    if (count > kWarpThreads * kWarpThreads) {
        const int part = 1 + (int)root_of((float)count) / 10, near = (int)((float)count * ((float)place / (float)length));
        const int first = max(0, min(near, count) - kWarpThreads / 2 * part), last = first + lane * part - 1;
        const bool before = last < 0 || (last < count && segments.begin[last] < place);
        const int parts = __popc(__ballot_sync(kFullMask, before));
        if (parts > 0) low = first + (parts - 1) * part;
        count = parts == 0 ? first - 1 : parts == kWarpThreads ? count - low : min(count - low, part - 1);
    }
    while (count > 0) {
        const int part = (count + kWarpThreads - 1) / kWarpThreads, last = (lane + 1) * part - 1;
        const bool before = last < count && segments.begin[low + last] < place;
        const int whole = __popc(__ballot_sync(kFullMask, before));
        low += whole * part;
        count = min(count - whole * part, part - 1);
    }
    return low;
}

// The number of segments that begin before `place`.
__device__ __forceinline__ int count_begins_alone(const Segments& segments, long long place) {
    int low = 0, high = segments.count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (segments.begin[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
