// Segments that begin among a thread's rows.
#pragma once

// The number of segments at most that begin before the rows that a warp scans, and before those after them; i: index in
// the line of the first row of the thread.
__device__ __forceinline__ int count_warp_begins(const Segments& segments, int i, long long length) {
    const int slot = threadIdx.x % kWarpThreads / kLanes,
              before = kReverse ? kWarpRows - 1 - slot * kRunItems : slot * kRunItems;
    return count_begins(segments, i - before - 1LL, length, threadIdx.x % kWarpThreads);
}

// The segments that begin among the rows that a thread scans; `low` at most begin before.
__device__ __forceinline__ Begins starts_at(const Segments& segments, int i, int low) {
    return find_starts(segments, kReverse ? i - (kRunItems - 1LL) : i, kRunItems, low);
}
