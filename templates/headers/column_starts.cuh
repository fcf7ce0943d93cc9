//@ starts_at
// The segments that begin among the rows that a thread scans; i: index in the line of the first of them.
__device__ __forceinline__ Begins starts_at(const Segments& segments, int i) {
    // the warp searches for its first row in memory
    const int slot = threadIdx.x % kWarpThreads / kLanes,
              before = kReverse ? kWarpRows - kRunItems - slot * kRunItems : slot * kRunItems;
    const long long first = kReverse ? i - (kRunItems - 1LL) : i;
    return find_starts(segments, first, kRunItems, count_begins(segments, first - before, threadIdx.x % kWarpThreads));
}
