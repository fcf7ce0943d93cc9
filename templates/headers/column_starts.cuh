//@ starts_at
// The segments that begin among the rows that a thread scans; i: index in the line of the first of them.
__device__ __forceinline__ Begins starts_at(const Segments& segments, int i) {
    // the warp searches for its first row in memory
    const int slot = threadIdx.x % 32 / kLanes, before = kReverse ? kWarpRows - kRun - slot * kRun : slot * kRun;
    const long long first = kReverse ? i - (kRun - 1LL) : i;
    return starts_from(segments, first, kRun, begun_before(segments, first - before, threadIdx.x % 32));
}

